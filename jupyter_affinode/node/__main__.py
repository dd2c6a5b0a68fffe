"""`python -m jupyter_affinode.node`: what starts a controller."""

import gc

from .simulation import start_over

start_over()  # before the rest is imported in vain
gc.disable()  # until the controller serves: what is imported stays, and looking for cycles in it takes time

from .app import main  # noqa: E402

main()

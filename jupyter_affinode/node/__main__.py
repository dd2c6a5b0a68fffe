"""`python -m jupyter_affinode.node`: what starts a controller."""

from .simulation import start_over

start_over()  # before the rest is imported in vain

from .app import main  # noqa: E402

main()

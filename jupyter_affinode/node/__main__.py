"""`python -m jupyter_affinode.node`: what starts a controller."""

from .app import main

main()

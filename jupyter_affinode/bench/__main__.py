"""`python -m jupyter_affinode.bench`, the same as `jupyter affinode bench`."""

import sys

from .command import main

sys.exit(main())

"""`python -m jupyter_affinode.cli`, the same as `jupyter affinode`."""

import sys

from . import main

sys.exit(main())

"""The programs of this folder are imported by their tests, and run by themselves for longer."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

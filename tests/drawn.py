"""How many examples a random test draws."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """Return `count` in `make test-all`, and a quarter of it in `make test`, which draws the same ones each time."""
    return count if os.environ.get("TEST_STRIDE") else max(count // 4, 5)

"""The Hub's side: real Hubs, and machines' controllers with users of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SUPPORT = str(Path(__file__).resolve().parents[1] / "node" / "support")
if SUPPORT not in sys.path:  # fake_shim and people
    sys.path.append(SUPPORT)


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """Takes the place of pytest-jupyter's: processes of these tests may have Playwright's event loop."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """Takes the place of pytest-jupyter's, which cleans up servers of this process: here is none."""

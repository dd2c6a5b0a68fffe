"""The Hub's side: real Hubs, and machines' controllers with users of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "node" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "lab"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    from live_browser import chromium  # other tests need no Playwright

    with chromium() as started:
        yield started


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """Takes the place of pytest-jupyter's: processes of these tests may have Playwright's event loop."""

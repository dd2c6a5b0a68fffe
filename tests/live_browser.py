"""The system's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Asks whether what a selector finds can be used by all users; the script is added to the page before.
AXE = Path(__file__).resolve().parents[1] / "node_modules" / "axe-core" / "axe.min.js"
VIOLATIONS = """async selector => {
    const found = await axe.run(selector, { resultTypes: ['violations'] });
    return found.violations.map(({ id, nodes }) => `${id}: ${nodes.map(node => node.html).join(' ')}`);
}"""
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium; skip where there is none. This process has Playwright's event loop then and can have no other."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("NO CHROMIUM: NO PAGE IS TESTED (apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


def sign_in(page: Page, hub: str, user: str, then: str) -> None:
    """Sign in to a Hub of tests, which leads to the page `then`."""
    page.goto(f"{hub}/hub/login?next={then}")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill("x")
    page.get_by_role("button", name="Sign in").click()

"""`make demo`, seen in Chromium: what opens, and that its five cells tell their story."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_browser import chromium
from playwright.sync_api import Page, expect

DEMO = Path(__file__).resolve().parents[2] / "binder" / "demo.py"
SERVES = re.compile(r"http://127\.0\.0\.1:[1-9]\d*/lab")
LOADED_MS = 120_000


@pytest.fixture(scope="module")
def page(native: Path, nothing_shared: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """What a user of `make demo` sees."""
    log = tmp_path_factory.mktemp("demo") / "log"
    with chromium() as browser, log.open("w") as written:
        demo = subprocess.Popen(
            [sys.executable, DEMO, "--no-browser", "--port=0", "--IdentityProvider.token=seen"],
            stdout=written,
            stderr=subprocess.STDOUT,
        )
        try:
            while (found := SERVES.search(log.read_text())) is None:
                assert demo.poll() is None, log.read_text()
                time.sleep(0.2)
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(LOADED_MS)
            page.goto(f"{found[0]}?token=seen")
            yield page
        finally:
            demo.send_signal(signal.SIGTERM)
            demo.wait()


@pytest.mark.long
def test_the_demo_opens_with_the_panel_and_without_questions(page: Page) -> None:
    expect(page.locator("#jp-affinode-panel")).to_be_visible(timeout=LOADED_MS)
    expect(page.get_by_role("tab", name="demo.ipynb")).to_be_visible(timeout=LOADED_MS)
    expect(page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(5, timeout=LOADED_MS)
    expect(page.locator("#jp-affinode-panel")).to_contain_text("demo.ipynb", timeout=LOADED_MS)
    expect(page.locator(".Toastify__toast")).to_have_count(0)
    expect(page.locator(".jp-Dialog")).to_have_count(0)


@pytest.mark.long
def test_the_demos_cells_tell_the_story(page: Page) -> None:
    panel = page.locator("#jp-affinode-panel")
    outputs = page.locator(".jp-Notebook .jp-CodeCell")

    def run(number: int) -> None:
        outputs.nth(number).locator(".jp-InputArea-editor").click()
        page.keyboard.press("Shift+Enter")

    run(0)
    expect(outputs.nth(0)).to_contain_text("On the GPU: 256 MiB", timeout=LOADED_MS)
    expect(panel).to_contain_text("GPU freed", timeout=LOADED_MS)
    if folder := os.environ.get("AFFINODE_PICTURES"):
        page.screenshot(path=Path(folder, "demo.png"))
    run(1)
    expect(outputs.nth(1)).to_contain_text("GPU freed, 256 MiB safe in RAM", timeout=LOADED_MS)
    run(2)
    expect(outputs.nth(2)).to_contain_text("intact", timeout=LOADED_MS)
    run(3)
    expect(outputs.nth(3)).to_contain_text("256 MiB freed", timeout=LOADED_MS)
    run(4)
    expect(outputs.nth(4)).to_contain_text("kept until ", timeout=LOADED_MS)

"""What a user sees in a browser of a spawn that waits for the GPU, and of one that is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from live_browser import sign_in
from playwright.sync_api import expect
from spawn_site import make_site

pytestmark = pytest.mark.long
WAIT_MS = 60_000
WIDE, PHONE = {"width": 900, "height": 600}, {"width": 390, "height": 700}


@pytest.fixture(params=["light", "dark"])
def open_page(request, browser):
    """`open_page(site, user)`: a user's browser that spawns their server."""
    context = browser.new_context(color_scheme=request.param)

    def start(site, user):
        page = context.new_page()
        page.set_viewport_size(WIDE)
        page.set_default_timeout(WAIT_MS)
        sign_in(page, site.hub.url, user, "/hub/spawn")
        return page

    yield start
    context.close()


@pytest.fixture(scope="module", params=["6", "5"])
def patient(request):
    """A site whose spawns wait."""
    yield from make_site(request.param)


@pytest.fixture(scope="module", params=["6", "5"])
def strict(request):
    """A site that refuses spawns after three seconds."""
    yield from make_site(request.param, on_gpu_full="refuse", gpu_wait_s=3, consecutive_failure_limit=0)


def picture(page, name):
    """See that it fits a screen and a phone; save pictures, if anyone wants them."""
    for kind, size in (("page", WIDE), ("phone", PHONE)):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        if "AFFINODE_SCREENSHOTS" in os.environ:
            page.screenshot(path=Path(os.environ["AFFINODE_SCREENSHOTS"]) / f"{name}-{kind}.png")


def test_the_spawn_page_tells_why_it_waits_and_goes_on(patient, open_page, request):
    patient.busy(True)
    page = open_page(patient, "ana")
    expect(page.locator("#progress-message")).to_contain_text(
        "Another user's notebook is computing", timeout=WAIT_MS
    )
    page.get_by_text("Event log").click()
    picture(page, f"spawn-{request.node.callspec.id}")
    patient.busy(False)
    page.wait_for_url("**/user/ana/**", timeout=WAIT_MS)
    patient.hub.ask("DELETE", "/users/ana/server")


def test_a_refused_spawn_says_so_in_our_words(strict, open_page, request):
    strict.busy(True)
    page = open_page(strict, "bob")
    expect(page.get_by_text("No GPU has room for 500 MiB at the moment").first).to_be_visible(timeout=WAIT_MS)
    picture(page, f"refused-{request.node.callspec.id}")
    page.goto(f"{strict.hub.url}/hub/spawn-pending/bob")  # as a tab that is opened later
    expect(page.get_by_text("No GPU has room for 500 MiB at the moment").first).to_be_visible(timeout=WAIT_MS)
    picture(page, f"failed-{request.node.callspec.id}")

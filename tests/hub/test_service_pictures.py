"""The page about GPUs in a real browser: both themes, a phone, a click. AFFINODE_SCREENSHOTS: where pictures go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_shim import QUEUED, WANT, notify
from gpu_node import BOB, gpu_node
from live_browser import sign_in
from live_hub import Hub
from playwright.sync_api import expect

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def stage():
    """A Hub with the service, and a busy machine: (hub, node)."""
    with gpu_node(idle_timeout_s=3600.0) as node:
        node.shims["notes"].become(QUEUED)
        node.shims["notes"].send(notify(WANT))
        nodes = {"gpu1": str(node.machine.socket), "gpu2": "/nowhere/node.sock"}
        hub = Hub(node.machine, service={"nodes": nodes}).start()
        yield hub, node
        hub.stop()


@pytest.fixture
def open_page(browser, stage):
    """`open_page(width=…, theme=…, user=…)`: the page as a user sees it."""
    contexts = []

    def start(width=1200, height=1500, theme="light", user="admin"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        sign_in(page, stage[0].url, user, "/services/affinode/")
        page.wait_for_url("**/services/affinode/")
        return page

    yield start
    for context in contexts:
        context.close()


def picture(page, name):
    """Save a picture of the whole page, if anyone wants it."""
    if "AFFINODE_SCREENSHOTS" in os.environ:
        page.screenshot(path=Path(os.environ["AFFINODE_SCREENSHOTS"]) / f"{name}.png", full_page=True)


@pytest.mark.parametrize(("name", "width"), [("page", 1200), ("phone", 390)])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_fits_and_is_readable(open_page, name, width, theme):
    page = open_page(width=width, theme=theme)
    expect(page.get_by_text("work/analysis.ipynb").first).to_be_visible()
    expect(page.get_by_role("button", name="Free: work/training.ipynb")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRASTS) >= 4.5
    picture(page, f"service-{name}-{theme}")
    page.get_by_role("link", name="Change it").click()
    expect(page.get_by_label("idle_timeout_s", exact=True)).to_have_value("3600")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    picture(page, f"service-policy-{name}-{theme}")


def test_a_click_keeps_a_kernel(open_page, stage):
    page = open_page()
    page.get_by_role("button", name="Keep 1 h: work/training.ipynb").click()
    expect(page.get_by_role("status")).to_have_text("work/training.ipynb keeps its GPU for an hour.")
    page.get_by_text("What administrators did").click()
    picture(page, "service-done")
    assert stage[1].kernel(BOB, "training")["held_for_s"]
    page.get_by_role("button", name="Stop keeping: work/training.ipynb").click()
    expect(page.get_by_role("button", name="Keep 1 h: work/training.ipynb")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_another_user_sees_that_it_is_not_for_them(open_page, theme):
    page = open_page(width=390, height=400, theme=theme, user="ben")
    expect(page.get_by_role("heading")).to_have_text("403 Forbidden")
    expect(page.get_by_text("This page is for the Hub's administrators.")).to_be_visible()
    picture(page, f"service-403-{theme}")


# The lowest contrast (WCAG 2) of any text on the page with what is behind it.
CONTRASTS = """() => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const luminance = colour => numbers(colour).slice(0, 3).map(value => value / 255)
        .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
    const behind = element => {
        for (; element; element = element.parentElement) {
            const colour = getComputedStyle(element).backgroundColor;
            if ((numbers(colour)[3] ?? 1) > 0) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const contrasts = [...document.querySelectorAll('body *')]
        .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
        .filter(element => element.getClientRects().length)
        .map(element => [luminance(getComputedStyle(element).color), luminance(behind(element))])
        .map(([text, back]) => (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05));
    return Math.min(...contrasts);
}"""

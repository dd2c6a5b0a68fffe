"""The page about GPUs in a real browser: both themes, a phone, a click. AFFINODE_SCREENSHOTS: where pictures go."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fake_nvml import UUID
from fake_shim import QUEUED, WANT, notify
from gpu_node import ANA, BOB, CARLA, GpuNode, gpu_node
from live_browser import AXE, VIOLATIONS, sign_in
from live_hub import Hub
from playwright.sync_api import expect

from jupyter_affinode.node.ledger.store import Batch, EventRow, KernelRow, LedgerStore, SampleRow
from jupyter_affinode.node.ledger.usage import DAY_S, ByteSeconds, Usage, UsageKey
from jupyter_affinode.settings.policy import GIB

pytestmark = pytest.mark.long


def write_past(node: GpuNode) -> None:
    """Write an hour of parks and waits, and 14 days of figures, into the machine's ledger."""
    now, usage = time.time(), Usage()
    events, kernels = [], {}
    for number, (uid, name, gpus) in enumerate(
        [(ANA, "analysis", UUID), (BOB, "training", UUID), (CARLA, "notes", UUID), (ANA, "ended", UUID)]
    ):
        kernel_id, user = f"uid-{uid}/{name}", f"uid-{uid}"
        ended = now - 600 if name == "ended" else None
        kernels[kernel_id] = KernelRow(
            kernel_id,
            user,
            now - 7000,
            ended or now,
            ended,
            False,
            "Python 3",
            f"work/{name}.ipynb",
            gpus=gpus,
        )
        for minutes in range(55 - 3 * number, 12, -14):
            at = now - 60 * minutes
            events += [
                EventRow(at, "park", kernel_id, user, gpus, "room", bytes=GIB, gpus=gpus),
                EventRow(at + 400, "wait", kernel_id, user, gpus, outcome="served", waited_s=45.0),
                EventRow(at + 400, "resume", kernel_id, user, gpus, "cell", bytes=GIB, gpus=gpus),
            ]
        for day in range(1, 14):
            hours = 3600.0 * GIB * (1 + (day * (number + 2)) % 7)
            key = UsageKey(int(now // DAY_S) - day, user, gpus)
            usage.by_key[key] = ByteSeconds(30 * hours, 11 * hours, 17 * hours)
            usage.measured_s[key.day] = 80_000.0
    samples = [
        SampleRow(int(now) - 10 * place, UUID, (20 + 15 * (place // 30 % 4)) * GIB, float(place * 7 % 90))
        for place in range(1, 350)
        if not 200 < place < 230  # no controller ran
    ]
    store = LedgerStore(node.machine.folder / "history" / "ledger.sqlite")
    store.write(Batch(now, events, kernels, usage, samples=samples))
    store.close()


@pytest.fixture(scope="module")
def stage():
    """A Hub with the service, and a busy machine: (hub, node)."""
    with gpu_node(idle_timeout_s=3600.0, contended_idle_timeout_s=3600.0) as node:
        node.shims["notes"].become(QUEUED)
        node.shims["notes"].send(notify(WANT))
        write_past(node)
        nodes = {"gpu1": str(node.machine.socket), "gpu2": "/nowhere/node.sock"}
        hub = Hub(node.machine, service={"nodes": nodes}).start()
        yield hub, node
        hub.stop()


@pytest.fixture
def open_page(browser, stage):
    """`open_page(width=…, theme=…, user=…)`: the page as a user sees it."""
    contexts = []

    def start(width=1200, height=1500, theme="light", user="admin", **options):
        options |= {"viewport": {"width": width, "height": height}, "color_scheme": theme}
        context = browser.new_context(**options)
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


@pytest.mark.parametrize("width", [320, 1200])
@pytest.mark.parametrize("theme", ["light", "dark", "forced"])
def test_the_page_is_accessible(open_page, theme, width):
    system = {"theme": "dark", "forced_colors": "active"} if theme == "forced" else {"theme": theme}
    page = open_page(width=width, bypass_csp=True, **system)
    expect(page.get_by_role("heading", name="The last hour").first).to_be_visible()
    expect(page.locator(".past .lane").first).to_be_visible()
    page.get_by_text("What administrators did").click()
    page.add_script_tag(path=AXE)
    picture(page, f"service-{width}-{theme}")
    assert page.evaluate(VIOLATIONS, "html") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


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

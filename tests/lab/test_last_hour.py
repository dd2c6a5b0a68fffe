"""The panel's last section: where kernels' memory was, by pointer and by keyboard, in every theme and at 250 pixels."""

from __future__ import annotations

import re
import statistics

import contrast
import lab_cells
import pytest
import recorded
from live_browser import AXE, VIOLATIONS
from playwright.sync_api import expect
from recorded_page import THEMES, ZOOMED, Looks, RecordedPanel

pytestmark = pytest.mark.long  # labextension/test/history.test.ts says in CI what is shown and what keys do
HISTORY = ".jp-affinode-history"
DRAWN_MS = 100


@pytest.fixture
def panel(page):
    """The shared page, with recorded answers instead of the server's."""
    return RecordedPanel(page)


@pytest.fixture
def section(panel):
    """The open section of a machine with a few kernels of each kind."""
    panel.show(recorded.states()["resident"])
    yield panel.open_past()
    panel.lab.page.unroute_all()


def readout(section):
    return section.locator(".jp-affinode-readout")


def test_the_pointer_is_told_what_it_is_at(section):
    section.locator("[data-lane='0 0'] .jp-affinode-plot").hover(position={"x": 5, "y": 5})
    expect(readout(section)).to_contain_text(".ipynb")
    expect(readout(section)).to_have_attribute("aria-live", "off")


def test_the_window_is_chosen_and_a_pause_holds_the_picture(panel, section):
    page = panel.lab.page
    for name, seconds in (("10 min", 600), ("8 h", 28800), ("1 h", 3600)):
        with page.expect_response(re.compile(rf"/affinode/api/past\?seconds={seconds}\b")):
            section.get_by_role("button", name=name, exact=True).click()
        expect(section.get_by_role("application")).to_be_visible()
    expect(section).to_contain_text(re.compile(r"\d GPU \w+ given back, .* waited"))
    section.get_by_role("button", name="Pause").click()
    drawn = section.locator("[data-lane='0 0'] path").first.get_attribute("d")
    answer = recorded.states()["resident"]
    for kernel in answer["kernels"]:
        kernel["residency"] = "parked" if kernel["residency"] == "resident" else kernel["residency"]
    panel.show(answer)
    assert section.locator("[data-lane='0 0'] path").first.get_attribute("d") == drawn
    section.get_by_role("button", name="Pause").click()
    expect(section.locator("[data-lane='0 0'] path").first).not_to_have_attribute("d", drawn)


def test_the_picture_stays_until_the_answer_about_another_window_comes(panel, section):
    held, sums = [], section.locator(".jp-affinode-historySums")
    expect(sums).to_contain_text("given back")
    panel.lab.page.route("**/affinode/api/past*", lambda route: held.append(route))
    with panel.lab.page.expect_request("**/affinode/api/past*"):
        section.get_by_role("button", name="10 min", exact=True).click()
    expect(sums).to_have_text("Looking…")
    expect(section.locator("[data-lane='0 0']")).to_be_visible()
    held.pop().fulfill(status=503, json={"detail": "away"})
    expect(section.get_by_role("status")).to_contain_text("cannot be had")
    expect(section.locator("[data-lane]")).to_have_count(0)


def test_the_past_is_asked_for_once_and_not_while_it_is_not_seen(panel, section):
    page, asked = panel.lab.page, []
    page.on("request", lambda request: asked.append(request.url) if "/past" in request.url else None)
    for _ in range(3):
        panel.show(recorded.states()["resident"])
    panel.lab.hide_panel()
    with page.expect_request("**/affinode/api/past*"):
        panel.lab.show_panel()
    expect(section.get_by_role("application")).to_be_visible()
    page.evaluate("() => fetch('/api/status')")  # is heard of after whatever came before it
    assert len(asked) == 1, asked  # the second time, since what happened meanwhile was missed


def machines():
    """Machines whose last hour is looked at, by name."""
    return {
        "few": recorded.states()["resident"],
        "many": recorded.busy_machine(),
        "others": recorded.states()["administered"],
    }


def looked_at(panel, looks, name, width=None):
    """Open the last hour and take a picture of all of it; what is wrong with it."""
    page = panel.lab.page
    size = page.viewport_size
    page.set_viewport_size({**size, "height": 2400})
    if width is not None:
        panel.widen(width)
    section = panel.open_past()
    section.get_by_role("application").focus()
    page.keyboard.press("ArrowDown")
    expect(section.locator(".jp-affinode-cursor")).to_have_count(1)
    section.screenshot(path=panel.lab.screenshots / f"past-{name}.png", animations="disabled")
    wrong = [*page.evaluate(VIOLATIONS, HISTORY), *looks.troubles(HISTORY)]
    wrong += [str(pair) for pair in contrast.too_weak(looks.pairs(HISTORY))]
    section.locator("#jp-affinode-section-past").click()
    page.set_viewport_size(size)
    return wrong


@pytest.mark.parametrize("theme", THEMES)
def test_the_last_hour_is_accessible_in_every_theme_and_at_250_pixels(sized, theme):
    panel = RecordedPanel(sized)
    sized.theme(THEMES[theme])
    sized.page.add_script_tag(path=AXE)
    looks, found = Looks(sized), {}
    for name, answer in machines().items():
        panel.show(answer)
        for width in (250, 520):
            found[name, width] = looked_at(panel, looks, f"{name}-{width}-{theme}", width)
    sized.theme(THEMES["light"])
    assert found == {name: [] for name in found}


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_last_hour_is_seen_where_the_system_forces_its_colours(sized, system):
    panel = RecordedPanel(sized)
    sized.theme(THEMES["dark" if system == "light" else "light"])
    sized.page.add_script_tag(path=AXE)
    looks, found = Looks(sized), {}
    sized.page.emulate_media(forced_colors="active", color_scheme=system)
    for name, answer in machines().items():
        panel.show(answer)
        found[name] = looked_at(panel, looks, f"{name}-forced-{system}")
    sized.page.emulate_media(forced_colors="none", color_scheme="light")
    sized.theme(THEMES["light"])
    assert found == {name: [] for name in found}


def test_the_last_hour_of_a_page_at_400_percent_cuts_nothing_off(sized):
    panel = RecordedPanel(sized)
    sized.page.add_script_tag(path=AXE)
    looks, found = Looks(sized), {}
    sized.page.set_viewport_size(ZOOMED)
    for name, answer in machines().items():
        panel.show(answer)
        found[name] = looked_at(panel, looks, f"{name}-zoomed")
    assert found == {name: [] for name in found}


# Without Playwright's own looks at the page, which take as long as a picture.
CHOOSE = """async name => {
    const section = document.querySelector('.jp-affinode-history');
    const drawn = () => section.querySelector("[data-lane='0 0'] path").getAttribute('d');
    const before = drawn();
    [...section.querySelectorAll('button')].find(button => button.textContent === name).click();
    await new Promise(done => {
        const observer = new MutationObserver(() => drawn() !== before && done(observer.disconnect()));
        observer.observe(section, { subtree: true, childList: true, attributes: true });
    });
    await new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)));
}"""


def test_two_thousand_events_of_thirty_kernels_are_drawn_quickly(panel):
    answer, page = recorded.busy_machine(), panel.lab.page
    panel.changes = 90
    panel.show(answer)
    events = sum(
        len(lane["changes"])
        for gpu in recorded.past(answer, 1e6, changes=90)["gpus"]
        for lane in gpu["lanes"]
    )
    panel.open_past()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # not what other processes take

    def worked() -> float:
        return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}[
            "TaskDuration"
        ]

    times = []
    for window in ("10 min", "1 h") * 4:
        before = worked()
        page.evaluate(CHOOSE, window)
        times.append(round(1000 * (worked() - before), 1))
    print(f"{events} events; the page's main thread worked {times} ms for each picture")
    panel.root.locator("#jp-affinode-section-past").click()
    page.unroute_all()
    assert events >= 2000
    assert statistics.median(times[1:]) < DRAWN_MS


def test_a_real_notebook_that_is_freed_and_comes_back_is_seen_without_another_request(page):
    ended = page.open_notebook("ended.ipynb", lab_cells.allocate(32))
    assert "allocated" in ended.run_cell(0)
    page.clear_up()
    notebook = page.open_notebook("lane.ipynb", lab_cells.allocate(32), lab_cells.READ)
    assert "allocated" in notebook.run_cell(0)
    page.show_panel()
    section = page.panel.locator(HISTORY)
    heading = section.locator("#jp-affinode-section-past")
    if heading.get_attribute("aria-expanded") == "true":  # a test before has opened it
        heading.click()
    with page.page.expect_response("**/affinode/api/past*"):
        heading.click()
    lane = section.locator(".jp-affinode-lane").filter(has_text="lane.ipynb")
    expect(lane.locator(".jp-mod-resident")).to_have_attribute("d", re.compile("M"))
    asked = []
    page.page.on("request", lambda request: asked.append(request.url) if "/past" in request.url else None)
    page.command("affinode:park", kernelId=notebook.kernel_id())
    expect(lane.locator(".jp-mod-parked")).to_have_attribute("d", re.compile("M"))
    assert "7 7" in notebook.run_cell(1)
    page.show_panel()
    expect(lane.locator(".jp-mod-resident")).to_have_attribute("d", re.compile("M.*M"))
    section.get_by_role("application").focus()
    for _ in range(section.locator("[data-lane]").count()):  # those of kernels that have ended come first
        page.page.keyboard.press("ArrowDown")
    expect(readout(section)).to_contain_text("lane.ipynb")
    expect(readout(section)).to_contain_text(re.compile("a cell needed it|you turned to the notebook"))
    assert asked == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_panel_with_its_last_hour_fits_into_a_picture(sized, theme):
    """The picture of README: a notebook, and beside it the machine now and an hour back."""
    sized.theme(THEMES[theme])
    sized.page.set_viewport_size({"width": 1200, "height": 900})
    sized.open_notebook(f"training-{theme}.ipynb", "model = train(model, epochs=10)", lab_cells.CPU)
    panel = RecordedPanel(sized)
    shown = recorded.states()["resident"]["kernels"]
    panel.changes = 5
    panel.show(recorded.machine([kernel for kernel in shown if kernel["own"]]))
    panel.widen(360)
    section = panel.open_past()
    section.scroll_into_view_if_needed()
    expect(section.get_by_role("application")).to_be_in_viewport(ratio=0.9)
    sized.picture(f"lab-past-{theme}")
    sized.theme(THEMES["light"])
    sized.page.unroute_all()

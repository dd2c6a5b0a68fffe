"""A JupyterLab that shows recorded answers of the server, and what its parts look like, measured (`looks.js`)."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import recorded
from lab_page import LabPage, Notebook
from playwright.sync_api import Locator, Route, expect

import jupyter_affinode

# Ends once the page has the answer to a question that it asks from now on.
ANSWERED = """async () => {
    const app = window.jupyterapp;
    const tokens = [...app.pluginRegistry._services.keys()];
    const token = tokens.find(({ name }) => name === 'jupyter-affinode:IAffinode');
    await (await app.resolveOptionalService(token)).refresh();
}"""
# What the server's status answers with where it fails; 0: it does not answer, and what is shown is from before.
FAILURES = {"stale": 0, "missing": 404, "refused": 403}
LOOKS = Path(__file__).with_name("looks.js")
ZOOMED = {"width": 320, "height": 640}  # what is left of 1280 pixels at 400 %
THEMES = {
    "light": "JupyterLab Light",
    "dark": "JupyterLab Dark",
    "contrast": "JupyterLab Dark High Contrast",
}
PANEL = "#jp-affinode-panel"
RUNNING = ".jp-RunningSessions-section:has(.jp-affinode-running)"
AROUND = ".jp-affinode-chip, .jp-affinode-popover, .jp-affinode-banner, .jp-affinode-statusButton"
CONTROLS = ".jp-affinode-line, button[class*='jp-affinode'], .jp-affinode button"


class RecordedPanel:
    """A panel that shows recorded answers of the server."""

    def __init__(self, lab_page: LabPage, answer: Callable[[], dict[str, Any]] | None = None):
        self.lab = lab_page
        self.answer = recorded.machine([])
        self.changes = 6  # of each kernel in the last hour
        self._status = 200
        self._looks = 0
        self._made = answer or (lambda: self.answer)
        lab_page.page.route("**/affinode/api/status*", self._answer)
        lab_page.page.route("**/affinode/api/past*", self._answer_past)
        lab_page.page.route("**/affinode/api/kernels/*/activity*", self._answer_activity)
        lab_page.show_panel()
        self.root = lab_page.panel

    def show(self, answer: dict) -> None:
        """Show an answer, with nothing hovered or focused."""
        self.answer, self._status = copy.deepcopy(answer), 200
        page = self.lab.page
        self.root.get_by_role("button", name="Refresh").first.click()
        page.evaluate(ANSWERED)  # a response that is seen now may be that to a question of before
        if answer["node"] and answer["version"] == jupyter_affinode.__version__:
            expect(self.root.get_by_role("alert")).to_have_count(0)
        page.mouse.move(900, 700)
        page.evaluate("() => document.activeElement.blur()")
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")

    def look_again(self) -> None:
        """Have the page ask for the answer, and leave the focus where it is."""
        self.root.locator("[data-control=refresh]").dispatch_event("click")

    def each(self, states: dict[str, dict[str, Any]]) -> Iterator[str]:
        """Show one after the other; their names."""
        for name, answer in states.items():
            self.show(answer)
            yield name

    def _answer(self, route: Route) -> None:
        if self._status:
            made, now = self._made(), time.monotonic()
            kernels = [{**kernel, "as_of_s": now} for kernel in made["kernels"]]
            route.fulfill(status=self._status, json={**made, "kernels": kernels})
        else:
            route.abort()

    def _answer_activity(self, route: Route) -> None:
        self._looks += 1
        route.fulfill(json=recorded.activity(self._looks))

    def _answer_past(self, route: Route) -> None:
        seconds = float(parse_qs(urlsplit(route.request.url).query)["seconds"][0])
        route.fulfill(json=recorded.past(self.answer, time.time(), seconds=seconds, changes=self.changes))

    def open_past(self) -> Locator:
        """Open the last hour, also where a test before looked at another time in this page; its section."""
        section = self.root.locator(".jp-affinode-history")
        heading = section.locator("#jp-affinode-section-past")
        if heading.get_attribute("aria-expanded") == "false":
            heading.click()
        section.get_by_role("button", name="1 h", exact=True).click()
        expect(heading).to_have_text("The last hour")
        expect(section.get_by_role("application")).to_be_visible()
        sums = section.locator(".jp-affinode-historySums")
        expect(sums).not_to_have_text("Looking…")  # the picture may be that of another time until then
        return section

    def fail(self, failure: str) -> None:
        """Have the server fail, by its name in FAILURES."""
        self._status = FAILURES[failure]
        self.look_again()
        expect(self.root.get_by_role("alert")).to_be_visible()

    def each_failure(self) -> Iterator[str]:
        """Show one after the other what a server's failures leave of a full panel; their names."""
        for name in FAILURES:
            self.show(recorded.states()["resident"])
            self.fail(name)
            yield name

    def open_calls(self, answer: dict[str, Any]) -> None:
        """Show an answer, and the CUDA calls of its first kernel."""
        self.show(answer)
        row = self.open_details(answer["kernels"][0])
        row.get_by_role("button", name="CUDA calls").click()
        expect(row.get_by_role("table")).to_have_count(2)

    def open_details(self, kernel: dict[str, Any]) -> Locator:
        """Open a kernel's row, unless a test before has opened it in this page; the row."""
        row = self.root.locator(f"[data-kernel-id='{kernel['id']}']")
        caret = row.get_by_role("button", name="Details of")
        if caret.get_attribute("aria-expanded") == "false":
            caret.click()
        return row

    def widen(self, width: int) -> None:
        """Pull the sidebar's edge."""
        self.lab.widen_panel(width)

    def show_around(self, notebook: Notebook, answer: dict[str, Any]) -> None:
        """Show an answer whose first kernel is an open notebook's: in panel, chip, banner and status bar."""
        first = json.dumps(answer["kernels"][0]["id"])
        self.show(json.loads(json.dumps(answer).replace(first, json.dumps(notebook.kernel_id()))))
        if answer["kernels"][0]["residency"] in ("queued", "lost"):
            expect(notebook.banner()).to_be_visible()

    def show_popover(self, notebook: Notebook, answer: dict[str, Any]) -> None:
        """Show an answer about an open notebook in the chip's popover, too."""
        self.show_around(notebook, answer)
        if not notebook.popover().is_visible():
            notebook.chip().click()
        expect(notebook.popover()).to_be_visible()


class Looks:
    """Measures what is shown."""

    def __init__(self, lab_page: LabPage):
        self.page = lab_page.page
        self.page.add_script_tag(path=LOOKS)
        self._session = self.page.context.new_cdp_session(self.page)
        self._session.send("DOM.enable")
        self._session.send("CSS.enable")

    def pairs(self, selector: str) -> list[dict[str, Any]]:
        """Each text, and each part of a picture that says something, with its contrast."""
        return self.page.evaluate("selector => affinodeLooks.pairs(selector)", selector)

    def troubles(self, selector: str) -> list[str]:
        """Texts that are cut off, beside the page or on each other."""
        return self.page.evaluate("selector => affinodeLooks.troubles(selector)", selector)

    def hover(self, is_hovered: bool) -> None:
        """Have all controls look as under the mouse, or no longer."""
        root = self._session.send("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
        found = self._session.send("DOM.querySelectorAll", {"nodeId": root, "selector": CONTROLS})
        classes = ["hover"] if is_hovered else []
        for node in found["nodeIds"]:
            arguments = {"nodeId": node, "forcedPseudoClasses": classes}
            self._session.send("CSS.forcePseudoState", arguments)

"""A person at JupyterLab, in a real browser: what they see of a notebook's GPU, and what they click."""

from __future__ import annotations

import re
import time
from pathlib import Path

import nbformat
from live_server import JupyterServer
from playwright.sync_api import Error, Locator, Page, expect
from waiting import wait_until

SLOW_MS = 60_000
expect.set_options(timeout=SLOW_MS)
NUMBER_OR_NONE = re.compile(r"^\[[ \d]+\]:$")


class LabPage:
    """One browser page at a JupyterLab."""

    def __init__(self, page: Page, server: JupyterServer, screenshots: Path):
        self.page = page
        self.server = server
        self.screenshots = screenshots
        self.errors: list[Error] = []
        page.set_default_timeout(SLOW_MS)
        page.on("pageerror", lambda error: self.errors.append(error))

    def load(self, path: str = "lab?reset&") -> None:
        """Open JupyterLab in a fresh workspace, or a page of Notebook 7 ("tree?"), and wait until it is there."""
        self.page.goto(f"{self.server.url}/{path}token={self.server.token}")
        self.wait_for_lab()

    def wait_for_lab(self) -> None:
        """Wait until JupyterLab has restored its layout and given the focus away: to the launcher that it opens
        where nothing else is open, some time after the rest. Before, a sidebar that is opened may be closed again,
        and what has the focus may lose it.
        """
        self.page.wait_for_function("() => window.jupyterapp !== undefined")
        self.page.evaluate("() => window.jupyterapp.restored.then(() => undefined)")
        self.page.wait_for_function(
            "() => window.jupyterapp.name !== 'JupyterLab' || document.activeElement !== document.body"
        )

    def command(self, name: str, **arguments: object) -> None:
        """Execute a command of JupyterLab."""
        self.page.evaluate(
            "async ([name, args]) => { await window.jupyterapp.commands.execute(name, args); }",
            [name, arguments],
        )

    def set(self, plugin: str, setting: str, value: object) -> None:
        """Change a setting of a JupyterLab plugin as the person does."""
        self.page.evaluate(
            """async ([plugin, setting, value]) => {
                const app = window.jupyterapp;
                const tokens = [...app.pluginRegistry._services.keys()];
                const registry = tokens.find(token => token.name.endsWith(':ISettingRegistry'));
                await (await app.resolveOptionalService(registry)).set(plugin, setting, value);
            }""",
            [plugin, setting, value],
        )

    # Notebooks

    def write_notebook(self, path: str, *cells: str) -> None:
        """Write a notebook of these cells."""
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
        file = self.server.machine.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(made, file)

    def open_notebook(self, path: str, *cells: str) -> Notebook:
        """Write a notebook of these cells, open it and wait for its kernel."""
        self.write_notebook(path, *cells)
        self.command("docmanager:open", path=path)
        notebook = Notebook(self, path)
        notebook.wait_for_kernel()
        return notebook

    def clear_up(self) -> None:
        """Close every notebook and notice, and wait until their kernels are gone."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.locator(".jp-Notification-Toast-Close").evaluate_all(
            "buttons => buttons.forEach(button => button.click())"
        )
        expect(self.notices()).to_have_count(0)
        self.page.evaluate(
            """async () => {
                const { serviceManager, shell } = window.jupyterapp;
                for (const widget of [...shell.widgets('main')]) {
                    await widget.context?.save();
                    widget.close();
                }
                await serviceManager.sessions.shutdownAll();
            }"""
        )
        deadline = time.monotonic() + SLOW_MS / 1000
        while any(kernel["processes"] for kernel in self.server.machine.kernels().values()):
            assert time.monotonic() < deadline, self.server.machine.kernels()
            self.page.wait_for_timeout(50)

    # The panel

    @property
    def panel(self) -> Locator:
        """The GPU panel."""
        return self.page.locator("#jp-affinode-panel")

    def show_panel(self) -> Locator:
        """Open the panel as a person does, by its icon; it takes the focus as soon as it is drawn."""
        if not self.panel.is_visible():
            self.page.locator("li[data-id='jp-affinode-panel']").click()
            expect(self.panel.locator(":focus")).to_have_count(1)
        expect(self.panel).to_be_visible()
        return self.panel

    def hide_panel(self) -> None:
        """Close the panel by its icon."""
        self.page.locator("li[data-id='jp-affinode-panel']").click()
        expect(self.panel).to_be_hidden()

    def widen_panel(self, width: int) -> None:
        """Pull the sidebar's edge."""
        box = self.panel.bounding_box()
        mouse = self.page.mouse
        mouse.move(box["x"] + box["width"] + 1, 500)
        mouse.down()
        mouse.move(box["x"] + width + 1, 500, steps=4)
        mouse.up()

    def row(self, name: str) -> Locator:
        """A kernel's row, by the name of its notebook."""
        return self.panel.get_by_role("listitem").filter(
            has=self.page.locator(".jp-affinode-name").get_by_text(name, exact=True)
        )

    def opened_row(self, name: str) -> Locator:
        """The row of the notebook in front, which shows its details by itself once it has GPU memory."""
        row = self.row(name)
        expect(row.get_by_role("button", name=f"Details of {name}")).to_have_attribute(
            "aria-expanded", "true"
        )
        return row

    def state_of(self, name: str) -> Locator:
        """The plain words of a kernel's state."""
        return self.row(name).locator(".jp-affinode-state")

    def button(self, name: str, label: str) -> Locator:
        """A button in a kernel's row; those of a closed row are there while the mouse or the focus is."""
        self.row(name).locator(".jp-affinode-line").hover()
        return self.row(name).get_by_role("button", name=f"{label}: {name}")

    def gpu_bar(self) -> Locator:
        """The bar of the GPU's memory, as a screen reader says it."""
        return self.panel.get_by_role("img", name="GPU memory")

    def ram_bar(self) -> Locator:
        """The bar of the host's memory."""
        return self.panel.get_by_role("img", name="RAM")

    # The rest of the page

    def notices(self) -> Locator:
        """The notices that are shown now."""
        return self.page.locator(".Toastify__toast")

    def announced(self) -> Locator:
        """What screen readers were told last."""
        return self.page.locator("body > [role=status]")

    def status_item(self) -> Locator:
        """The GPU in JupyterLab's status bar."""
        return self.page.locator(".jp-affinode-statusButton")

    def theme(self, name: str) -> None:
        """Switch to "JupyterLab Light" or "JupyterLab Dark", and wait until JupyterLab's splash has faded.

        A theme that is changed while the splash of the change before fades lets JupyterLab remove the splash
        twice, which is an uncaught NotFoundError of "removeChild" (JupyterLab 4.6, apputils-extension).
        """
        self.command("apputils:change-theme", theme=name)
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-name", name)
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)

    def picture(self, name: str, **options: object) -> Path:
        """Save a screenshot; its path."""
        path = self.screenshots / f"{name}.png"
        self.page.screenshot(path=path, animations="disabled", **options)
        return path


class Notebook:
    """One open notebook."""

    def __init__(self, lab: LabPage, path: str):
        self.lab = lab
        self.path = path
        self.name = path.rsplit("/", 1)[-1]

    @property
    def _panel(self) -> Locator:
        tab = self.lab.page.locator(".jp-mod-mainArea-tab, .lm-TabBar-tab").filter(has_text=self.name)
        panel_id = tab.first.get_attribute("data-id")
        return self.lab.page.locator(f"[id='{panel_id}']")

    def activate(self) -> Locator:
        """Bring it to the front, by its tab."""
        panel = self._panel
        if not panel.is_visible():
            self.lab.page.get_by_role("tab", name=self.name).click()
        expect(panel).to_be_visible()
        return panel

    def wait_for_kernel(self) -> None:
        """Wait until the page talks with the kernel; a cell that is run before is lost."""
        self.lab.page.evaluate(
            """async path => {
                for (const widget of window.jupyterapp.shell.widgets('main')) {
                    if (widget.context?.path === path) {
                        await widget.context.ready;
                        await widget.sessionContext.ready;
                        await widget.sessionContext.session.kernel.info;
                    }
                }
            }""",
            self.path,
        )

    def chip(self) -> Locator:
        """The button that shows the GPU state."""
        return self.activate().locator(".jp-affinode-chip")

    def popover(self) -> Locator:
        """What a click on the chip opens."""
        return self.lab.page.get_by_role("dialog", name="GPU of this notebook")

    def choose(self, action: str) -> None:
        """Click a button of the chip's popover, and close it."""
        self.chip().click()
        self.popover().get_by_role("button", name=f"{action}: {self.name}").click()
        self.lab.page.keyboard.press("Escape")
        expect(self.popover()).to_have_count(0)

    def banner(self) -> Locator:
        """What stands above the notebook while it waits."""
        return self._panel.locator(".jp-affinode-banner")

    def start_cell(self, index: int) -> Locator:
        """Run a cell as a person does, and wait only until it runs."""
        cell = self.activate().locator(".jp-CodeCell").nth(index)
        cell.locator(".cm-content").click()
        expect(cell.locator(".cm-editor.cm-focused")).to_be_visible()
        self.lab.page.keyboard.press("Control+Enter")
        return cell

    def start_computing(self, index: int, done: Path) -> None:
        """Run a cell of `lab_cells.compute_until`, and wait until it uses the GPU: it was idle before."""
        self.start_cell(index)
        wait_until(done.with_suffix(".begun").exists, message="the cell computes")

    def run_cell(self, index: int, timeout_s: float = 60) -> str:
        """Run a cell and wait for its end; what it wrote."""
        cell = self.activate().locator(".jp-CodeCell").nth(index)
        expect(cell.locator(".jp-InputPrompt")).to_have_text(NUMBER_OR_NONE)
        before = cell.locator(".jp-InputPrompt").inner_text()
        self.start_cell(index)
        self.wait_for_cell(index, before, timeout_s)
        return self.output(index)

    def wait_for_cell(self, index: int, before: str = "", timeout_s: float = 60) -> None:
        """Wait until a cell has a number that it did not have before, and does not say that it waits.

        A thread of the kernel takes that back, now and then after the cell's end.
        """
        self.lab.page.wait_for_function(
            """([prompt, before]) => /^\\[\\d+\\]:$/.test(prompt.innerText) && prompt.innerText !== before &&
                !prompt.closest('.jp-CodeCell').innerText.includes('Waiting for the GPU')""",
            arg=[
                self._panel.locator(".jp-CodeCell").nth(index).locator(".jp-InputPrompt").element_handle(),
                before,
            ],
            timeout=timeout_s * 1000,
        )

    def output(self, index: int) -> str:
        """What a cell wrote."""
        outputs = self._panel.locator(".jp-CodeCell").nth(index).locator(".jp-OutputArea-output")
        return "".join(outputs.all_inner_texts()).strip()

    def kernel_id(self) -> str:
        """The Jupyter id of its kernel."""
        sessions = self.lab.server.request("GET", "/api/sessions")[1]
        return next(session["kernel"]["id"] for session in sessions if session["path"] == self.path)

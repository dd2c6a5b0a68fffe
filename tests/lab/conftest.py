"""Tests in a real browser: Chromium, a JupyterLab with this checkout's extension, and a person at it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from built_lab import wait_for_its_build
from lab_page import LabPage
from lab_server import BUILT, REPOSITORY, VIEWPORT, start_lab
from live_browser import chromium
from live_machine import new_machine
from live_server import JupyterServer
from playwright.sync_api import Browser, Error

SOURCES = ("labextension/src", "labextension/style", "labextension/schema", "package.json")
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test failed, for the picture that is taken then."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def labextension() -> Path:
    """The built extension; fails where it is older than its sources, so that yesterday's is not tested."""
    wait_for_its_build()
    manifest = BUILT / "package.json"
    if not manifest.exists():
        pytest.fail(f"{BUILT} is not built: run `jlpm install && jlpm build:prod`", pytrace=False)
    paths = [path for source in SOURCES for path in [REPOSITORY / source, *(REPOSITORY / source).rglob("*")]]
    newest = max((path for path in paths if path.is_file()), key=lambda path: path.stat().st_mtime)
    if newest.stat().st_mtime > manifest.stat().st_mtime:
        pytest.fail(f"{newest} is newer than the built extension: run `jlpm build:prod`", pytrace=False)
    return BUILT


class Opened:
    """What the tests of this folder that run one after the other share: Chromium, and a person at a JupyterLab."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._browser: Browser | None = None
        self._page: LabPage | None = None

    def browser(self) -> Browser:
        """The system's Chromium."""
        if self._browser is None:
            self._browser = self._open.enter_context(chromium())
        return self._browser

    def page(self, labextension: Path, screenshots: Path) -> LabPage:
        """A page at a JupyterLab on a machine of 256 MiB whose controller parks what is idle for a second."""
        if self._page is None:
            machine = self._open.enter_context(new_machine())
            machine.simulate(memory="256MiB")
            machine.environment["AFFINODE_SIM_CONTEXT"] = "8MiB"
            server = JupyterServer(machine)
            start_lab(server, labextension, "--AffinodeExtension.idle_timeout_s=1")
            self._open.callback(server.stop)
            context = self.browser().new_context(viewport=VIEWPORT)
            self._open.callback(context.close)
            self._page = LabPage(context.new_page(), server, screenshots)
            self._page.load()
        return self._page

    def close(self) -> None:
        """End it all; what is asked for next is new."""
        self._browser = self._page = None
        self._open.close()


OPENED = Opened()


def assert_none_uncaught(errors: list[Error]) -> None:
    """Fail if the page left an error uncaught.

    One of JupyterLab's own does not count: whenever a kernel has changed, it asks the server how notebooks can be
    exported, and it does not catch that the server is away.
    """
    stacks = [error.stack or str(error) for error in errors]
    uncaught = [stack for stack in stacks if "fetchExportFormats" not in stack]
    assert not uncaught, f"uncaught in the page: {uncaught}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Close what is shared after the last test here, as no test of this process can use asyncio while Playwright
    runs; and after one that failed, which may have left anything behind.
    """
    try:
        return (yield)
    finally:
        is_last = nextitem is None or nextitem.path.parent != item.path.parent
        if is_last or item.stash.get(FAILED, False):
            OPENED.close()


@pytest.fixture
def browser() -> Browser:
    """The system's Chromium."""
    return OPENED.browser()


@pytest.fixture(scope="module")
def nothing_shared() -> None:
    """For a module with a Chromium of its own: a process can have one Playwright."""
    OPENED.close()


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """Takes the place of pytest-jupyter's: this process has Playwright's event loop and can have no other."""


@pytest.fixture
def lab(server: JupyterServer, labextension: Path) -> Callable[..., JupyterServer]:
    """`lab(*arguments)` starts JupyterLab on the machine."""
    return lambda *arguments: start_lab(server, labextension, *arguments)


@pytest.fixture
def page(
    request: pytest.FixtureRequest,
    native: Path,
    labextension: Path,
    screenshots: Path,
    wait_until: Callable[..., object],
) -> Iterator[LabPage]:
    """The shared page (`Opened.page`), where a kernel is parked only for one that needs room. Afterwards its
    notebooks are closed; give each a name of its own.
    """
    page = OPENED.page(labextension, screenshots)
    wait_until(page.server.machine.node)
    page.errors.clear()
    yield page
    if request.node.stash.get(FAILED, False):
        print(f"what the page looked like: {page.picture(f'failed-{request.node.name}')}")
    page.clear_up()
    assert_none_uncaught(page.errors)


@pytest.fixture
def sized(page: LabPage) -> Iterator[LabPage]:
    """The shared page, which a test may make as narrow as it likes."""
    yield page
    page.page.set_viewport_size(VIEWPORT)


@pytest.fixture
def policy(page: LabPage) -> Iterator[Callable[..., None]]:
    """`policy(park_when="idle", …)`: change the controller's settings for this test."""
    machine = page.server.machine
    before = machine.ask("GET", "/policy")[1]

    def change(**settings: object) -> None:
        status, answer = machine.ask("PATCH", "/policy", settings)
        assert status == 200, answer

    yield change
    change(**before)


@pytest.fixture
def open_lab(
    request: pytest.FixtureRequest, browser: Browser, server: JupyterServer, screenshots: Path
) -> Iterator[Callable[..., LabPage]]:
    """`open_lab(width=…, height=…)`: a person at the running JupyterLab; an uncaught error in the page
    fails the test. With `clock=True` the test can let the page's time pass (`page.clock.run_for`).
    """
    opened: list[LabPage] = []

    def start(
        width: int = VIEWPORT["width"],
        height: int = VIEWPORT["height"],
        clock: bool = False,
        at: JupyterServer | None = None,
        **path: str,
    ) -> LabPage:
        context = browser.new_context(viewport={"width": width, "height": height})
        page = LabPage(context.new_page(), at or server, screenshots)
        if clock:
            page.page.clock.install()
        opened.append(page)
        page.load(**path)
        return page

    yield start
    errors = [error for page in opened for error in page.errors]
    for page in opened:
        if request.node.stash.get(FAILED, False):
            name = f"failed-{request.node.name}-{opened.index(page) + 1}"
            print(f"what the page looked like: {page.picture(name)}")
        page.page.context.close()
    assert_none_uncaught(errors)


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go: the folder that AFFINODE_SCREENSHOTS names, or a temporary one."""
    named = os.environ.get("AFFINODE_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder

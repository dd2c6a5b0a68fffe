"""Prints how many requests and bytes per minute the Lab's GPU part costs.

A real JupyterLab in Chromium, a real server and controller, real kernels on the simulated GPU. Counted is what Chromium
says of `affinode/api` requests (on the wire, headers included) and of our events on the server's WebSocket (before its
compression, if any). JupyterLab's own polls are printed beside it. `busy`: each kernel runs a cell every
`--every` seconds.

    python tests/lab/traffic.py --kernels 4 30
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import lab_cells  # noqa: E402
from lab_page import LabPage  # noqa: E402
from lab_server import BUILT, VIEWPORT, start_lab  # noqa: E402
from live_browser import chromium  # noqa: E402
from live_machine import new_machine  # noqa: E402
from live_server import JupyterKernel, JupyterServer  # noqa: E402
from playwright.sync_api import Browser, CDPSession  # noqa: E402

OURS, EVENTS = "/affinode/api/", "jupyter_affinode"


@dataclass
class Traffic:
    """What Chromium reports of a page's network."""

    requests: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    _kinds: dict[str, str] = field(default_factory=dict)

    def follow(self, session: CDPSession) -> None:
        """Count from now on."""
        session.send("Network.enable")
        session.on("Network.requestWillBeSent", self._asked)
        session.on("Network.loadingFinished", self._loaded)
        session.on("Network.webSocketFrameReceived", self._framed)

    def clear(self) -> None:
        """Begin anew."""
        self.requests.clear()
        self.received.clear()

    def _asked(self, event: dict[str, Any]) -> None:
        kind = "ours" if OURS in event["request"]["url"] else "JupyterLab's"
        self._kinds[event["requestId"]] = kind
        self.requests[kind] += 1

    def _loaded(self, event: dict[str, Any]) -> None:
        kind = self._kinds.pop(event["requestId"], "JupyterLab's")
        self.received[kind] += int(event["encodedDataLength"])

    def _framed(self, event: dict[str, Any]) -> None:
        payload = event["response"]["payloadData"]
        if EVENTS in payload:
            self.requests["events"] += 1
            self.received["events"] += len(payload)


class Cells:
    """Runs a cell in each kernel now and then, in a thread."""

    def __init__(self, kernels: list[JupyterKernel], every_s: float):
        self._kernels, self._every_s = kernels, every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.ran = 0

    def _run(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            for number, kernel in enumerate(self._kernels):
                kernel.run(lab_cells.READ)
                self.ran += 1
                due = began + self._every_s * (number + 1) / len(self._kernels)
                if self._end.wait(max(0.0, due - time.monotonic())):
                    return

    def __enter__(self) -> Cells:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@contextlib.contextmanager
def lab_with_kernels(browser: Browser, count: int) -> Iterator[tuple[LabPage, list[JupyterKernel]]]:
    """A page at a JupyterLab whose server has so many kernels on the GPU; two notebooks are open."""
    with new_machine() as machine:
        machine.simulate(memory="4GiB")
        machine.environment["AFFINODE_SIM_CONTEXT"] = "8MiB"
        server = JupyterServer(machine)
        start_lab(server, BUILT)
        kernels = [server.start_kernel(path=f"work/notebook-{number}.ipynb") for number in range(count)]
        for kernel in kernels:
            assert kernel.run(lab_cells.allocate(8)).error is None
        page = LabPage(browser.new_context(viewport=VIEWPORT).new_page(), server, Path(tempfile.gettempdir()))
        page.load()
        yield page, kernels
        page.page.context.close()
        server.stop()


def measure(page: LabPage, traffic: Traffic, what: str, seconds: float) -> None:
    """Count for a while and print it, per minute."""
    page.page.wait_for_timeout(3_000)  # what led here
    traffic.clear()
    page.page.wait_for_timeout(seconds * 1000)
    part = 60 / seconds
    cells = []
    for kind in ("ours", "events", "JupyterLab's"):
        count, size = traffic.requests[kind] * part, traffic.received[kind] * part / 1000
        cells.append(f"{kind} {count:5.1f} {size:7.1f} KB")
    print(f"{what:36} " + "   ".join(cells), flush=True)


def traffic_of(browser: Browser, count: int, seconds: float, every_s: float) -> None:
    """Hidden and open, without and with the last hour, quiet and busy."""
    with lab_with_kernels(browser, count) as (page, kernels):
        traffic = Traffic()
        traffic.follow(page.page.context.new_cdp_session(page.page))
        measure(page, traffic, f"{count} kernels, hidden", seconds)
        page.show_panel()
        page.panel.get_by_role("listitem").nth(count - 1).wait_for()
        measure(page, traffic, f"{count} kernels, open", seconds)
        page.panel.locator("#jp-affinode-section-past").click()
        page.panel.get_by_role("application").wait_for()
        measure(page, traffic, f"{count} kernels, open, last hour", seconds)
        with Cells(kernels, every_s) as cells:
            measure(page, traffic, f"{count} kernels, open, last hour, busy", seconds)
            page.panel.locator("#jp-affinode-section-past").click()
            measure(page, traffic, f"{count} kernels, open, busy", seconds)
            page.hide_panel()
            measure(page, traffic, f"{count} kernels, hidden, busy", seconds)
        print(f"    ({cells.ran} cells)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", type=int, nargs="+", default=[4, 30])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=20, help="seconds between two cells of a busy kernel")
    arguments = parser.parse_args()
    print("per minute: requests or events, and KB received")
    with chromium() as browser:
        for count in arguments.kernels:
            traffic_of(browser, count, arguments.seconds, arguments.every)


if __name__ == "__main__":
    main()

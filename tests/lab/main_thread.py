"""Prints how long a page's main thread is at work each second, with many active kernels.

    python tests/lab/main_thread.py --kernels 50

A real JupyterLab in Chromium; the status is recorded, each kernel's counter of CUDA calls grows with each answer, and
each kernel's cell begins or ends every ten seconds, told by real events of the server. Chromium's TaskDuration is
compared with that of the same page with the last hour open, whose panel is hidden, and whose kernels are quiet.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import recorded  # noqa: E402
from lab_page import LabPage  # noqa: E402
from lab_server import BUILT, VIEWPORT, start_lab  # noqa: E402
from live_browser import chromium  # noqa: E402
from live_machine import new_machine  # noqa: E402
from live_server import JupyterServer  # noqa: E402
from recorded_page import RecordedPanel  # noqa: E402

from jupyter_affinode.server.events import KERNEL_RESIDENCY, residency_data  # noqa: E402

BETWEEN_EVENTS_S = 10.0  # of one kernel


class ActiveKernels:
    """Kernels on eight GPUs, whose cells begin and end, and which call CUDA all the time."""

    def __init__(self, count: int):
        self.kernels = [
            recorded.resident(number, 3, gpu=number % 8, cell_open=True, idle_s=0.1)
            for number in range(count)
        ]
        self._next = 0

    def answer(self) -> dict[str, Any]:
        """The status now."""
        for number, kernel in enumerate(self.kernels):
            kernel["calls"] += 1000 + 137 * number
        return recorded.machine(self.kernels, gpus=8)

    def emit(self, server: JupyterServer) -> None:
        """Have the server tell that the next kernel's cell began or ended."""
        kernel = self.kernels[self._next]
        before = dict(kernel)
        kernel["cell_open"] = not kernel["cell_open"]
        data = residency_data(before, kernel)
        body = {"schema_id": KERNEL_RESIDENCY, "version": "1", "data": data}
        status, answer = server.request("POST", "/api/events", body)
        assert status == 204, answer
        self._next = (self._next + 1) % len(self.kernels)


def busy_ms(page: LabPage, seconds: float, active: ActiveKernels | None) -> dict[str, float]:
    """Milliseconds per second of all tasks, and of scripts, style and layout among them."""
    session = page.page.context.new_cdp_session(page.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # not what other processes take

    def figures() -> dict[str, float]:
        found = session.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in found}

    before, began = figures(), time.monotonic()
    while time.monotonic() < began + seconds:
        if active is None:
            page.page.wait_for_timeout(1000)
        else:
            active.emit(page.server)
            page.page.wait_for_timeout(1000 * BETWEEN_EVENTS_S / len(active.kernels))
    after, lasted_s = figures(), time.monotonic() - began
    return {
        name: 1000 * (after[name] - before[name]) / lasted_s
        for name in ("TaskDuration", "ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
    }


def live_mib(page: LabPage) -> float:
    """What the page's scripts hold, without what can be collected."""
    session = page.page.context.new_cdp_session(page.page)
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    return float(session.send("Runtime.getHeapUsage")["usedSize"]) / (1 << 20)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument(
        "--minutes", type=int, default=0, help="of looking at the last hour, with its memory each minute"
    )
    arguments = parser.parse_args()
    with chromium() as browser, new_machine() as machine:
        machine.simulate(memory="256MiB")
        server = JupyterServer(machine)
        start_lab(server, BUILT)
        page = LabPage(browser.new_context(viewport=VIEWPORT).new_page(), server, Path(tempfile.gettempdir()))
        page.load()
        page.page.wait_for_timeout(5_000)
        quiet = busy_ms(page, arguments.seconds, None)
        active = ActiveKernels(arguments.kernels)
        panel = RecordedPanel(page, active.answer)
        panel.root.get_by_role("listitem").nth(arguments.kernels - 1).wait_for()
        page.page.wait_for_timeout(5_000)
        shown = busy_ms(page, arguments.seconds, active)
        panel.answer = active.answer()
        panel.open_past()
        page.page.wait_for_timeout(5_000)
        with_past = busy_ms(page, arguments.seconds, active)
        for minute in range(arguments.minutes):
            print(f"minute {minute}: {live_mib(page):.1f} MiB of live objects", flush=True)
            busy_ms(page, 60, active)
        page.hide_panel()
        hidden = busy_ms(page, arguments.seconds, active)
        count = arguments.kernels
        for what, found in (
            ("panel hidden, no kernels", quiet),
            (f"panel open, {count} active kernels", shown),
            ("the same with the last hour", with_past),
            (f"panel hidden, {count} active kernels", hidden),
        ):
            parts = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
            print(f"{what:36} ms per second: {parts}", flush=True)
        page.page.context.close()
        server.stop()


if __name__ == "__main__":
    main()

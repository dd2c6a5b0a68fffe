"""A machine with a simulated GPU and a real server, as the story tests see it."""

from __future__ import annotations

import time
from typing import Any

from live_machine import Machine
from live_server import JupyterKernel, JupyterServer
from story_cells import SETUP


class Stage:
    """A simulated machine, its server, and what is asked about them again and again."""

    def __init__(self, machine: Machine, server: JupyterServer):
        self.machine = machine
        self.server = server

    def kernel(self, path: str | None = None, name: str = "python3") -> JupyterKernel:
        """A kernel that has `gpu` of gpu_cells.py."""
        kernel = self.server.start_kernel(name, path)
        self.ok(kernel, SETUP)
        return kernel

    def ok(self, kernel: JupyterKernel, code: str, timeout: float = 60) -> str:
        """Run a cell that must succeed; what it printed."""
        done = kernel.run(code, timeout)
        assert done.status == "ok", "\n".join(done.traceback)
        return done.text.strip()

    def seen(self, kernel: JupyterKernel) -> dict[str, Any]:
        """The kernel as the controller sees it; {} when nobody does."""
        return self.machine.kernel(kernel.id) or {}

    def residency(self, kernel: JupyterKernel) -> str:
        return str(self.seen(kernel).get("residency", "unknown"))

    def wait(self, kernel: JupyterKernel, residency: str, timeout: float = 10) -> float:
        """Wait until the kernel is in a residency; seconds it took."""
        began = time.monotonic()
        while self.residency(kernel) != residency:
            if time.monotonic() - began > timeout:
                raise AssertionError(
                    f"not {residency} after {timeout} s: {self.seen(kernel)}\n{self.machine.controller_log()}"
                )
            time.sleep(0.02)
        return time.monotonic() - began

    def park(self, kernel: JupyterKernel) -> None:
        """Park now, by the command line's own request."""
        for _ in range(20):
            status, answer = self.machine.ask("POST", f"/kernels/{kernel.id}/park", {})
            if status == 200:
                return
            assert answer["error"] == "busy", answer
            time.sleep(0.05)
        raise AssertionError(answer)

"""A machine with a simulated GPU and a real server, as the story tests see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_board import FaultBoard
from live_machine import Machine
from live_server import JupyterKernel, JupyterServer
from story_cells import SETUP
from waiting import wait_until

from jupyter_affinode.settings.policy import MIB

# A quarter of the default margin beside a small GPU: filling, checking and digesting memory is what costs time here.
SMALL: dict[str, Any] = {"memory": "64MiB", "context": "2MiB", "margin_bytes": 16 * MIB}
# A cell: so many MiB that a park moves, written on the GPU, since a throttled rate is that of a cell's own copies, too.
MORE = """
more = ok(cu.cuMemAlloc({mib} << 20)); ok(cu.cuMemsetD8(more, 7, {mib} << 20)); ok(cu.cuCtxSynchronize())
"""
# Half of it passes before the server signals a kernel that does not end by itself.
PATIENT = "--KernelManager.shutdown_wait_time=80"
# A kernel that a signal ends does not come to it.
LEAVES = "import atexit, pathlib; atexit.register(pathlib.Path('left').touch)"


class Stage:
    """A simulated machine, its server, and what is asked about them again and again."""

    def __init__(self, machine: Machine, server: JupyterServer, board: FaultBoard):
        self.machine = machine
        self.server = server
        self.board = board
        self._policy: dict[str, Any] | None = None

    @classmethod
    def set(
        cls,
        machine: Machine,
        memory: str = "1GiB",
        context: str = "8MiB",
        copy_rate: str | None = None,
        gpus: int = 1,
        arguments: tuple[str, ...] = (),
        **traits: Any,
    ) -> Stage:
        """Start a server with these traits and other arguments on a machine with simulated GPUs."""
        machine.simulate(memory, gpus, copy_rate)
        board = FaultBoard(machine.folder / "board")
        machine.environment["AFFINODE_SIM_FAULT_BOARD"] = str(board.path)
        machine.environment["AFFINODE_SIM_CONTEXT"] = context
        ours = [f"--AffinodeExtension.{name}={value}" for name, value in traits.items()]
        return cls(machine, JupyterServer(machine).start(*ours, *arguments), board)

    def kernel(self, path: str | None = None, name: str = "python3") -> JupyterKernel:
        """A kernel that has `gpu` of gpu_cells.py."""
        kernel = self.server.start_kernel(name, path)
        self.ok(kernel, SETUP)
        return kernel

    def ok(self, kernel: JupyterKernel, code: str, timeout: float = 120) -> str:
        """Run a cell that must succeed; what it printed."""
        done = kernel.run(code, timeout)
        assert done.status == "ok", "\n".join(done.traceback)
        return done.text.strip()

    def seen(self, kernel: JupyterKernel) -> dict[str, Any]:
        """The kernel as the controller sees it; {} when there is none."""
        return self.machine.kernel(kernel.id) or {}

    def residency(self, kernel: JupyterKernel) -> str:
        return str(self.seen(kernel).get("residency", "unknown"))

    def until(self, condition: Callable[[], Any], timeout: float = 120) -> None:
        """Wait for a condition."""
        wait_until(condition, timeout, self._account)

    def _account(self) -> str:
        return f"{self.machine.kernels()} on {self.machine.node()}\n{self.machine.controller_log()}"

    def wait(self, kernel: JupyterKernel, residency: str) -> None:
        """Wait until the kernel is in a residency."""
        self.until(lambda: self.residency(kernel) == residency)

    def park(self, kernel: JupyterKernel) -> None:
        """Park now, by the command line's own request; right after a cell the kernel may be busy for a moment."""
        self.until(lambda: self.machine.ask("POST", f"/kernels/{kernel.id}/park", {})[0] == 200)

    def hold(self, kernel: JupyterKernel) -> None:
        """Keep it on the GPU. Before it allocates: where little is free then, an idle kernel is parked at once."""
        self.until(
            lambda: self.machine.ask("POST", f"/kernels/{kernel.id}/hold", {"duration_s": 600})[0] == 200
        )

    def policy(self, **settings: Any) -> None:
        """Change the controller's settings until `clear_up`."""
        self.until(self.machine.node)
        before = self.machine.ask("GET", "/policy")[1]
        self._policy = self._policy or before
        status, answer = self.machine.ask("PATCH", "/policy", settings)
        assert status == 200, answer

    def clear_up(self) -> None:
        """Shut the kernels down, and leave folder and settings as they were."""
        for kernel in self.server.kernels:
            kernel.close()
            self.server.request("DELETE", kernel.path)
        self.server.kernels.clear()
        for left in self.machine.work.iterdir():
            if left.is_file():
                left.unlink()
        if self._policy is not None:
            self.machine.ask("PATCH", "/policy", self._policy)
            self._policy = None
        self.until(lambda: not self.machine.kernels())


def end(s: Stage, kernel: JupyterKernel, action: str) -> None:
    """Restart or shut down a kernel of a patient server that ran `LEAVES`; it ends by itself, with its exit hooks."""
    left = Path(s.machine.work, "left")
    left.unlink(missing_ok=True)
    if action == "restart":
        status, answer = s.server.request("POST", f"{kernel.path}/restart")
        assert status == 200, answer
    else:
        status, answer = s.server.request("DELETE", kernel.path)
        assert status == 204, answer
    assert left.exists(), "it was ended by a signal"

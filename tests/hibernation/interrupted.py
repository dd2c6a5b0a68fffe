"""A request to a keeper that stops on its way, and what is to be true afterwards."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from lone_kernel import LoneKernel, Refused
from waiting import wait_until


@dataclass
class Request:
    """A request to the keeper, on a thread of its own."""

    kernel: LoneKernel
    what: str
    refusal: str | None = None
    error: OSError | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        try:
            self.kernel.ask(self.what, kernel=self.kernel.id, store=str(self.kernel.store))
        except Refused as refused:
            self.refusal = str(refused)
        except OSError as error:
            self.error = error

    def end(self) -> None:
        """Wait for its answer."""
        self.thread.join(timeout=120)
        assert not self.thread.is_alive(), self.kernel.log()


def begin_and_stop(kernel: LoneKernel, step: str) -> Request:
    """Ask for it, and wait until it has come to a step."""
    what, _, where = step.partition(": ")
    if where.startswith("midst"):
        kernel.stop_at("")
        action = "dump" if what == "hibernate" else "restore"
        (kernel.folder / "stop-criu").write_text(f"{action} {kernel.pid}")
    else:
        kernel.stop_at(step)
    request = Request(kernel, what)
    wait_until(lambda: kernel.is_stopped() or not request.thread.is_alive(), 60, kernel.log)
    assert kernel.is_stopped(), f"{request.refusal}\n{kernel.log()}"
    return request


def see_that_all_is_well(kernel: LoneKernel) -> None:
    """Wherever it is now: nothing is lost, and it hibernates and wakes as ever."""
    if kernel.machine.node() is None:
        kernel.machine.start_controller("--settle=0")
    kernel.start_keeper()
    where = wait_until(lambda: settled(kernel), 60, kernel.log)
    if where == "image":
        kernel.wake()
    kernel.check()
    kernel.hibernate()
    kernel.wake()
    kernel.check()


def settled(kernel: LoneKernel) -> str | None:
    """Where the kernel is, once the keeper has seen to what was left: nothing half is there."""
    where = kernel.place()
    if where == "process" and kernel.image.exists() and not (kernel.image / "woken.json").exists():
        names = {
            path.name for path in kernel.image.iterdir() if not path.name.startswith(f"gpu-{kernel.pid}.")
        }
        return where if names <= {"in-use"} else None  # the rest is for the next time
    return where

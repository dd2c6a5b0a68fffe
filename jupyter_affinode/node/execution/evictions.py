"""Kernels that their own Jupyter servers are to shut down, for others (`when_full="terminate_newest"`) or by request.

The controller ends no process. The kernel's JSON tells that its end is asked and why; the server that described the
kernel carries it out and tells the user. That is a state and no message, so that nothing is lost when a server
reconnects. It is withdrawn as soon as no kernel waits for it any more, since a user's results are not lost for nothing.
A server that does not do it is not asked again for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ..model.snapshot import Residency
from ..state.records.kernel import KernelRecord

SERVER_TAKES_S = 60.0  # a shutdown that is not clean lasts 10 s in Jupyter Server
NOT_AGAIN_S = 300.0
ALL_ARE_BACK_S = 10.0  # after a controller's start: the waiter and the server may reconnect after the kernel


def ask_for_end(
    kernel: KernelRecord, reason: str, for_kernel: str | None, now: float, log: logging.Logger
) -> None:
    """Have the kernel's server shut it down, for another kernel that waits, or without one."""
    kernel.ending.reason, kernel.ending.asked_at, kernel.ending.for_kernel = reason, now, for_kernel
    kernel.ending.used_gpu = bool(kernel.processes)
    kernel.ending.is_recalled = False
    log.warning("the server of %s is asked to shut it down: %s", kernel.id, reason)


def withdraw_ends(
    kernels: Mapping[str, KernelRecord], now: float, log: logging.Logger, on_change: Callable[[], None]
) -> None:
    """Withdraw ends that no waiter needs any more, and give up on servers that have not carried them out."""
    for kernel in kernels.values():
        if kernel.ending.reason is None:
            continue
        if kernel.ending.used_gpu and not kernel.processes:
            kernel.ending.reason = None  # it is done; the same kernel may be started again
        elif kernel.ending.is_recalled and now - kernel.ending.asked_at < ALL_ARE_BACK_S:
            continue
        elif kernel.ending.for_kernel is not None and not _waits(kernels.get(kernel.ending.for_kernel)):
            log.info("%s goes on: no kernel waits for its end any more", kernel.id)
            kernel.ending.reason = None
            on_change()
        elif not (kernel.server.pid or kernel.server.origin) or now - kernel.ending.asked_at > SERVER_TAKES_S:
            log.warning("%s was not shut down by its server: it goes on", kernel.id)
            kernel.ending.reason = None
            kernel.ending.backoff.wait(now, NOT_AGAIN_S)
            on_change()


def end_shown(kernel: KernelRecord, kernels: Mapping[str, KernelRecord]) -> str | None:
    """Return why the kernel is to end, as its server is told; None if it is not.

    An end that an earlier controller asked for counts only once the waiter has connected: it may have given up
    meanwhile.
    """
    is_sure = (
        not kernel.ending.is_recalled
        or kernel.ending.for_kernel is None
        or _waits(kernels.get(kernel.ending.for_kernel))
    )
    return kernel.ending.reason if is_sure else None


def _waits(kernel: KernelRecord | None) -> bool:
    """Return whether a kernel still waits for room on a GPU."""
    if kernel is None or kernel.residency is Residency.RESUMING:
        return False
    rooms = (room for process in kernel.connected() for room in process.allocations.values())
    return kernel.wants_since is not None or any(room.granted_at is None for room in rooms)

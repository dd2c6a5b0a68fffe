"""Host memory that a kernel is given for a park, and what it is told to give back: budgets, lots, releases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ....settings.policy import MIB
from ...link.connection import Connection
from ...model.snapshot import SLAB_BYTES
from ...policy.resources.host_memory import LEAST_BYTES
from ...protocol.wire import MOVE_BUDGET_SHIFT, CommandKind, Reply, Status
from ...system.host_memory import HostMemory
from ...system.lot_memory import Lot
from ..records.kernel import KernelRecord
from ..records.process import Process
from .host_usage import TRIM_UNHEARD_S, has_gpu_memory, holders, may_take_anew, readers, trimmable
from .lots import Borrower, LotStock

# With what the driver keeps beside it once it is registered (shim/src/host/slab_populate.c).
SLAB_TAKES_BYTES = SLAB_BYTES + SLAB_BYTES // 256


def budget_argument(kernel: KernelRecord, process: Process, targets: Sequence[Process]) -> int:
    """Return the argument of PARK: the process's part of the kernel's budget, by what it may need.

    Shims take whole slabs, and count what the driver keeps beside each once it is registered. That comes out of the
    margin beside the reserve, so that a park begins wherever its contents fit.
    """
    needs = {target.key: may_take_anew(kernel, target) for target in targets}
    share = int(kernel.host.budget_bytes * (needs[process.key] / sum(needs.values())))
    kernel.host.shares[process.key] = share
    budget = math.ceil(share // SLAB_BYTES * SLAB_TAKES_BYTES / MIB)
    return max(budget, 1) << MOVE_BUDGET_SHIFT  # 0 would be no limit; in a MiB there is room for nothing


def give_lots(kernel: KernelRecord, size: int, stock: LotStock) -> None:
    """Lend lots of `size` bytes to the processes that are about to be told to park."""
    if sum(process.data.retained_bytes for process in kernel.processes.values()) <= SLAB_BYTES:
        forget_trim(kernel)  # else what is lent now would count as on its way back
    targets = [process for process in trimmable(kernel) if has_gpu_memory(process)]
    needs = {process.key: may_take_anew(kernel, process) for process in targets}
    for process in targets:
        share = math.ceil(size * (needs[process.key] / sum(needs.values())))
        connection = process.connection
        if connection is None:
            continue
        stock.give(_borrower(process, connection), share)


def give_lots_to_read(kernel: KernelRecord, size: int, stock: LotStock) -> None:
    """Lend lots of `size` bytes to the processes that are about to be told to read from disk."""
    for process in readers(kernel):
        share = min(size, process.data.disk_bytes)
        if process.connection is not None and share:
            stock.give(_borrower(process, process.connection), share)
            size -= share


def promise_lots(process: Process, size: int, stock: LotStock) -> None:
    """Reserve lots for a process whose park is under way, lent as they come; a `size` of 0 ends that.

    No process gets more than it has on the GPU, as NVML confirms it, beside lots that are full of what is parked
    already.
    """
    connection = process.connection
    if connection is None or not size:
        return stock.end_promise(process.key)
    if process.verified_bytes is not None:
        parked = sum(gpu.parked_bytes for gpu in process.data.gpus)
        size = min(size, process.verified_bytes - max(stock.held_bytes(process.key) - parked, 0))
    stock.promise(_borrower(process, connection), size)


def _borrower(process: Process, connection: Connection) -> Borrower:
    def lend(number: int, lot: Lot) -> None:
        connection.command(CommandKind.LOT, request=number, argument=lot.bytes, descriptor=lot.descriptor)

    def forget(lot: Lot) -> None:
        connection.command(CommandKind.LOT_FORGET, descriptor=lot.descriptor)

    return Borrower(
        process.key,
        connection.watch,
        forget,
        lend,
        pid=process.pid,
        user=connection.identity.charged_user or "",
        most_bytes=process.verified_bytes,
    )


def make_room_beside_lots(kernel: KernelRecord, budget_bytes: int, stock: LotStock, host: HostMemory) -> None:
    """Free unused lots so that there is room for what the kernel's park probably takes beside its lots."""
    held = stock.held_bytes
    takes = sum(may_take_anew(kernel, process, held(process.key)) for process in holders(kernel))
    takes = min(takes, budget_bytes)
    if takes > 0:
        stock.make_room(takes, host)


def learn_from_park(kernel: KernelRecord, replies: Mapping[int, Reply]) -> bool:
    """Record what a park would have taken, so that it is not tried again before there is more.

    Return whether some process found less host memory than it was allowed to take: then there is less than we know of.
    """
    record, found_less = kernel.host, False
    record.short.clear()
    for key, reply in replies.items():
        if reply.status is Status.NO_HOST_ROOM and key in kernel.processes:
            process = kernel.processes[key]
            least = process.data.retained_bytes + record.shares.get(key, 0) + SLAB_BYTES
            # Memory is taken by whole slabs, of which one may be of no use: what just fits would not.
            slabs = -(-reply.bytes // SLAB_BYTES) + 1
            record.short[key] = slabs * SLAB_BYTES if reply.bytes else least
            found_less = found_less or not reply.bytes or record.short[key] <= least
    record.short_activity = max((process.last_activity for process in kernel.processes.values()), default=0.0)
    record.shares.clear()
    return found_less


def refused_for_memory(kernel: KernelRecord, now: float, found_less_than: int | None) -> float:
    """Record a park refused for lack of host memory; return the seconds until that is mentioned again.

    Until then unlikely parks are not tried; one that will do is tried as soon as there is memory for it.
    `found_less_than`: the bytes that were there by all that we know, where its processes found less.
    """
    kernel.host.left_bytes = found_less_than
    return kernel.host.backoff.fail(now)


def try_with_more(kernel: KernelRecord, left_bytes: int) -> None:
    """Allow a park at once if there is more host memory than when the kernel's processes found too little."""
    then = kernel.host.left_bytes
    if then is not None and left_bytes >= then + LEAST_BYTES:
        kernel.host.left_bytes, kernel.failures.park.retry_at = None, 0.0


def forget_trim(kernel: KernelRecord) -> None:
    """Forget what a kernel was asked to release before it was moved."""
    kernel.host.trim_at, kernel.host.trim_keep_bytes = -math.inf, 0


def trim(kernel: KernelRecord, keep_bytes: int, reason: str, now: float) -> None:
    """Tell the kernel's processes to retain no more than `keep_bytes` together, the one that retains most first."""
    retained = sum(process.data.retained_bytes for process in kernel.processes.values())
    is_behind = (
        retained > kernel.host.trim_keep_bytes + SLAB_BYTES and now - kernel.host.trim_at < TRIM_UNHEARD_S
    )
    if not is_behind:  # else its time runs on: it has not released yet what it was asked for before
        kernel.host.trim_at = now
    kernel.host.trim_keep_bytes = keep_bytes
    too_much = retained - keep_bytes
    for process in sorted(trimmable(kernel), key=lambda process: -process.data.retained_bytes):
        gives = min(too_much, process.data.retained_bytes)
        if gives > 0 and process.connection is not None:
            keeps = process.data.retained_bytes - gives
            process.connection.command(CommandKind.TRIM, argument=keeps, reason=reason)
            too_much -= gives

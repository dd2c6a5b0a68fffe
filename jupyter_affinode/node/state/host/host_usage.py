"""Host memory of one kernel, between its pages and the policy: budgets, releases, and lessons of failed parks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ....settings.policy import MIB
from ...link.connection import Connection
from ...model.snapshot import SLAB_BYTES, HostUse
from ...policy.resources.host_memory import LEAST_BYTES
from ...protocol.page import Depth, State
from ...protocol.wire import MOVE_BUDGET_SHIFT, CommandKind, Reply, Status
from ...system.host_memory import HostMemory
from ...system.lot_memory import Lot
from ..records.kernel import KernelRecord
from ..records.operations import Phase
from ..records.process import Process
from .lots import Borrower, LotStock

TRIM_TAKES_S = 2.0  # memory that a kernel was told to release is counted on for that long
TRIM_AGAIN_S = 10.0  # until the same kernel is asked for more
TRIM_UNHEARD_S = 60.0  # a kernel that did not release what it was asked for is not asked for that long
# With what the driver keeps beside it once it is registered (shim/src/host/slab_populate.c).
SLAB_TAKES_BYTES = SLAB_BYTES + SLAB_BYTES // 256
TRIMS_IN = (State.RESIDENT, State.PARKED, State.QUEUED)


def host_use(kernel: KernelRecord, last_activity: float, lots_held: Mapping[int, int], now: float) -> HostUse:
    """Return the kernel's host memory for the snapshot. `lots_held`: the bytes of lots that each process was given on
    its link, by its key.
    """
    processes = kernel.processes.values()
    retained = sum([process.data.retained_bytes for process in processes])
    asked = now - kernel.host.trim_at
    promised = max(retained - kernel.host.trim_keep_bytes, 0)
    releases = _released_lots(kernel, lots_held) if asked < TRIM_TAKES_S else 0
    lots = sum([_lot_bytes(process, lots_held.get(process.key, 0)) for process in processes])
    givable = sum([process.data.retained_bytes for process in _trimmable(kernel)]) if retained else 0
    if asked < TRIM_AGAIN_S:
        givable = min(givable, kernel.host.trim_keep_bytes)
    if TRIM_TAKES_S <= asked < TRIM_UNHEARD_S and promised > SLAB_BYTES:
        givable = 0  # others would wait for what only a page claims
    if kernel.move is not None:
        givable = 0
    holders = _holders(kernel)
    takes = [_takes(process) for process in holders]
    copies, on_disk = copy_bytes(kernel), on_disk_bytes(kernel)
    return HostUse(
        retained_bytes=retained,
        trimmable_bytes=givable,
        trimming_bytes=max(promised, releases) if asked < TRIM_TAKES_S else 0,
        retained_since=kernel.residency_since,
        lot_bytes=lots - releases,
        park_takes_bytes=sum(filter(None, takes)) if None not in takes else None,
        park_short_bytes=sum(kernel.host.short.values())
        if last_activity <= kernel.host.short_activity
        else 0,
        budget_bytes=kernel.host.budget_bytes if kernel.move is not None else None,
        retry_at=kernel.host.backoff.retry_at,
        copy_bytes=copies,
        disk_bytes=on_disk,
        spilling_bytes=spilling_bytes(kernel),
        reading_bytes=reading_bytes(kernel),
        **(_may_spill(kernel, now) if copies or on_disk else {}),
    )


def _released_lots(kernel: KernelRecord, lots_held: Mapping[int, int]) -> int:
    """Return the lots that come back from a kernel which was told to retain nothing: one by one, after its page shows
    that nothing is retained in them.
    """
    if kernel.host.trim_keep_bytes:
        return 0
    resident = (each for each in _trimmable(kernel) if each.data.state is State.RESIDENT)
    return sum(lots_held.get(process.key, 0) for process in resident)


def _lot_bytes(process: Process, held: int) -> int:
    """Return the bytes of lots that a process has, `held` of them lent on its link.

    What it gave back a moment ago may still be on its page: a park that counted on it would find nothing there.
    """
    return held + min(max(process.data.lot_bytes - held, 0), process.earlier_lot_bytes)


def copy_bytes(kernel: KernelRecord) -> int:
    """Return the host memory that its processes have for parked contents."""
    return sum([process.data.copy_bytes for process in kernel.processes.values()])


def awaits_bytes(kernel: KernelRecord, promised: Mapping[int, int]) -> int:
    """Return the lots reserved for its park, less its part of what the waiter hands over. `promised`: by process."""
    own = sum(promised.get(key, 0) for key in kernel.processes)
    exchange = kernel.move.exchange if kernel.move is not None else None
    comes = exchange.kernel.move if exchange is not None else None
    if not own or exchange is None or comes is None or comes.exchange is not exchange:
        return own
    in_all = sum(promised.get(key, 0) for park in exchange.parks for key in park.kernel.processes)
    return max(own - copy_bytes(comes.kernel) * own // in_all, 0)


def parks_take_bytes(kernels: Iterable[KernelRecord]) -> int:
    """Return the host memory that the parks under way, and what is read back from disk, may still take by
    themselves.
    """
    takes = 0
    for each in kernels:
        takes += reading_bytes(each)
        if each.park is not None:
            most = sum(max(each.resident_bytes - _ready_bytes(each), 0) for each in _holders(each))
            takes += min(each.host.budget_bytes, most)
    return takes


def _ready_bytes(process: Process, held: int = 0) -> int:
    """Return what a process has for its park: what it retains, or empty lots, `held` bytes of them lent just now."""
    data = process.data
    return max(data.retained_bytes, max(data.lot_bytes, held) - data.copy_bytes)


def _may_spill(kernel: KernelRecord, now: float) -> dict[str, int]:
    """Return what the kernel can be told to write to disk, to drop there, or to read back."""
    transfer, retry_at = (
        kernel.disk_transfer,
        max(kernel.host.spill_backoff.retry_at, kernel.host.spills_after),
    )
    is_tried = transfer is not None and transfer.problem is not None
    if now < retry_at or is_tried or kernel.hibernation.reason is not None:
        return {}
    return {
        "spillable_bytes": spillable_bytes(kernel),
        "disk_retained_bytes": sum(process.data.disk_bytes for process in with_copy_on_disk(kernel)),
        "readable_bytes": sum(_on_disk(process) for process in readers(kernel)),
    }


def spillable_bytes(kernel: KernelRecord) -> int:
    """Return what its processes have in host memory of parked contents, and can write to disk."""
    return sum(map(_spillable, spillers(kernel)))


def _spillable(process: Process) -> int:
    """Return what it has to be spilled: no more than it has of host memory, whatever its page claims."""
    most = process.data.copy_bytes
    return most if process.host_bytes is None else min(most, process.host_bytes)


def with_copy_on_disk(kernel: KernelRecord) -> list[Process]:
    """Return the resident processes that retain a copy on disk for their next park."""
    resident = (each for each in kernel.connected() if each.data.state is State.RESIDENT)
    return [process for process in resident if process.data.disk_bytes]


def spillers(kernel: KernelRecord) -> list[Process]:
    """Return the processes whose parked contents can be written to disk."""
    return [process for process in kernel.connected() if process.is_parked]


def readers(kernel: KernelRecord) -> list[Process]:
    """Return the processes that can read parked contents from disk into host memory."""
    return [
        process
        for process in kernel.connected()
        if process.is_parked and process.data.depth is not Depth.CONTEXT
    ]


def on_disk_bytes(kernel: KernelRecord) -> int:
    """Return what its processes have on disk by their pages, capped at their memory."""
    return sum(map(_on_disk, kernel.processes.values()))


def _on_disk(process: Process) -> int:
    if not process.data.disk_bytes:
        return 0
    memory_bytes = sum(gpu.resident_bytes + gpu.parked_bytes for gpu in process.data.gpus)
    return min(process.data.disk_bytes, memory_bytes)


def spilling_bytes(kernel: KernelRecord) -> int:
    """Return what it was told to write to disk and has not yet; 0 once the spill was told to end."""
    if kernel.hibernation.reason is not None and kernel.operation is None:
        return spillable_bytes(kernel)
    return _left_to_move(kernel, reads=False)


def reading_bytes(kernel: KernelRecord) -> int:
    """Return what it was told to read from disk into host memory and has not yet."""
    return _left_to_move(kernel, reads=True)


def _left_to_move(kernel: KernelRecord, *, reads: bool) -> int:
    transfer = kernel.disk_transfer
    if transfer is None or transfer.phase is Phase.ABORTING or transfer.reads is not reads:
        return 0
    more_on_disk = on_disk_bytes(kernel) - transfer.before_bytes
    return max(transfer.asked_bytes - max(-more_on_disk if reads else more_on_disk, 0), 0)


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
    targets = [process for process in _trimmable(kernel) if has_gpu_memory(process)]
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
        share = min(size, _on_disk(process))
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
    takes = sum(may_take_anew(kernel, process, held(process.key)) for process in _holders(kernel))
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


def look_for_more(kernel: KernelRecord, left_bytes: int) -> None:
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
    for process in sorted(_trimmable(kernel), key=lambda process: -process.data.retained_bytes):
        gives = min(too_much, process.data.retained_bytes)
        if gives > 0 and process.connection is not None:
            keeps = process.data.retained_bytes - gives
            process.connection.command(CommandKind.TRIM, argument=keeps, reason=reason)
            too_much -= gives


def has_gpu_memory(process: Process) -> bool:
    """Return whether it has movable memory on a GPU, by its page and by NVML where that was looked at."""
    return bool(process.resident_bytes) and process.verified_bytes != 0


def _trimmable(kernel: KernelRecord) -> list[Process]:
    """Return the processes that can release retained copies: for the next park, or, parked, from their last move."""
    return [
        process
        for process in kernel.connected()
        if process.data.state in TRIMS_IN and process.data.depth is not Depth.CONTEXT
    ]


def _holders(kernel: KernelRecord) -> list[Process]:
    return [process for process in kernel.processes.values() if process.resident_bytes]


def may_take_anew(kernel: KernelRecord, process: Process, held: int = 0) -> int:
    """Return what a park of the process probably takes beside what it has for that (`Kernel.takes_bytes`); at least a
    byte.
    """
    takes = kernel.host.short.get(process.key) or _takes(process) or process.resident_bytes
    return max(takes - _ready_bytes(process, held), 1)


def _takes(process: Process) -> int | None:
    """Return what parking a process takes, by its last park; memory added since counts in full. None: unknown."""
    if process.data.last_park is None:
        return None
    last_bytes, _ = process.data.last_park
    took = max(last_bytes - process.data.last_park_zero_bytes, 0)
    return min(took + max(process.resident_bytes - last_bytes, 0), process.resident_bytes)

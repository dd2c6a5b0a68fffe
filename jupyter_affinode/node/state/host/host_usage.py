"""Host memory of one kernel as the policy sees it, by the pages of its processes and by what they were told last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...model.snapshot import SLAB_BYTES, HostUse
from ...protocol.page import Depth, State
from ..records.kernel import KernelRecord
from ..records.operations import Phase
from ..records.process import Process

TRIM_TAKES_S = 2.0  # memory that a kernel was told to release is counted on for that long
TRIM_AGAIN_S = 10.0  # until the same kernel is asked for more
TRIM_UNHEARD_S = 60.0  # a kernel that did not release what it was asked for is not asked for that long
TRIMS_IN = (State.RESIDENT, State.PARKED, State.QUEUED)


def host_use(kernel: KernelRecord, last_activity: float, lots_held: Mapping[int, int], now: float) -> HostUse:
    """Return the kernel's host memory for the snapshot. `lots_held`: the bytes of lots that each process was given on
    its link, by its key.
    """
    processes = kernel.processes.values()
    retained = sum([process.data.retained_bytes for process in processes])
    asked = now - kernel.host.trim_at
    takes_now = sum([process.retained_bytes for process in processes])
    promised = max(takes_now - kernel.host.trim_keep_bytes, 0)
    releases = _released_lots(kernel, lots_held) if asked < TRIM_TAKES_S else 0
    lots = sum([_lot_bytes(process, lots_held.get(process.key, 0)) for process in processes])
    givable = sum([process.retained_bytes for process in trimmable(kernel)]) if retained else 0
    if asked < TRIM_AGAIN_S:
        givable = min(givable, kernel.host.trim_keep_bytes)
    if TRIM_TAKES_S <= asked < TRIM_UNHEARD_S and promised > SLAB_BYTES:
        givable = 0  # others would wait for what only a page claims
    if kernel.move is not None:
        givable = 0
    takes = [takes_bytes(process) for process in holders(kernel)]
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
    resident = (each for each in trimmable(kernel) if each.data.state is State.RESIDENT)
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
            most = sum(max(each.resident_bytes - _ready_bytes(each), 0) for each in holders(each))
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
        "readable_bytes": sum(process.data.disk_bytes for process in readers(kernel)),
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
    """Return what its processes have on disk by their pages."""
    return sum([process.data.disk_bytes for process in kernel.processes.values()])


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


def has_gpu_memory(process: Process) -> bool:
    """Return whether it has movable memory on a GPU, by its page and by NVML where that was looked at."""
    return bool(process.resident_bytes) and process.verified_bytes != 0


def trimmable(kernel: KernelRecord) -> list[Process]:
    """Return the processes that can release retained copies: for the next park, or, parked, from their last move."""
    return [
        process
        for process in kernel.connected()
        if process.data.state in TRIMS_IN and process.data.depth is not Depth.CONTEXT
    ]


def holders(kernel: KernelRecord) -> list[Process]:
    return [process for process in kernel.processes.values() if process.resident_bytes]


def may_take_anew(kernel: KernelRecord, process: Process, held: int = 0) -> int:
    """Return what a park of the process probably takes beside what it has for that (`Kernel.takes_bytes`); at least a
    byte.
    """
    takes = kernel.host.short.get(process.key) or takes_bytes(process) or process.resident_bytes
    return max(takes - _ready_bytes(process, held), 1)


def takes_bytes(process: Process) -> int | None:
    """Return what parking a process takes, by its last park; memory added since counts in full. None: unknown."""
    if process.data.last_park is None:
        return None
    last_bytes, _ = process.data.last_park
    took = max(last_bytes - process.data.last_park_zero_bytes, 0)
    return min(took + max(process.resident_bytes - last_bytes, 0), process.resident_bytes)

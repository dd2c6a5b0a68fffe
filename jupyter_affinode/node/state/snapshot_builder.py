"""Makes the snapshot from the records and the processes' pages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from ..model.snapshot import Gpu, HostUse, Kernel, Node, Reservation, Residency, RoomRequest
from ..protocol.page import Depth, PageGpu, State, UnmovableReason
from .gpus.context_depth import freed_with_context, kernel_needs, open_gpus, other_gpus
from .gpus.gpu_processes import bear_out
from .gpus.gpu_table import GpuTable
from .gpus.transfer_speeds import park_copies, resume_copies
from .host.host_usage import awaits_bytes, host_use, on_disk_bytes
from .records.kernel import KernelRecord
from .records.operations import ResumeMove
from .records.ownership import entitlements_of
from .records.process import Process
from .registry import NodeState
from .room_requests import RequestedRoom

Fields = dict[str, Any]  # some of a `Kernel`'s, by name

FAILED_GRANTS_MAX = 5  # an allocation that failed this often although there was room …
FAILING_AFTER_S = 3.0  # … for so long, will fail again


class Sorted(NamedTuple):
    """A kernel's processes, as often as a picture asks for them, and their memory together."""

    all: list[Process]
    linked: list[Process]
    using: list[Process]  # those that have used CUDA
    holders: list[Process]  # those with memory that can be moved
    by_gpu: dict[str, PageGpu]

    @classmethod
    def of(cls, kernel: KernelRecord) -> Sorted:
        """Return those of a kernel."""
        processes = list(kernel.processes.values())
        return cls(
            processes,
            kernel.connected(),
            [process for process in processes if process.data.state is not State.NONE],
            [process for process in processes if process.data.resident_bytes],
            kernel.by_gpu(),
        )

    @property
    def is_alone(self) -> bool:
        """Return whether it has one process, and is not parked at context depth."""
        return len(self.using) == 1 and self.using[0].data.depth is not Depth.CONTEXT


def snapshot(state: NodeState, now: float, *, is_settled: bool, is_complete: bool = True) -> Node:
    """Return the snapshot for a decision; `now` in monotonic seconds."""
    failed = state.failed_parks
    bear_out(
        state.kernels.values(),
        state.gpus.measured,
        lambda kernel: failed.is_remembered(kernel.account.charged_user, now),
    )
    are_open = open_gpus(state.processes(), state.gpus, state.settings)
    if state.settings.share_dir:
        state.sharing.look(state.kernels.values())
    kernels = tuple(
        _kernel(state, kernel, are_open, now)
        for kernel in state.kernels.values()
        if kernel.processes and kernel.residency is not Residency.HIBERNATED
    )
    if not is_complete:
        kernels = tuple(_undescribed(state, seen, now) for seen in kernels)
    state.pauses.learn(kernels, now)
    reservations = [
        Reservation(entry.kernel_id, entry.gpu, entry.bytes, entry.is_taken(now))
        for entry in state.reservations.entries
    ]
    gpus = state.gpus.snapshot(now)
    requests = tuple(
        _requested_room(state, each, gpus, reservations) for each in state.room_requests.values()
    )
    return Node(
        gpus,
        kernels + requests,
        state.host.picture(state.kernels.values(), now),
        tuple(reservations),
        is_settled,
        is_complete,
        state.speeds.by_gpu(),
        state.last_served.seen(),
        state.pauses.lengths_s,
    )


def kernel_picture(state: NodeState, kernel: KernelRecord, now: float) -> Kernel | None:
    """Return one kernel as its pages that were read last show it; None without processes, or as these leave."""
    if not kernel.processes or kernel.residency is Residency.HIBERNATED:
        return None
    return _kernel(state, kernel, open_gpus(state.processes(), state.gpus, state.settings), now)


def _kernel(state: NodeState, kernel: KernelRecord, are_open: frozenset[str], now: float) -> Kernel:
    """Return a kernel that has processes. `are_open`: the GPUs that kernels may migrate to."""
    processes, user = Sorted.of(kernel), kernel.account.charged_user
    said = kernel.server.description
    hibernates = said is not None and said.hibernate_after_s is not None  # mostly not: each call counts
    last_activity = max([process.last_activity for process in processes.all])
    may_park_context = state.context_objection(kernel) is None
    goes_alone = kernel.move is not None and not (kernel.park and kernel.park.action.to_context)
    frees_context = may_park_context and not goes_alone
    return Kernel(
        id=kernel.id,
        residency=kernel.residency,
        may_park_context=may_park_context,
        context_frees_bytes=freed_with_context(kernel, state.gpus) if frees_context else {},
        migration_targets=other_gpus(kernel, are_open, state.gpus, now),
        cgroups=kernel.cgroups,
        host=_host_use(state, kernel, last_activity, now),
        demoted_until=state.failed_parks.until(user),
        served_after=state.unused_room.until(user),
        disk_return_s=_disk_return_s(kernel, state.host.disk.read_bytes_per_s),
        may_share=bool(state.settings.share_dir) and state.sharing.next_of(kernel, now) is not None,
        **_memory(kernel, processes, state.gpus),
        **_use(kernel, processes, last_activity),
        **_state(state, kernel, processes, now),
        **_request_fields(state, kernel, now),
        **entitlements_of(kernel, state.settings)._asdict(),
        **(_hibernation_fields(kernel, now) if hibernates else {}),
    )


def _undescribed(state: NodeState, seen: Kernel, now: float) -> Kernel:
    """Return a kernel that no server has described as one to leave alone, while servers may not have connected yet.

    What they report of its cell, and of an opt-out, matters.
    """
    if state.kernels[seen.id].server.description is not None:
        return seen
    return replace(seen, retry_at=max(seen.retry_at, now + state.settings.settle_s))


def _requested_room(
    state: NodeState, request: RequestedRoom, gpus: dict[str, Gpu], reservations: list[Reservation]
) -> Kernel:
    """Return a request for room as a kernel: on a GPU that has the room now, else on the likeliest one."""
    user = request.record.account.charged_user
    free = {uuid: gpu.free_bytes for uuid, gpu in gpus.items()}
    for reserved in reservations:
        free[reserved.gpu] = free.get(reserved.gpu, 0) - reserved.bytes
    needs = request.bytes + state.settings.margin_bytes
    request.gpu = next((uuid for uuid in request.gpus if free.get(uuid, 0) >= needs), request.gpus[0])
    room = RoomRequest((-request.number, 0), request.gpu, request.bytes, request.since, is_for_start=True)
    return Kernel(
        id=request.id,
        residency=Residency.NONE,
        rooms=(room,),
        served_after=max(state.unused_room.until(user), state.asked_room.until(user)),
        **entitlements_of(request.record, state.settings)._asdict(),
    )


def _is_untold(state: NodeState, kernel: KernelRecord, now: float) -> bool:
    """Return whether its page shows a park that no command told it, nor one of an earlier controller's."""
    is_earlier = now <= state.pages_say_since_until
    return kernel.residency is Residency.PARKING and kernel.move is None and not is_earlier


def _disk_return_s(kernel: KernelRecord, bytes_per_s: float) -> float:
    """Return how long reading a parked kernel's memory back from disk takes."""
    if kernel.residency not in (Residency.PARKED, Residency.QUEUED, Residency.RESUMING):
        return 0.0
    return on_disk_bytes(kernel) / bytes_per_s


def _memory(kernel: KernelRecord, processes: Sorted, gpus: GpuTable) -> Fields:
    """Return where its memory is, by GPU, and what moving that copies."""
    uses = processes.by_gpu
    resident, unmovable, left = _on_gpus(kernel, gpus)
    beside = {uuid: size - uses[uuid].parked_bytes for uuid, size in kernel_needs(kernel).items()}
    return {
        "resident_bytes": resident,
        "left_bytes": left,
        "parked_bytes": {uuid: gpu.parked_bytes for uuid, gpu in uses.items()},
        "context_bytes": beside if any(beside.values()) else {},
        "unmovable_bytes": {uuid: size + left.get(uuid, 0) for uuid, size in unmovable.items()},
        "park_copies_bytes": sum(map(park_copies, processes.all)),
        "resume_copies_bytes": sum(map(resume_copies, processes.all)),
    }


def _use(kernel: KernelRecord, processes: Sorted, last_activity: float) -> Fields:
    """Return how the kernel uses the GPU, and since when."""
    return {
        "last_activity": last_activity,
        "calls_in_flight": sum([process.data.calls_in_flight for process in processes.all]),
        "captures": sum([process.data.captures for process in processes.all]),
        "cell_open": kernel.cell.is_open,
        "can_drop_caches": _can_drop_caches(kernel, processes, last_activity),
        "may_be_preempted": _may_be_preempted(processes),
        "may_resume_in_parts": _may_resume_in_parts(kernel, processes),
        "may_hand_over": _may_hand_over(processes),
        "resident_since": kernel.resident_since,
        "started_at": _started_at(processes),
    }


def _state(state: NodeState, kernel: KernelRecord, processes: Sorted, now: float) -> Fields:
    """Return what can be done with the kernel, and what is under way."""
    holders, residency = processes.holders, kernel.residency
    is_split = residency is Residency.RESIDENT and any(process.is_parked for process in processes.linked)
    is_under_way = kernel.operation is not None and not kernel.awaits_exchange
    resume = kernel.operation if isinstance(kernel.operation, ResumeMove) else None
    return {
        "is_parkable": all(process.is_parkable for process in holders),
        "is_out_of_reach": any(process.connection is None for process in holders),
        "is_slow": resume is not None and resume.is_given_up and resume.has_begun,
        "is_dying": all(process.is_dying for process in processes.all),
        "is_split": is_split,
        "is_moving": is_under_way or residency in (Residency.PARKING, Residency.RESUMING),
        "moves_since": -math.inf if _is_untold(state, kernel, now) else _moves_since(kernel),
        "can_be_ended": _can_be_ended(kernel, now),
        "is_ending": kernel.ending.reason is not None,
    }


def _request_fields(state: NodeState, kernel: KernelRecord, now: float) -> Fields:
    """Return what the kernel and its user ask for, and what was refused a moment ago."""
    return {
        "wants_since": kernel.wants_since,
        "rooms": _rooms(kernel),
        "park_requested": kernel.requests.park if kernel.requests.park_again_at <= now else None,
        "held_until": kernel.held_until,
        "retry_at": kernel.failures.park.retry_at,
        "retry_pause_s": kernel.failures.park.pause_s,
        "resume_retry_at": kernel.failures.resume.retry_at,
        "reclaim_after": kernel.failures.room.retry_at,
        "allocations_fail": _allocations_fail(kernel, now),
        "expected_until": expected_until(kernel),
    }


def _hibernation_fields(kernel: KernelRecord, now: float) -> Fields:
    """Return when the policy may have a kernel hibernate whose owner lets it; not while that is asked already, nor for
    a while after it came to nothing.
    """
    said, asked = kernel.server.description, kernel.hibernation
    if said is None or asked.reason is not None or asked.backoff.retry_at > now:
        return {}
    return {
        "hibernates_after_s": said.hibernate_after_s or math.inf,
        "awake_since": max(process.connected_at for process in kernel.processes.values()),
        "parked_since": kernel.residency_since,
    }


def _may_resume_in_parts(kernel: KernelRecord, processes: Sorted) -> bool:
    """Return whether its resume can take room as that becomes free."""
    return not kernel.exchange_failed and processes.is_alone


def _may_hand_over(processes: Sorted) -> bool:
    """Return whether it can hand host memory over while it is resumed, or get some while it is parked."""
    return processes.is_alone or not any(process.is_parked for process in processes.all)


def _host_use(state: NodeState, kernel: KernelRecord, last_activity: float, now: float) -> HostUse:
    """Return its use of host memory. Nothing of it is spilled while others prepare an exchange with it."""
    kernel.host.spills_after = state.failed_spills.until(kernel.account.charged_user)
    use = host_use(kernel, last_activity, state.host.lots_held, now)
    if kernel.awaits_exchange:
        use = replace(use, spillable_bytes=0)
    if state.host.lots_promised and kernel.move is not None:
        use = replace(use, awaits_bytes=awaits_bytes(kernel, state.host.lots_promised))
    return replace(use, budget_bytes=0) if _is_untold(state, kernel, now) else use


def _on_gpus(kernel: KernelRecord, gpus: GpuTable) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return what it has on each GPU: what can be moved, what cannot, and what its parked processes have left there;
    only an exchange parks in part.

    Pages are claims, each within the GPU's size (`records/process.py`). Where there are other users, no more of them
    counts than NVML bears out (gpu_processes.py): parking it would free no more, and ask for as much host memory. On a
    user's own controller, and where NVML's figures are from before its last move, the GPU's size bounds their sum.
    """
    resident: dict[str, int] = {}
    unmovable: dict[str, int] = {}
    left: dict[str, int] = {}
    sampled_at = -math.inf if gpus.sample is None else gpus.sample.began
    is_shown = kernel.account.charged_user is not None and sampled_at > kernel.last_move.ended_at
    for process in kernel.processes.values():
        shown = process.borne_out if is_shown else None
        movable = left if process.is_parked else resident
        for gpu in process.data.gpus:
            uuid, moves, stays = gpu.uuid, gpu.resident_bytes, sum(gpu.unmovable_bytes)
            if shown is not None and uuid not in gpus.unsized:
                moves = min(moves, shown.get(uuid, 0))
                stays = min(stays, shown.get(uuid, 0) - moves)
            movable[uuid] = movable.get(uuid, 0) + moves
            resident.setdefault(uuid, 0)
            unmovable[uuid] = unmovable.get(uuid, 0) + stays
    if gpus.sizes:
        largest = max(gpus.sizes.values())
        resident = {uuid: min(size, gpus.sizes.get(uuid, largest)) for uuid, size in resident.items()}
    return resident, unmovable, {uuid: size for uuid, size in left.items() if size}


def _moves_since(kernel: KernelRecord) -> float | None:
    """Return when the move under way began.

    A park that is none of ours began when we first heard of its processes. -inf for a resume that only a page shows: no
    waiter waits for what comes of it.
    """
    move = kernel.move
    if move is not None:
        return -math.inf if isinstance(move, ResumeMove) and move.is_given_up else move.began
    if kernel.residency is Residency.RESUMING:
        return -math.inf
    if kernel.residency is not Residency.PARKING:
        return None
    return max(process.connected_at for process in kernel.processes.values())


def _rooms(kernel: KernelRecord) -> tuple[RoomRequest, ...]:
    """Return the allocations that wait for room."""
    return tuple(
        RoomRequest((process.key, number), room.gpu, room.bytes, room.since)
        for process in kernel.connected()
        for number, room in process.allocations.items()
        if room.granted_at is None
    )


def _allocations_fail(kernel: KernelRecord, now: float) -> bool:
    """Return whether its allocations fail again and again although there is room."""
    failed = kernel.failures.room
    return failed.failures >= FAILED_GRANTS_MAX and now - failed.since >= FAILING_AFTER_S


def _may_be_preempted(processes: Sorted) -> bool:
    """Return whether no other process waits for what it computes: it is one process on one GPU and shares no memory.

    That leaves out NCCL between GPUs of this machine, which takes several of either or shared memory.
    """
    if len(processes.using) != 1:
        return False
    used = [gpu for gpu in processes.by_gpu.values() if gpu.in_all_bytes]
    return len(used) <= 1 and not any(gpu.unmovable_bytes[UnmovableReason.SHARED] for gpu in used)


def _started_at(processes: Sorted) -> float:
    """Return when its oldest process began; NaN if a process's start is unknown: then it counts as neither younger nor
    older.
    """
    moments = [process.started_at for process in processes.all]
    return math.nan if any(map(math.isnan, moments)) else min(moments)


def _can_be_ended(kernel: KernelRecord, now: float) -> bool:
    """Return whether a living server of its own can shut it down."""
    told = kernel.server.description
    has_server = kernel.server.is_there and told is not None and told.server is not None
    return has_server and kernel.ending.backoff.retry_at <= now


def _can_drop_caches(kernel: KernelRecord, processes: Sorted, last_activity: float) -> bool:
    asked = kernel.caches_dropped_at is not None and last_activity <= kernel.caches_dropped_at
    return not asked and any(process.drops_caches for process in processes.linked)


# ---- when it is expected to use the GPU next

CELL_EXPECTED_S = 60.0  # after a cell began; imports and data come first
FOCUS_EXPECTED_S = 30.0  # after the user turned to the notebook, or typed in it
HOME = (Residency.PARKED, Residency.RESUMING, Residency.RESIDENT)


def expected_until(kernel: KernelRecord) -> float:
    """Return until when the kernel's next use of the GPU is expected; 0 if it is not.

    A cell that began, or a user who turned to the notebook, announces it once: a kernel that was parked after that, by
    the user or because it did not use the GPU, is not resumed for it.
    """
    if kernel.residency not in HOME or not (kernel.cell.is_open or kernel.focus_at is not None):
        return 0.0
    moments = []
    if kernel.cell.is_open and kernel.cell.since is not None:
        moments.append((kernel.cell.since, CELL_EXPECTED_S))
    if kernel.focus_at is not None:
        moments.append((kernel.focus_at, FOCUS_EXPECTED_S))
    is_parked = kernel.residency is Residency.PARKED
    return max(
        (since + lasts for since, lasts in moments if not is_parked or kernel.residency_since <= since),
        default=0.0,
    )

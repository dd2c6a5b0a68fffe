"""The JSON of the API: a kernel and the node as `openapi.json` describes them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from ...settings.rules import class_of
from ...time_of_day import clock_in_words
from ..execution.evictions import end_shown
from ..model.gpu import NvmlGpu
from ..model.reasons import Cause, DepthRefusal
from ..model.snapshot import Kernel, Residency
from ..policy.victims.eligibility import eligible_at
from ..policy.victims.eviction_cost import resume_s
from ..policy.wait_estimates import WaitEstimate
from ..protocol.page import Depth, PageFlag, PageGpu, UnmovableReason
from ..state.gpus.context_depth import kernel_depth
from ..state.gpus.gpu_processes import OtherProgram, by_gpu, contexts_bytes, other_programs
from ..state.host.host_figures import disk_used_bytes
from ..state.host.host_usage import on_disk_bytes
from ..state.host.lots import LotStock
from ..state.host.lots_beforehand import retained_bytes, set_aside_bytes
from ..state.host.shared_memory import shared_bytes
from ..state.records.kernel import KernelRecord
from ..state.records.process import Process
from ..state.registry import NodeState
from ..state.room_requests import PREFIX
from .kernel_words import INTEGRATED, UNMOVABLE_WORDS, reason_slug, residency_in_words
from .moves import moves_json
from .waits import wait_json

# Figures that change all the time by themselves: no event is worth them.
VOLATILE = frozenset(
    {
        "residency_age_s",
        "idle_s",
        "eligible_in_s",
        "held_for_s",
        "waiting_s",
        "estimate_s",
        "calls",
        "resume_estimate_s",
        "as_of_s",
        "busy_percent",
        "host_bytes",
        "park_takes_bytes",
    }
)
VOLATILE_PARTS = {  # the same, of an object or a list of objects in a kernel's JSON
    "move": frozenset({"age_s"}),
    "last_park": frozenset({"ago_s"}),
    "last_resume": frozenset({"ago_s"}),
}
VOLATILE_NODE = frozenset({"controller", "host", "spill", "today", "starting"})
POLICY = ("park_when", "idle_timeout_s", "contended_idle_timeout_s")  # what a web page says in a sentence
STARTING = "a server that starts"  # in the queue: a request for room, which no kernel has made yet


def kernel_json(
    state: NodeState,
    kernel: KernelRecord,
    seen: Kernel | None,
    estimate: WaitEstimate | None,
    now: float,
    *,
    waits_since: float | None,
) -> dict[str, Any]:
    """Return one kernel. `seen` is it in the last snapshot, None without processes; `estimate` is there while it
    waits.
    """
    residency = _shown_residency(kernel, estimate)
    held = None if kernel.held_until is None else max(kernel.held_until - now, 0.0)
    end_asked = end_shown(kernel, state.kernels)
    return {
        "id": kernel.id,
        "user": kernel.account.name,
        "priority": class_of(kernel.account.priority) if seen is None else seen.priority,
        **_names_json(kernel),
        "residency": residency.value,
        "text": kernel_text(state, kernel, seen, estimate, now),
        "reason": end_asked or kernel.reason,
        "reason_code": Cause.FULL if end_asked else kernel.reason_code,
        "reason_args": {} if end_asked else kernel.reason_args,
        "residency_age_s": round(now - kernel.residency_since, 3),
        **_depth_json(state, kernel),
        **_memory_json(kernel),
        "disk_bytes": _disk_bytes(kernel, seen),
        "busy_percent": kernel.busy_percent,
        "host_bytes": _host_bytes(kernel),
        "park_takes_bytes": None if seen is None or residency is not Residency.RESIDENT else seen.takes_bytes,
        "calls": kernel.calls,
        "cell_open": kernel.cell.is_open,
        **_idle_json(state, kernel, seen, now, waits_since),
        "held_for_s": None if held is None else round(held, 3),
        "held_until": None if held is None else clock_in_words(held),
        **wait_json(kernel, estimate, state.kernels, now),
        "end_asked": end_asked,
        "hibernate_asked": kernel.hibernation.reason,
        "image_bytes": kernel.image_bytes,
        "gpus": [_use_json(state, gpu) for gpu in kernel.by_gpu().values()],
        "processes": [_process_json(state, process, now) for process in kernel.processes.values()],
        "simulated": _is_simulated(kernel),
        "tracked": bool(kernel.connected()),
        "as_of_s": round(now, 6),
        **moves_json(kernel, seen, state.speeds.by_gpu(), now),
    }


def kernel_text(
    state: NodeState, kernel: KernelRecord, seen: Kernel | None, estimate: WaitEstimate | None, now: float
) -> str:
    """Return one line about a kernel; the arguments are those of `kernel_json`."""
    gpus, disk_bytes = kernel.by_gpu().values(), _disk_bytes(kernel, seen)
    return residency_in_words(
        _shown_residency(kernel, estimate),
        resident_bytes=sum(gpu.on_gpu_bytes for gpu in gpus),
        parked_bytes=sum(gpu.parked_bytes for gpu in gpus),
        place=None if estimate is None else estimate.position,
        held_for_s=None if kernel.held_until is None else max(kernel.held_until - now, 0.0),
        reason=kernel.reason,
        is_simulated=_is_simulated(kernel),
        is_managed=kernel.other_version(now) is None,
        is_off_gpu=kernel_depth(kernel) is Depth.CONTEXT,
        disk_bytes=disk_bytes,
        image_bytes=kernel.image_bytes,
        return_s=resume_s(seen, state.speeds.by_gpu()) if seen is not None and disk_bytes else None,
    )


def _shown_residency(kernel: KernelRecord, estimate: WaitEstimate | None) -> Residency:
    """Return the residency that users see: a kernel that waits is queued, until it is moved."""
    is_moving = kernel.residency in (Residency.PARKING, Residency.RESUMING)
    return Residency.QUEUED if estimate is not None and not is_moving else kernel.residency


def _disk_bytes(kernel: KernelRecord, seen: Kernel | None) -> int:
    """Return what has to be read from disk before the kernel is back."""
    if kernel.is_hibernated:
        return sum(gpu.parked_bytes for gpu in kernel.by_gpu().values())
    return on_disk_bytes(kernel) if seen is not None and seen.disk_return_s else 0


def _is_simulated(kernel: KernelRecord) -> bool:
    return any(process.is_simulated for process in kernel.processes.values())


def _memory_json(kernel: KernelRecord) -> dict[str, Any]:
    """Return what it has on GPUs and on the host."""
    gpus = list(kernel.by_gpu().values())
    resident = sum(gpu.resident_bytes for gpu in gpus)
    parked = sum(gpu.parked_bytes for gpu in gpus)
    is_integrated = any(process.data.flags & PageFlag.INTEGRATED for process in kernel.processes.values())
    return {
        "resident_bytes": resident,
        "parked_bytes": parked,
        "footprint_bytes": sum(gpu.in_all_bytes for gpu in gpus),
        "unmovable": _unmovable_json(gpus, is_integrated=is_integrated),
        "copy_bytes": sum(process.data.copy_bytes for process in kernel.processes.values()),
        "retained_bytes": retained_bytes(kernel.processes.values()),
        "set_aside_bytes": set_aside_bytes(kernel.processes.values()),
        "shared_bytes": sum(process.data.shared_bytes for process in kernel.processes.values()),
    }


def _host_bytes(kernel: KernelRecord) -> int | None:
    """Return the host memory of its processes, with what holds parked memory; None where it cannot be seen."""
    found = [process.host_bytes for process in kernel.processes.values()]
    return None if not found or None in found else sum(filter(None, found))


def _spill_json(state: NodeState) -> dict[str, Any] | None:
    """Return the disk; None while nothing may be spilled."""
    if not state.settings.spill_dir:
        return None
    return {
        "dir": state.settings.spill_dir,
        "problem": state.host.disk.problem,
        "limit_bytes": state.host.disk.limit_bytes,
        "used_bytes": disk_used_bytes(state.kernels.values()),
        "daily_bytes": state.settings.spill_daily_bytes,
        "written_bytes": state.host.disk.written_bytes(time.monotonic()),
    }


def _names_json(kernel: KernelRecord) -> dict[str, Any]:
    """Return the kernel's name and place, as its server reports them; else its first process's command."""
    said = kernel.server.description
    commands = [process.hello.command for process in kernel.processes.values()]
    return {
        "name": (said and said.name) or (commands[0] if commands else None),
        "path": said and said.path,
        "language": said and said.language,
        "server": said and said.server,
    }


def _idle_json(
    state: NodeState, kernel: KernelRecord, seen: Kernel | None, now: float, waits_since: float | None
) -> dict[str, Any]:
    """Return for how long it has been idle, and when that is long enough to be parked."""
    if seen is None:
        return {"idle_s": None, "eligible": False, "eligible_in_s": None}
    if seen.cell_open != kernel.cell.is_open:  # an older one would be wrong by minutes until the next pass
        seen = replace(seen, cell_open=kernel.cell.is_open)
    moment = eligible_at(
        seen,
        state.settings,
        waits_since=waits_since,
        speeds=state.speeds.by_gpu(),
        pauses_s=state.pauses.lengths_s,
    )
    return {
        "idle_s": round(max(now - seen.last_activity, 0.0), 3),
        "eligible": moment is not None and moment <= now,
        "eligible_in_s": None if moment is None else round(max(moment - now, 0.0), 3),
    }


def node_json(
    state: NodeState,
    queue: Iterable[str],
    lots: LotStock,
    *,
    name: str,
    version: str,
    socket: str,
    uptime_s: float,
    history: dict[str, Any],
    is_system: bool = False,
) -> dict[str, Any]:
    """Return the machine; `queue`: the kernels that wait, in order; `is_system`: this controller serves all users."""
    measured = state.gpus.measured
    kernels = [kernel.by_gpu().values() for kernel in state.kernels.values() if not kernel.is_hibernated]
    parked = sum(gpu.parked_bytes for gpus in kernels for gpu in gpus)
    total, spill = state.host.memory.total_bytes, _spill_json(state)
    limits = [limit.headroom_bytes for limit in state.host.limits.values()]
    simulated = any(gpu.is_simulated for gpu in measured.values()) or any(
        process.is_simulated for process in state.processes()
    )
    return {
        "name": name,
        "controller": {
            "pid": os.getpid(),
            "version": version,
            "uptime_s": round(uptime_s, 3),
            "socket": socket,
            "system": is_system,
        },
        "simulated": simulated,
        "nvml": state.gpus.sample is not None,
        "driver_version": state.gpus.sample.driver_version if state.gpus.sample is not None else None,
        "history": history,
        "gpus": _gpus_json(state, simulated),
        "host": {
            "total_bytes": total,
            "available_bytes": state.host.memory.available_bytes,
            "reserve_bytes": state.settings.host_reserve(state.host.memory.total_bytes),
            # Pages may claim anything: no more than there is.
            "parked_bytes": min(parked, total + (0 if spill is None else spill["limit_bytes"])),
            "copy_bytes": min(sum(process.data.copy_bytes for process in state.processes()), total),
            "retained_bytes": min(retained_bytes(state.processes()), total),
            "set_aside_bytes": min(set_aside_bytes(state.processes()), total),
            "shared_bytes": min(shared_bytes(state.processes()), total),
            "share_problem": None,  # `Controller.node_json` knows the user
            "lots": {
                "limit_bytes": lots.limit_bytes(state.settings),
                "ready_bytes": lots.ready_bytes,
                "given_bytes": lots.given_bytes + lots.earlier_bytes(state.lots_mapped()),
            },
            "cgroup_headroom_bytes": min(limits) if limits else None,
        },
        "spill": spill,
        "settings": state.settings.as_dict(),
        "policy": {
            "may_change": not is_system,
            **{name: getattr(state.settings, name) for name in POLICY},
        },
        "today": None,  # `Controller.node_json` knows the user
        "queue": _queue_json(state, queue),
        "starting": _starting_json(state, queue),
        "others": None,  # `views.node_view` knows the client
    }


def _queue_json(state: NodeState, queue: Iterable[str]) -> list[str]:
    """Return the queue's ids; a request for room gets a common text, and one that has just ended is left out."""
    waiting = [each for each in queue if each in state.room_requests or not each.startswith(PREFIX)]
    return [STARTING if each in state.room_requests else each for each in waiting]


def _starting_json(state: NodeState, queue: Iterable[str]) -> list[dict[str, Any]]:
    """Return the requests for room, in the queue's order: those of its entries that are no kernel yet."""
    now = time.monotonic()
    requests = [state.room_requests[each] for each in queue if each in state.room_requests]
    return [
        {
            "user": request.record.account.name or request.record.account.owner,
            "bytes": request.bytes,
            "waiting_s": round(max(now - request.since, 0.0), 3),
            "wait_reason": request.line.get("text") or None,
            "estimate_s": request.line.get("estimate_s"),
        }
        for request in requests
    ]


def without_volatile(kernel: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a kernel of which a change is worth an event."""
    lasting = {name: value for name, value in kernel.items() if name not in VOLATILE}
    for name, ticking in VOLATILE_PARTS.items():
        lasting[name] = _without(kernel[name], ticking)
    if kernel["wait"] is not None:
        blockers = [_without(blocker, {"free_in_s"}) for blocker in kernel["wait"]["blockers"]]
        lasting["wait"] = {**kernel["wait"], "blockers": blockers, "ends": kernel["estimate_s"] is not None}
    return lasting


def node_without_volatile(node: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of the machine of which a change is worth an event."""
    lasting = {name: value for name, value in node.items() if name not in VOLATILE_NODE}
    lasting["gpus"] = [_without(gpu, {"utilization_history"}) for gpu in node["gpus"]]
    return lasting


def _without(part: dict[str, Any] | None, names: Collection[str]) -> dict[str, Any] | None:
    return None if part is None else {name: value for name, value in part.items() if name not in names}


def _depth_json(state: NodeState, kernel: KernelRecord) -> dict[str, Any]:
    """Return how deeply it is parked, and why its CUDA context is, or would be, left on the GPU although the setting
    says otherwise.
    """
    depth, code, words = kernel_depth(kernel), None, None
    if state.settings.depth == "context" and depth is not Depth.CONTEXT and kernel.processes:
        objection = state.context_objection(kernel)
        words = kernel.failures.context_refusal if objection is None else objection.words
        code = (words and DepthRefusal.FAILED) if objection is None else objection.code
    return {"depth": depth.name.lower(), "depth_refusal": words, "depth_refusal_code": code}


def _gpus_json(state: NodeState, simulated: bool) -> list[dict[str, Any]]:
    processes = list(state.processes())
    measured, known = state.gpus.measured, by_gpu(processes)
    return [
        _gpu_json(state, measured[uuid], known.get(uuid, ()), processes)
        if uuid in measured
        else _unmeasured_gpu_json(state, uuid, index, simulated)
        for index, uuid in enumerate(state.gpus.uuids)
    ]


def _unmeasured_gpu_json(state: NodeState, uuid: str, place: int, simulated: bool) -> dict[str, Any]:
    """Return a GPU without NVML: what the shims report, and nothing that is not known."""
    managed = state.gpus.managed_bytes(uuid)
    return {
        "uuid": uuid,
        "index": place,
        "name": "Simulated GPU" if simulated else "GPU (no NVML)",
        "mig": False,
        "total_bytes": None,
        "used_bytes": managed,
        "free_bytes": None,
        "managed_bytes": managed,
        "context_bytes": None,
        "unmanaged_bytes": None,
        "unmanaged": None,
        "speed": _speed_json(state, uuid),
        "utilization_percent": None,
        "utilization_history": None,
    }


def _gpu_json(
    state: NodeState, gpu: NvmlGpu, known: Sequence[Process], processes: Sequence[Process]
) -> dict[str, Any]:
    managed = min(state.gpus.managed_bytes(gpu.uuid), gpu.used_bytes)  # pages may claim anything
    contexts = contexts_bytes(gpu, known, processes)
    others = other_programs(gpu, known, {process.pid for process in processes})
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "mig": gpu.is_mig,
        "total_bytes": gpu.total_bytes,
        "used_bytes": gpu.used_bytes,
        "free_bytes": gpu.free_bytes,
        "managed_bytes": managed,
        "context_bytes": contexts,
        "unmanaged_bytes": max(gpu.used_bytes - managed - (contexts or 0), 0),
        "unmanaged": None if others is None else [_other_program_json(other) for other in others],
        "speed": _speed_json(state, gpu.uuid),
        "utilization_percent": gpu.utilization_percent,
        "utilization_history": state.gpus.utilization_history(gpu.uuid),
    }


def _speed_json(state: NodeState, uuid: str) -> dict[str, float] | None:
    speed = state.speeds.by_gpu().get(uuid)
    return None if speed is None else {name: float(f"{value:.3g}") for name, value in asdict(speed).items()}


def _other_program_json(other: OtherProgram) -> dict[str, Any]:
    return {"pid": other.pid, "command": other.command, "bytes": other.bytes}


def _use_json(state: NodeState, gpu: PageGpu) -> dict[str, Any]:
    known = state.gpus.measured.get(gpu.uuid)
    return {
        "uuid": gpu.uuid,
        "index": None if known is None else known.index,
        "resident_bytes": gpu.resident_bytes,
        "parked_bytes": gpu.parked_bytes,
        "unmovable_bytes": sum(gpu.unmovable_bytes),
    }


def _process_json(state: NodeState, process: Process, now: float) -> dict[str, Any]:
    verdict = state.stuck(process, now)
    return {
        "number": process.key,
        "pid": process.pid,
        "residency": Residency[process.data.state.name].value,
        "command": process.hello.command,
        "parkable": process.is_parkable,
        "mended_chunks": process.data.mended_chunks,
        "stuck": None if verdict is None else {"reason": verdict, "text": verdict.phrase},
    }


def _unmovable_json(gpus: list[PageGpu], *, is_integrated: bool) -> list[dict[str, Any]]:
    found = []
    for kind in UnmovableReason:
        reason = INTEGRATED if is_integrated and kind is UnmovableReason.UNBACKED else kind
        size = sum(gpu.unmovable_bytes[kind] for gpu in gpus)
        if size:
            found.append({"reason": reason_slug(reason), "bytes": size, "text": UNMOVABLE_WORDS[reason]})
    return found

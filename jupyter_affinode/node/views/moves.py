"""The JSON of a kernel's parks and resumes: the one under way, the last ones, the next one back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.snapshot import Kernel, Residency, Speed
from ..policy.victims.eviction_cost import resume_s
from ..state.records.kernel import OTHER_VERSION_WORDS, KernelRecord

Json = dict[str, Any]

KINDS = {Residency.PARKING: "park", Residency.RESUMING: "resume"}


def moves_json(
    kernel: KernelRecord, seen: Kernel | None, speeds: Mapping[str, Speed], now: float
) -> dict[str, Any]:
    """Return how its parks and resumes went. `seen` is the kernel in the last snapshot, None without processes."""
    return {
        "move": _move(kernel, now),
        "last_park": _last_move(kernel, "last_park", "parked_at", now),
        "last_resume": _last_move(kernel, "last_resume", "resumed_at", now),
        "resume_estimate_s": _resume_estimate_s(kernel, seen, speeds),
        "parks": kernel.parks,
        "resumes": kernel.resumes,
        "moved_from": kernel.last_move.from_gpu,
        **_refusal(kernel, now),
    }


def _refusal(kernel: KernelRecord, now: float) -> Json:
    """Return why it was not parked last, or cannot be."""
    words, code, arguments = (
        kernel.failures.refusal,
        kernel.failures.refusal_code,
        kernel.failures.refusal_args,
    )
    other_version = kernel.other_version(now)
    if other_version is not None:
        words, code, arguments = OTHER_VERSION_WORDS[other_version], other_version, {}
    return {"refusal": words, "refusal_code": code, "refusal_args": dict(arguments) if words else {}}


def _move(kernel: KernelRecord, now: float) -> Json | None:
    """Return the park or resume under way."""
    kind = KINDS.get(kernel.residency)
    if kind is None:
        return None
    gpus = kernel.by_gpu().values()
    return {
        "kind": kind,
        "bytes": sum(gpu.resident_bytes + gpu.parked_bytes for gpu in gpus),
        "age_s": round(max(now - kernel.residency_since, 0.0), 3),
    }


def _last_move(kernel: KernelRecord, which: str, moment: str, now: float) -> Json | None:
    """Return size and duration of the last park or resume; the processes' moves ran side by side."""
    processes = [each for each in kernel.processes.values() if getattr(each.data, which) is not None]
    if not processes:
        return None
    moves = [getattr(process.data, which) for process in processes]
    moments = [at for process in processes if (at := getattr(process, moment)) is not None]
    return {
        "bytes": sum(size for size, _ in moves),
        "duration_s": max(took for _, took in moves),
        "ago_s": round(max(now - max(moments), 0.0), 3) if moments else None,
    }


def _resume_estimate_s(
    kernel: KernelRecord, seen: Kernel | None, speeds: Mapping[str, Speed]
) -> float | None:
    """Return how long resuming it takes when there is room, or would take if it were parked, by measured speeds."""
    if seen is None or kernel.residency not in (Residency.RESIDENT, Residency.PARKED, Residency.QUEUED):
        return None
    if not any(gpu.resident_bytes + gpu.parked_bytes for gpu in kernel.by_gpu().values()):
        return None
    return round(resume_s(seen, speeds), 2)

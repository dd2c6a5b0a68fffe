"""The processes on GPUs: those without a shim, and what NVML confirms of those with one.

NVML names processes by the pids that the driver sees. Where a controller or its kernels live in a container those are
other numbers, or none. Then only the sum of what is not ours is known, and nothing is concluded from a pid.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from ....printable import printable
from ...model.gpu import NvmlGpu
from ...protocol.page import Depth
from ..records.kernel import KernelRecord
from ..records.ownership import owner_of
from ..records.process import Process
from .reservations import ShownBytes

INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of linux/proc_ns.h


@dataclass(frozen=True)
class OtherProgram:
    """A process on a GPU that is not ours. Another user's is named by root's controller alone, to administrators
    (views/visibility.py).
    """

    pid: int | None
    command: str | None
    bytes: int | None  # None: NVML does not say


def by_gpu(processes: Iterable[Process]) -> dict[str, list[Process]]:
    """Return our processes that have a context on a GPU, by GPU: they have memory of any kind there, and are not parked
    at context depth.
    """
    found: dict[str, list[Process]] = {}
    for process in processes:
        if process.data.depth is Depth.CONTEXT:
            continue
        for gpu in process.data.gpus:
            if gpu.in_all_bytes:
                found.setdefault(gpu.uuid, []).append(process)
    return found


def joins(gpu: NvmlGpu, known: Sequence[Process]) -> bool:
    """Return whether NVML's pids are those of our processes as we know them.

    `known`, here and below, are our processes on that GPU. One number may be equal by chance: so all of them must be
    there, with about as much memory as their pages show. Where we have none there, only the initial pid namespace is
    sure.
    """
    if gpu.pids is None:
        return False
    if not known:
        return sees_all_pids()
    return all(_is_in(gpu, process) for process in known)


def other_programs(gpu: NvmlGpu, known: Sequence[Process], pids: Set[int]) -> list[OtherProgram] | None:
    """Return the processes on a GPU that are not ours, the largest first; None where they cannot be told apart.

    `pids` are those of all our processes, on whatever GPU.
    """
    if gpu.pids is None or not joins(gpu, known):
        return None
    unmanaged = sorted(gpu.pids - pids)
    rows = [_described(pid, gpu.used_by.get(pid)) for pid in unmanaged]
    return sorted(rows, key=lambda row: -(row.bytes or 0))


def contexts_bytes(gpu: NvmlGpu, known: Sequence[Process], processes: Iterable[Process]) -> int | None:
    """Return what our processes' CUDA contexts take beside what their pages show; None where NVML does not tell.

    `processes` are all of ours: one that waits for its first memory has a context there already.
    """
    if not joins(gpu, known):
        return None
    return sum(
        max(used - process.bytes_on(gpu.uuid), 0)
        for process in processes
        if (used := gpu.used_by.get(process.pid)) is not None
    )


def busy(gpu: NvmlGpu, known: Sequence[Process]) -> list[Process]:
    """Return our processes that NVML saw computing since its last look; [] where that cannot be told."""
    if not gpu.busy_pids or not joins(gpu, known):
        return []
    return [process for process in known if process.pid in gpu.busy_pids]


def _is_in(gpu: NvmlGpu, process: Process) -> bool:
    if gpu.pids is None or process.pid not in gpu.pids:
        return False
    used = gpu.used_by.get(process.pid)
    moves = process.data.state.name in ("PARKING", "RESUMING")  # page and NVML are of different moments
    return used is None or moves or 2 * used >= process.bytes_on(gpu.uuid)


def _described(pid: int, size: int | None) -> OtherProgram:
    try:
        is_own = os.getuid() in (0, os.stat(f"/proc/{pid}").st_uid)
        command = Path(f"/proc/{pid}/comm").read_text(errors="replace") if is_own else None
    except OSError:  # it has just ended, or is hidden from us
        return OtherProgram(None, None, size)
    return OtherProgram(pid if is_own else None, command and printable(command.strip()), size)


def sees_all_pids() -> bool:
    """Return whether this is the initial pid namespace, in which NVML's pids are ours."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return False


# ---- how much of what our processes claim NVML confirms
#
# A page is its process's own claim. Lots (lots.py) cannot be taken back, so they go by what NVML shows of a process
# where it names processes by the pids that we know. Elsewhere, in containers, NVML's sum for a GPU bounds all claims on
# it. If the claims together are larger, the users that claim least are confirmed first.

Claim = tuple[str, Process, int]  # an owner, a process of theirs, and the bytes that its page says


def look(kernels: Iterable[KernelRecord], measured: Mapping[str, NvmlGpu]) -> None:
    """Note for each process how much of its movable GPU memory NVML confirms. `measured`: GPUs by UUID; empty without
    NVML.
    """
    claims: dict[str, list[Claim]] = {}
    for kernel in kernels:
        for process in kernel.processes.values():
            process.verified_bytes = 0 if measured else None
            for gpu in process.data.gpus if measured else ():
                if gpu.resident_bytes:
                    claims.setdefault(gpu.uuid, []).append((owner_of(kernel), process, gpu.resident_bytes))
    for uuid in claims.keys() & measured.keys():
        known = measured[uuid]
        if known.pids is not None and sees_all_pids():
            _verify_by_pid(known, claims[uuid])
        else:
            _verify_by_sum(known, claims[uuid])


def shown_bytes(kernel: KernelRecord, gpu: NvmlGpu, managed_bytes: int, *, is_clear: bool) -> ShownBytes:
    """Return what NVML shows of a kernel on a GPU. `managed_bytes`: what all pages together name there."""
    if gpu.pids is not None and sees_all_pids():
        used = [gpu.used_by.get(process.pid, 0) for process in kernel.processes.values()]
        if None not in used:
            return ShownBytes(sum(filter(None, used)))
    own = kernel.by_gpu().get(gpu.uuid)
    own_bytes = 0 if own is None else own.on_gpu_bytes
    return ShownBytes(gpu.used_bytes, managed_bytes - own_bytes, is_clear)


def _verify_by_pid(gpu: NvmlGpu, claims: Iterable[Claim]) -> None:
    for _, process, size in claims:
        if process.pid in (gpu.pids or ()):
            used = gpu.used_by.get(process.pid)  # None: NVML does not say how much
            _add_verified(process, size if used is None else min(size, used))


def _verify_by_sum(gpu: NvmlGpu, claims: Iterable[Claim]) -> None:
    of_owner: dict[str, list[Claim]] = {}
    for claim in claims:
        of_owner.setdefault(claim[0], []).append(claim)
    left = gpu.used_bytes
    for theirs in sorted(of_owner.values(), key=_size_of):
        for _, process, size in sorted(theirs, key=lambda claim: (claim[2], claim[1].key)):
            _add_verified(process, min(size, left))
            left -= min(size, left)


def _size_of(claims: Iterable[Claim]) -> int:
    return sum(size for _, _, size in claims)


def _add_verified(process: Process, size: int) -> None:
    process.verified_bytes = (process.verified_bytes or 0) + size

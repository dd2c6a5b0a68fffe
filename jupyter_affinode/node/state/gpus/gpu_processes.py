"""The processes on GPUs: those without a shim, and what NVML confirms of those with one.

NVML names processes by the pids that the driver sees. Where a controller or its kernels live in a container those are
other numbers, or none. Then only the sum of what is not ours is known, and nothing is concluded from a pid.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ....printable import printable
from ...model.gpu import NvmlGpu
from ...protocol.page import Depth
from ...system.nvml import NvmlSample
from ..records.kernel import KernelRecord
from ..records.ownership import owner_of
from ..records.process import Process
from .reservations import ShownBytes

OUR_OWN_WORK_S = 3.0  # NVML's samples are up to a second old, and a move computes digests
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


def take_use(sample: NvmlSample, kernels: Mapping[str, KernelRecord]) -> None:
    """Note which processes NVML saw computing, and how busy each kernel keeps the GPU that it uses most."""
    known = by_gpu(process for kernel in kernels.values() for process in kernel.processes.values())
    for kernel in kernels.values():
        kernel.busy_percent = None
    for gpu in sample.gpus:
        on_gpu = known.get(gpu.uuid, ())
        if not joins(gpu, on_gpu):
            continue
        percents: dict[str, int] = {}
        for process in on_gpu:
            kernel = kernels[process.kernel_id]
            is_still = kernel.move is None and sample.began - kernel.last_move.ended_at > OUR_OWN_WORK_S
            if is_still and process.pid in (gpu.busy_pids or ()):
                process.seen_busy_at = sample.began
            if gpu.percent_by_pid is not None:
                percent = percents.get(kernel.id, 0) + gpu.percent_by_pid.get(process.pid, 0)
                percents[kernel.id] = min(percent, 100)
        for kernel_id, percent in percents.items():
            kernels[kernel_id].busy_percent = max(kernels[kernel_id].busy_percent or 0, percent)


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


# ---- how much of what our processes claim NVML bears out
#
# A page is its process's own claim, and a claim gives its user no influence on others: only what NVML bears out makes a
# kernel a victim, or entitles it to lots (lots.py), which cannot be taken back. Where NVML's pids are those that we
# know, that is its figure for the process. Elsewhere, in containers, where NVML names no process or no figure, what is
# in use on a GPU beside all these figures bounds the claims of the processes without one, all together. If the claims
# are larger, those of users whose parks came to nothing are borne out last, and the users that claim least first.


class Claim(NamedTuple):
    """What a process's page says that it has on a GPU."""

    owner: str
    process: Process
    bytes: int
    parked_bytes: int
    is_doubted: bool  # parks of its user came to nothing


def bear_out(
    kernels: Iterable[KernelRecord],
    measured: Mapping[str, NvmlGpu],
    is_doubted: Callable[[KernelRecord], bool],
) -> None:
    """Note for each process how much of its GPU memory NVML bears out. `measured`: GPUs by UUID; empty without NVML.
    `is_doubted`: whether parks of the kernel's user came to nothing.
    """
    claims: dict[str, list[Claim]] = {}
    parked: dict[str, dict[int, int]] = {}
    for kernel in kernels:
        doubted = bool(measured) and is_doubted(kernel)
        for process in kernel.processes.values():
            process.borne_out = {} if measured else None
            for gpu in process.data.gpus if measured else ():
                if gpu.parked_bytes:
                    of_pid = parked.setdefault(gpu.uuid, {})
                    of_pid[process.pid] = of_pid.get(process.pid, 0) + gpu.parked_bytes
                if gpu.on_gpu_bytes:
                    claim = Claim(owner_of(kernel), process, gpu.on_gpu_bytes, gpu.parked_bytes, doubted)
                    claims.setdefault(gpu.uuid, []).append(claim)
    for uuid in claims.keys() & measured.keys():
        _verify(measured[uuid], claims[uuid], parked.get(uuid, {}))


def shown_bytes(kernel: KernelRecord, gpu: NvmlGpu, managed_bytes: int, *, is_clear: bool) -> ShownBytes:
    """Return what NVML shows of a kernel on a GPU. `managed_bytes`: what all pages together name there."""
    used = used_by(gpu, {process.pid for process in kernel.processes.values()})
    if used is not None:
        return ShownBytes(used)
    own = kernel.by_gpu().get(gpu.uuid)
    own_bytes = 0 if own is None else own.on_gpu_bytes
    return ShownBytes(gpu.used_bytes, managed_bytes - own_bytes, is_clear)


def used_by(gpu: NvmlGpu, pids: Set[int]) -> int | None:
    """Return what these pids have on a GPU; None where NVML does not tell, or its pids are not ours."""
    if gpu.pids is None or not sees_all_pids():
        return None
    used = [gpu.used_by.get(pid, 0) for pid in pids]
    return None if None in used else sum(filter(None, used))


def _verify(gpu: NvmlGpu, claims: Iterable[Claim], parked: Mapping[int, int]) -> None:
    """Note how much of the claims on one GPU NVML bears out: by pid, and the rest by what is left of the sum.

    `parked`: by pid, what pages say was parked from there. What one page of a pid says it parked bears out no claim of
    another one: else each was parked in turn, and nothing became free.
    """
    pids = (
        gpu.pids if gpu.pids and sees_all_pids() else frozenset()
    )  # an empty list: it cannot tell, or none has any
    named = {pid: size for pid in pids if (size := gpu.used_by.get(pid)) is not None}
    left = gpu.used_bytes - sum(named.values())
    others = []
    for claim in claims:
        pid = claim.process.pid
        if pid in named:  # its processes of one pid share its figure
            others_parked = parked.get(pid, 0) - claim.parked_bytes
            named[pid] -= _bear_out(gpu, claim, named[pid] - others_parked)
        elif not pids or pid in pids:
            others.append(claim)
    claimed: dict[str, int] = {}
    for claim in others:
        claimed[claim.owner] = claimed.get(claim.owner, 0) + claim.bytes

    def order(claim: Claim) -> tuple[bool, int, str, int, int]:
        return claim.is_doubted, claimed[claim.owner], claim.owner, claim.bytes, claim.process.key

    for claim in sorted(others, key=order):
        left -= _bear_out(gpu, claim, left)


def _bear_out(gpu: NvmlGpu, claim: Claim, most: int) -> int:
    """Note that NVML bears out as much of a claim as there is, `most` bytes; return how much that is."""
    size = max(min(claim.bytes, most), 0)
    claim.process.borne_out = {**(claim.process.borne_out or {}), gpu.uuid: size}
    return size

"""How much of what our processes say they have on GPUs, or are taking there, is borne out by NVML.

A page is its process's own word. Lots (lots.py) are handed over for good, so they go by what NVML shows of a process
where it names processes by the pids that we know. Elsewhere, in containers, NVML's sum for a GPU must do for all that
is claimed on it: of the people whose claims together are more than that, those who claim least are believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..model.gpu import NvmlGpu
from .gpu_processes import sees_all_pids
from .ownership import owner_of
from .records import KernelRecord, Process
from .reservations import ShownBytes

Claim = tuple[str, Process, int]  # an owner, a process of theirs, and the bytes that its page says


def look(kernels: Iterable[KernelRecord], measured: Mapping[str, NvmlGpu]) -> None:
    """Note for each process how much of its movable GPU memory is borne out; `measured`: GPUs by UUID, none where
    there is no NVML or nobody wants to know.
    """
    claims: dict[str, list[Claim]] = {}
    for kernel in kernels:
        for process in kernel.processes.values():
            process.borne_out_bytes = 0 if measured else None
            for gpu in process.data.gpus if measured else ():
                if gpu.resident_bytes:
                    claims.setdefault(gpu.uuid, []).append((owner_of(kernel), process, gpu.resident_bytes))
    for uuid in claims.keys() & measured.keys():
        known = measured[uuid]
        if known.pids is not None and sees_all_pids():
            _believe_by_pid(known, claims[uuid])
        else:
            _believe_by_sum(known, claims[uuid])


def shown_bytes(kernel: KernelRecord, gpu: NvmlGpu, managed_bytes: int, *, is_clear: bool) -> ShownBytes:
    """What NVML shows of a kernel on a GPU; `managed_bytes`: what all pages say is there."""
    if gpu.pids is not None and sees_all_pids():
        used = [gpu.used_by.get(process.pid, 0) for process in kernel.processes.values()]
        if None not in used:
            return ShownBytes(sum(filter(None, used)))
    own = kernel.by_gpu().get(gpu.uuid)
    own_bytes = 0 if own is None else own.resident_bytes + sum(own.fixed_bytes)
    return ShownBytes(gpu.used_bytes, managed_bytes - own_bytes, is_clear)


def _believe_by_pid(gpu: NvmlGpu, claims: Iterable[Claim]) -> None:
    for _, process, size in claims:
        if process.pid in (gpu.pids or ()):
            used = gpu.used_by.get(process.pid)  # None: NVML does not say how much
            _believe(process, size if used is None else min(size, used))


def _believe_by_sum(gpu: NvmlGpu, claims: Iterable[Claim]) -> None:
    of_owner: dict[str, list[Claim]] = {}
    for claim in claims:
        of_owner.setdefault(claim[0], []).append(claim)
    left = gpu.used_bytes
    for theirs in sorted(of_owner.values(), key=_size_of):
        for _, process, size in sorted(theirs, key=lambda claim: (claim[2], claim[1].key)):
            _believe(process, min(size, left))
            left -= min(size, left)


def _size_of(claims: Iterable[Claim]) -> int:
    return sum(size for _, _, size in claims)


def _believe(process: Process, size: int) -> None:
    process.borne_out_bytes = (process.borne_out_bytes or 0) + size

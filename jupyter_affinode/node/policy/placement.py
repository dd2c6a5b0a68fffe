"""Placement: a new kernel gets the GPU with the most room once eligible kernels have been parked; pure.

The GPUs that a program may see are put in order, since nearly all programs use the first. Only GPUs of one kind are put
together: a program that spreads over them must find them alike. A part of a GPU (MIG) stands alone, as CUDA shows a
program no more than one.

Any user can claim to start kernels, and to have memory. So what counts against other users is limited: of resident
memory what NVML confirms, of parked memory a GPU's size for each user, of kernels that have not used their GPU yet a
few, for a short while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...settings.policy import Settings
from ..model.gpu import NvmlGpu
from ..model.snapshot import Kernel, Node, Residency
from .victims.eligibility import eligible_at

MAY_GO = 0.5  # parked memory and memory that may be parked shares the GPU in time: it counts as half
PLACED_LASTS_S = 600.0  # a placed kernel that has not used the GPU by then probably never will
UNSEEN_LASTS_S = 120.0  # … of another user, with no process known
OTHERS_NEWCOMERS_MAX = 4  # of each other user
UNKNOWN_PART = 16  # of a GPU: what a kernel is taken to need where no other tells


class Newcomer(NamedTuple):
    """A kernel that was placed on a GPU and has not used it yet."""

    gpu: str
    since: float
    charged_user: str | None
    is_alive: bool  # a process of it is known


def newcomers_by_gpu(newcomers: Iterable[Newcomer], charged_user: str | None, now: float) -> dict[str, int]:
    """Return how many new kernels count on each GPU for a kernel of `charged_user`: all of that user's, and a few of
    each other user's.
    """
    found: dict[str, int] = {}
    of_others: dict[str | None, int] = {}
    for each in sorted(newcomers, key=lambda newcomer: -newcomer.since):
        if each.charged_user != charged_user:
            of_others[each.charged_user] = of_others.get(each.charged_user, 0) + 1
            is_unseen = not each.is_alive and now - each.since > UNSEEN_LASTS_S
            if is_unseen or of_others[each.charged_user] > OTHERS_NEWCOMERS_MAX:
                continue
        if now - each.since <= PLACED_LASTS_S:
            found[each.gpu] = found.get(each.gpu, 0) + 1
    return found


def place(
    now: float,
    node: Node,
    gpus: Sequence[NvmlGpu],
    newcomers: Mapping[str, int],
    settings: Settings,
) -> list[NvmlGpu]:
    """Return the GPUs for a new kernel to see, the best first; [] if there is no GPU.

    `newcomers`: how many kernels were placed on each GPU and have not used it yet.
    """
    usable = [gpu for gpu in gpus if not gpu.is_mig or gpu.visible_as.startswith("MIG-")]
    if not usable:
        return []
    rooms = {gpu.uuid: _room(now, node, gpu, newcomers.get(gpu.uuid, 0), settings) for gpu in usable}
    ranked = sorted(usable, key=lambda gpu: (-rooms[gpu.uuid], gpu.index, gpu.uuid))
    best = ranked[0]
    return [best, *(gpu for gpu in ranked[1:] if are_alike(best, gpu))]


def are_alike(one: NvmlGpu, other: NvmlGpu) -> bool:
    """Return whether they are whole GPUs of one model and size."""
    return (
        not one.is_mig and not other.is_mig and (one.name, one.total_bytes) == (other.name, other.total_bytes)
    )


def _room(now: float, node: Node, gpu: NvmlGpu, newcomers: int, settings: Settings) -> float:
    """Return the bytes that a GPU has for one more kernel; negative where many share it already."""
    stays = goes = managed = 0
    parked: dict[str, int] = {}  # by user
    for kernel in node.kernels:
        resident = kernel.resident_bytes.get(gpu.uuid, 0)
        unmovable = kernel.unmovable_bytes.get(gpu.uuid, 0)
        managed += resident + unmovable
        stays += unmovable
        if _may_be_parked(now, kernel, settings):
            goes += resident
        else:
            stays += resident
        parked[kernel.user] = parked.get(kernel.user, 0) + kernel.parked_bytes.get(gpu.uuid, 0)
    seen = node.gpus.get(gpu.uuid)
    trusted = gpu.used_bytes + (0 if seen is None else seen.uncertain_bytes)  # NVML's figure may be older
    if managed > trusted:  # some page claims too much
        stays, goes = (size * trusted // managed for size in (stays, goes))
    goes += (
        sum(parked.values())
        if len(parked) < 2
        else sum(min(each, gpu.total_bytes) for each in parked.values())
    )
    others = max(gpu.used_bytes - managed, 0)
    expected = newcomers * _typical(node.kernels, gpu)
    return gpu.total_bytes - others - stays - MAY_GO * goes - expected


def _may_be_parked(now: float, kernel: Kernel, settings: Settings) -> bool:
    """Return whether a waiter would get the kernel's memory now or soon."""
    if kernel.residency is Residency.PARKING:
        return True
    moment = eligible_at(kernel, settings, waits_since=now)
    return moment is not None and moment <= now


def _typical(kernels: Iterable[Kernel], gpu: NvmlGpu) -> int:
    """Return the bytes that one more kernel will probably take: the average of the others here."""
    sizes = [min(kernel.footprint_bytes, gpu.total_bytes) for kernel in kernels if kernel.footprint_bytes]
    return sum(sizes) // len(sizes) if sizes else gpu.total_bytes // UNKNOWN_PART

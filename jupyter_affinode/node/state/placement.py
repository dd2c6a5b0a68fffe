"""Which GPUs a kernel sees that is about to start, and for how long it counts there although it has used none yet."""

from __future__ import annotations

from ..model.gpu import NvmlGpu
from ..model.snapshot import Node
from ..policy.placement import PLACED_LASTS_S, Newcomer, newcomers_by_gpu, place
from .records.kernel import KernelRecord
from .registry import NodeState


def place_kernel(state: NodeState, kernel: KernelRecord, node: Node, now: float) -> list[NvmlGpu]:
    """Return the GPUs that a kernel which is about to start should see, the best first; [] without NVML."""
    kernel.placed = None
    newcomers = []
    for other in state.kernels.values():
        if other.placed is not None:
            gpu, since = other.placed
            if now - since > PLACED_LASTS_S or any(each.uses_gpu for each in other.processes.values()):
                other.placed = None
            else:
                newcomers.append(Newcomer(gpu, since, other.account.charged_user, bool(other.processes)))
    expected = newcomers_by_gpu(newcomers, kernel.account.charged_user, now)
    gpus = place(now, node, list(state.gpus.measured.values()), expected, state.settings)
    if gpus:
        kernel.placed = gpus[0].uuid, now
    return gpus

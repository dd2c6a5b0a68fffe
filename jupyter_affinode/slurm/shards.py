"""How many shards a GPU has: as many notebooks as share it with waits that a site accepts, by the planner."""

from __future__ import annotations

from ..planner.model.machine import GIB, Machine
from ..planner.model.simulation import Say
from ..planner.search import most_users
from ..planner.strategies import Plan
from ..planner.workload import Workload

WAIT_S = 60.0  # 95 % of all cells wait no longer


def shards_per_gpu(gpus: int, gpu_gib: float, host_gib: float, wait_s: float, say: Say) -> int:
    """Return how many jobs may share each GPU, one at least. Raises ImpossiblePlan and ModelBroken.

    What is parked must fit into host memory, so it follows from both.
    """
    machine = Machine(gpus=gpus, gpu_bytes=int(gpu_gib * GIB), host_bytes=int(host_gib * GIB))
    found = most_users(Plan(machine, workload=Workload(), ways=("affinode",)), wait_s, say)
    return max(int(found["ways"]["affinode"]["users_per_gpu"]), 1)

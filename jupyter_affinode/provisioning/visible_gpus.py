"""How a new kernel is told which GPUs to use: by number where that is sure, since many programs read numbers there.

CUDA numbers GPUs as NVML does if CUDA_DEVICE_ORDER is PCI_BUS_ID, none is used in parts (MIG), and the kernel sees all
of them. A container, or a cgroup (a job's, a systemd unit's), may be given some of the machine's GPUs: those are
numbered from 0 there, whatever the controller's numbers are. UUIDs are right everywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..client.kernel_messages import PlacedOn
from ..environment import simulation_asked

VISIBLE, ORDER, BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
DEVICE_NODE = re.compile(r"nvidia\d+")


def visible_gpus(placed: PlacedOn, env: Mapping[str, str], dev: Path = Path("/dev")) -> dict[str, str]:
    """Return the variables for a kernel that is started with `env`; {} where there is no GPU. An order of the GPUs that
    the site or the user chose stays.
    """
    if not placed.uuids:
        return {}
    sees_all = simulation_asked(env) or _device_nodes(dev) == placed.gpu_count
    if placed.numbers is not None and sees_all and env.get(ORDER, BY_BUS) == BY_BUS:
        return {VISIBLE: ",".join(map(str, placed.numbers)), ORDER: BY_BUS}
    return {VISIBLE: ",".join(placed.uuids)}


def _device_nodes(dev: Path) -> int:
    """Return how many GPUs may be opened; the system asks the cgroup, too."""
    try:
        nodes = [path for path in dev.iterdir() if DEVICE_NODE.fullmatch(path.name)]
        return sum(os.access(path, os.R_OK | os.W_OK) for path in nodes)
    except OSError:
        return 0

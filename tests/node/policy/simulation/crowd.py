"""A large machine in one picture: many GPUs, many kernels, many of them waiting. The same for the same seed."""

from __future__ import annotations

import random

from jupyter_affinode.node.model.snapshot import (
    Gpu,
    Host,
    HostUse,
    Kernel,
    Node,
    Reservation,
    Residency,
    RoomRequest,
)
from jupyter_affinode.settings.policy import GIB, Settings

NOW = 100_000.0
SETTINGS = Settings(host_reserve_bytes=0)


def crowded_node(
    kernels: int, gpus: int, waiting: int, *, full: bool = True, seed: int = 1, total: int = 80 * GIB
) -> Node:
    """Kernels spread over GPUs; `waiting` of them want the GPU; `full`: no kernel on it is idle for long enough."""
    draw = random.Random(seed)
    uuids = [f"GPU-{number:03}" for number in range(gpus)]
    made = [_kernel(draw, number, uuids[number % gpus], number < waiting, full) for number in range(kernels)]
    used = dict.fromkeys(uuids, 0)
    for kernel in made:
        for uuid, size in kernel.resident_bytes.items():
            used[uuid] += size
    table = {uuid: Gpu(uuid, GIB // 4 if full else max(total - used[uuid], 0), total, NOW) for uuid in uuids}
    reservations = tuple(Reservation(kernel.id, uuids[0], 1 << 20) for kernel in made[:8])
    host = Host(1 << 44, total_bytes=1 << 45)
    turns = {
        (kernel.charged_user, kernel.priority, uuids[0]): NOW - number
        for number, kernel in enumerate(made[::7])
    }
    return Node(table, tuple(made), host, reservations, last_served=turns)


def _kernel(draw: random.Random, number: int, uuid: str, waits: bool, full: bool) -> Kernel:
    size = draw.randint(1, 8) * GIB
    since = NOW - draw.uniform(1, 900)
    name = f"user-{number % 50}"
    who = {
        "user": name,
        "charged_user": name,
        "groups": ("staff",),
        "priority": draw.choice((0, 0, 0, 1, -1)),
    }
    use = HostUse(retained_bytes=size // 2, trimmable_bytes=size // 2)
    if waits and number % 4 == 0:  # an allocation of a kernel that has memory
        room = RoomRequest((number, 1), uuid, GIB, since)
        return Kernel(
            f"kernel-{number:04}", Residency.RESIDENT, {uuid: size}, {uuid: 0}, rooms=(room,), host=use, **who
        )
    if waits:
        return Kernel(
            f"kernel-{number:04}", Residency.QUEUED, {uuid: 0}, {uuid: size}, wants_since=since, **who
        )
    if number % 3 == 0:
        return Kernel(f"kernel-{number:04}", Residency.PARKED, {uuid: 0}, {uuid: size}, **who)
    idle = draw.uniform(0, 100 if full else 2000)
    return Kernel(
        f"kernel-{number:04}",
        Residency.RESIDENT,
        {uuid: size},
        {uuid: 0},
        last_activity=NOW - idle,
        cell_open=full,
        calls_in_flight=int(full),
        resident_since=NOW - draw.uniform(0, 600),
        started_at=NOW - draw.uniform(0, 9000),
        can_be_ended=True,
        host=use,
        **who,
    )

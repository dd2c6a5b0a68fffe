"""A large machine in one picture: many GPUs, many kernels, many of them waiting. The same for the same seed."""

from __future__ import annotations

import random
from dataclasses import replace

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
from jupyter_affinode.settings.policy import GIB, MIB, Settings

NOW = 100_000.0
SETTINGS = Settings(host_reserve_bytes=0)
LONGEST_TURN_S = 150.0  # where time slices of 120 s have been on for a while
TIGHT_BYTES = 60 * GIB  # of host memory, for hundreds of parks of some GiB


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
        (kernel.payer, kernel.priority, uuids[0]): NOW - number for number, kernel in enumerate(made[::7])
    }
    return Node(table, tuple(made), host, reservations, turns=turns)


def mixed_node(
    kernels: int, gpus: int, waiting: int, *, full: bool = True, tight: bool = False, seed: int = 1
) -> Node:
    """The same with all that a real machine has beside: memory that cannot move, kernels on two GPUs, in several
    processes of which each waits for room, held, opted out, on the move, with a limit of their own (cgroup), and some
    that may come back on another GPU. `tight`: host memory does for a few parks.
    """
    node = crowded_node(kernels, gpus, waiting, full=full, seed=seed)
    draw = random.Random(seed)
    uuids = list(node.gpus)
    made = tuple(_as_found(draw, number, kernel, uuids) for number, kernel in enumerate(node.kernels))
    users = [f"/user-{number}" for number in range(0, 50, 2)]
    limits = dict.fromkeys(users, 256 * GIB)
    headroom = {user: draw.choice((40, 80, 160)) * GIB for user in users}
    host = Host(TIGHT_BYTES if tight else 1 << 44, headroom, 1 << 45, limits)
    return replace(node, kernels=made, host=host)


def _as_found(draw: random.Random, number: int, kernel: Kernel, uuids: list[str]) -> Kernel:
    """A kernel with what real ones have."""
    (uuid,) = kernel.resident_bytes
    other = draw.choice(uuids)
    user = number % 50
    is_away = kernel.residency in (Residency.PARKED, Residency.QUEUED)
    fixed = {uuid: 0 if is_away else draw.randint(0, 64) * MIB}
    changes = {"fixed_bytes": fixed, "cgroups": (f"/user-{user}",) if user % 2 == 0 else ()}
    if draw.random() < 0.05:
        changes["held_until"] = NOW + draw.uniform(0, 3600)
    changes["is_opted_out"] = draw.random() < 0.02
    changes["resident_since"] = NOW - draw.uniform(0, LONGEST_TURN_S)
    changes["may_be_preempted"] = draw.random() < 0.8
    if kernel.rooms:
        room = kernel.rooms[0]
        changes["rooms"] = tuple(
            replace(room, key=(number, each), since=room.since + each)
            for each in range(draw.choice((1, 1, 3)))
        )
    if draw.random() < 0.05 and other != uuid:  # on two GPUs
        changes["resident_bytes"] = {**kernel.resident_bytes, other: 0 if is_away else GIB // 2}
        changes["parked_bytes"] = {**kernel.parked_bytes, other: GIB // 2 if is_away else 0}
        changes["fixed_bytes"] = {**fixed, other: 0}
        changes["may_be_preempted"] = False
    elif is_away and number % 5 == 0:
        changes["elsewhere"] = tuple(each for each in uuids[:8] if each != uuid)
        changes["context_bytes"] = {uuid: GIB}
    if kernel.residency is Residency.RESIDENT and draw.random() < 0.02:
        changes |= {"residency": Residency.PARKING, "is_moving": True, "moves_since": NOW - 0.2}
    if kernel.residency is Residency.RESIDENT and draw.random() < 0.5:
        size = sum(kernel.resident_bytes.values())
        changes["host"] = replace(kernel.host, kept_since=NOW - 60, park_takes_bytes=size // 2)
    return replace(kernel, **changes)


def _kernel(draw: random.Random, number: int, uuid: str, waits: bool, full: bool) -> Kernel:
    size = draw.randint(1, 8) * GIB
    since = NOW - draw.uniform(1, 900)
    name = f"user-{number % 50}"
    who = {"user": name, "payer": name, "groups": ("staff",), "priority": draw.choice((0, 0, 0, 1, -1))}
    use = HostUse(is_frugal=True, kept_bytes=size // 2, trimmable_bytes=size // 2)
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

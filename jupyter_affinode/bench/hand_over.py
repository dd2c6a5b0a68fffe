"""Exchanges of two processes where host memory is enough for one of them and a little more.

The waiter hands it over to the victim as lots, while both are moving.
"""

from __future__ import annotations

import time

from ..node.protocol.wire import CommandKind, MoveFlag, Status
from .lent_lots import LentLots
from .shim_peer import NOTHING_PRIVATE, MoveFailed, ShimPeer
from .sizes import GIB, MIB

SPARE_BYTES, LOT_BYTES = 1 * GIB, 256 * MIB
SIMULATED_SPARE_BYTES, SIMULATED_LOT_BYTES = 288 * MIB, 32 * MIB
OVER = MoveFlag.STREAM | MoveFlag.HAND_OVER
TRIES = 20
PRIVATE_BYTES = 256 * MIB  # of a process beside its lots: the ring that copies go by, and its like


def lots_for(size: int, *, two_users: bool, simulated: bool) -> LentLots:
    """Return host memory for one process of `size` bytes and a little more."""
    lot, spare = (SIMULATED_LOT_BYTES, SIMULATED_SPARE_BYTES) if simulated else (LOT_BYTES, SPARE_BYTES)
    return LentLots(-(-size // lot) + spare // lot, lot, renewed=two_users)


def park_into_lots(peer: ShimPeer, lots: LentLots, size: int) -> None:
    """Park a process into lots alone. Raises MoveFailed."""
    for _ in range(TRIES):
        while lots.being_made():
            lots.wait((peer,))
        lots.lend(peer, until=-(-size // lots.size) + 1)
        park = peer.begin(CommandKind.PARK, MoveFlag.STREAM | NOTHING_PRIVATE)
        while park not in peer.replies:
            lots.wait((peer,))
        if peer.replies[park].status is Status.OK:
            return
    raise MoveFailed(f"park: {peer.replies[park].text}")


def hand_over(leaves: ShimPeer, comes: ShimPeer, lots: LentLots, size: int) -> dict[str, float]:
    """Exchange the two; return the seconds until prepared, parked, and resumed. Raises MoveFailed."""
    needs = -(-size // lots.size) + 1
    while lots.being_made():
        lots.wait((leaves, comes))
    for _ in range(TRIES):
        begin = time.perf_counter()
        lots.lend(leaves, until=needs)
        park = leaves.begin(CommandKind.PARK, MoveFlag.PREPARE | OVER | NOTHING_PRIVATE)
        while park not in leaves.prepared and park not in leaves.replies:
            lots.wait((leaves, comes))
            lots.lend(leaves, until=needs)
        if park in leaves.prepared:
            break
        if leaves.replies[park].status not in (Status.BUSY, Status.REVOKED):
            raise MoveFailed(f"park: {leaves.replies[park].text}")
    else:
        raise MoveFailed("park: it was not prepared")
    prepared = time.perf_counter()
    leaves.decide(park, CommandKind.COMMIT)
    resume = comes.begin(CommandKind.RESUME, OVER)
    ends: dict[str, float] = {}
    while len(ends) < 2:
        lots.wait((leaves, comes))
        if park not in leaves.replies:
            lots.lend(leaves, until=needs)
        for name, peer, epoch in (("parked_s", leaves, park), ("back_s", comes, resume)):
            if epoch in peer.replies and name not in ends:
                ends[name] = time.perf_counter() - begin
                reply = peer.replies[epoch]
                if reply.status is not Status.OK:
                    raise MoveFailed(f"{name}: {reply.status.name}: {reply.text}")
    for peer in (leaves, comes):
        if peer.private_bytes() > PRIVATE_BYTES:
            raise MoveFailed(f"a process has {peer.private_bytes()} bytes of host memory beside its lots")
    return {"prepared_s": prepared - begin, **ends}

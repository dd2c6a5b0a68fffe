"""Exchanges of two processes on a full GPU: one move after the other, and both at once.

Also where host memory is enough for one of them and a little more: the waiter hands it over to the victim as lots,
while both are moving.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from .. import environment
from ..node.protocol.wire import CommandKind, MoveFlag, Status
from ..units import bytes_in_words
from .child_process import BenchProcess, with_shim
from .lent_lots import LentLots
from .measure import Say, WrongContent
from .shim_peer import NOTHING_PRIVATE, Listener, MoveFailed, ShimPeer
from .sizes import GIB, MIB

SPARE_BYTES = 256 * MIB  # on the GPU, beside the two and what fills it
SIMULATED_SPARE_BYTES = 16 * MIB
HOST_SPARE_BYTES, LOT_BYTES = 1 * GIB, 256 * MIB  # where host memory is handed over
SIMULATED_HOST_SPARE_BYTES, SIMULATED_LOT_BYTES = 288 * MIB, 32 * MIB
PRIVATE_BYTES = 256 * MIB  # of a process beside its lots: the ring that copies go by, and its like
DUPLEX_REPEATS = 3
WARM_UP = 2  # the first touch host memory
HANDED_OVER = {"one copy of host memory, one user": False, "one copy of host memory, two users": True}
TRIES = 20
STEPS_OF = ("park: ", "resume: ")
# Between exchanges, as between a user's cells: the parked process registers what it was handed over.
RESTS_S, SIMULATED_RESTS_S = 2.0, 0.1
_seeds = itertools.count(1 << 20)


def exchange(listener: Listener, size: int, repeats: int, say: Say, *, simulated: bool) -> dict[str, Any]:
    """Return the seconds of each step."""
    say(f"exchange: copies out and in at once, {bytes_in_words(size)}")
    with BenchProcess() as child:
        duplex = child.ask("duplex_rates", size=min(size, 4 * GIB), repeats=DUPLEX_REPEATS)
    together = median(duplex["together_s"])
    found: dict[str, Any] = {
        "bytes": size,
        "one_way_bytes_per_s": duplex["bytes"] / together,
        "cases": {},
        "steps": {},
    }
    log = _log(listener)
    rounds = partial(_rounds, repeats=repeats, say=say, log=log, simulated=simulated)
    with (
        _pair(listener, size, ShimPeer.park, simulated=simulated) as pair,
        LentLots(0, LOT_BYTES, renewed=False) as none,
    ):
        at_once = partial(_at_once, lots=none, size=0)
        for name, way in (("one after the other", _one_after_the_other), ("exchange", at_once)):
            found["cases"][name], found["steps"][name] = rounds(name, pair, way)
    for name, two_users in HANDED_OVER.items():
        with ExitStack() as stack:
            lots = stack.enter_context(_lots_for(size, two_users=two_users, simulated=simulated))
            park = partial(_park_into_lots, lots=lots, size=size)
            pair = stack.enter_context(_pair(listener, size, park, simulated=simulated))
            way = partial(_at_once, lots=lots, size=size)
            found["cases"][name], found["steps"][name] = rounds(name, pair, way)
    return found


def _log(listener: Listener) -> Path:
    """Return the file in which both shims say what the steps of their moves take."""
    return listener.socket_path.with_name("shims.log")


@contextmanager
def _pair(
    listener: Listener, size: int, park: Callable[[ShimPeer], object], *, simulated: bool
) -> Iterator[list[BenchProcess]]:
    """Yield two processes for which the GPU has not enough memory: the resident one, and the parked one."""
    spare = SIMULATED_SPARE_BYTES if simulated else SPARE_BYTES
    with ExitStack() as stack:
        log = {environment.LOG: str(_log(listener))}
        resident, parked = (stack.enter_context(with_shim(listener, **log)) for _ in range(2))
        for child in (parked, resident):
            child.ask("hold", size=size, block=min(size, GIB))
            child.ask("change", seed=next(_seeds))
            if child is parked:
                park(_peer(child))
        filler = stack.enter_context(BenchProcess())
        rest = (int(filler.ask("room")["free_bytes"]) - spare) // (2 * MIB) * 2 * MIB
        if rest > 0:
            filler.ask("hold", size=rest, block=min(rest, GIB))
        yield [resident, parked]


def _rounds(
    name: str,
    pair: list[BenchProcess],
    change_places: Callable[[ShimPeer, ShimPeer], dict[str, float]],
    *,
    repeats: int,
    say: Say,
    log: Path,
    simulated: bool,
) -> tuple[list[dict[str, float]], list[str]]:
    """Exchange them again and again, and compare what they hold; return what it took, and the steps of the last time as
    the shims log them.
    """
    took, steps = [], []
    for _ in range(repeats + WARM_UP):
        say(f"exchange: {name}")
        resident, parked = pair
        resident.ask("change", seed=next(_seeds))
        time.sleep(SIMULATED_RESTS_S if simulated else RESTS_S)
        before = log.stat().st_size
        took.append(change_places(_peer(resident), _peer(parked)))
        if parked.ask("verify")["differing_words"]:
            raise WrongContent("words are not what was written before the exchange")
        pair.reverse()
        lines = log.read_bytes()[before:].decode(errors="replace").splitlines()
        steps = [line.split(" ", 2)[2].rstrip() for line in lines]  # without the time and the process
    return took[WARM_UP:], [step for step in steps if step.startswith(STEPS_OF)]


def _one_after_the_other(leaves: ShimPeer, comes: ShimPeer) -> dict[str, float]:
    begin = time.perf_counter()
    leaves.park()
    parked = time.perf_counter()
    comes.resume()
    return {"parked_s": parked - begin, "back_s": time.perf_counter() - begin}


def _lots_for(size: int, *, two_users: bool, simulated: bool) -> LentLots:
    """Return host memory for one process of `size` bytes and a little more."""
    lot, spare = LOT_BYTES, HOST_SPARE_BYTES
    if simulated:
        lot, spare = SIMULATED_LOT_BYTES, SIMULATED_HOST_SPARE_BYTES
    return LentLots(-(-size // lot) + spare // lot, lot, renewed=two_users)


def _park_into_lots(peer: ShimPeer, lots: LentLots, size: int) -> None:
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


def _at_once(leaves: ShimPeer, comes: ShimPeer, lots: LentLots, size: int) -> dict[str, float]:
    """Return the seconds until the one that leaves is prepared, until it is parked, and until the other one is
    resumed. `size`: the host memory that is handed over as lots; 0: each process has its own. Raises MoveFailed.
    """
    needs = -(-size // lots.size) + 1
    flags = MoveFlag.STREAM | MoveFlag.HAND_OVER if size else MoveFlag.STREAM
    while lots.being_made():
        lots.wait((leaves, comes))
    for _ in range(TRIES):
        begin = time.perf_counter()
        lots.lend(leaves, until=needs)
        park = leaves.begin(CommandKind.PARK, MoveFlag.PREPARE | flags | (NOTHING_PRIVATE if size else 0))
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
    resume = comes.begin(CommandKind.RESUME, flags)
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
        if size and peer.private_bytes() > PRIVATE_BYTES:
            raise MoveFailed(f"a process has {peer.private_bytes()} bytes of host memory beside its lots")
    return {"prepared_s": prepared - begin, **ends}


def _peer(child: BenchProcess) -> ShimPeer:
    assert child.peer is not None
    return child.peer


def lines(found: dict[str, Any]) -> list[str]:
    """Return what was found, as text."""
    rate, size = found["one_way_bytes_per_s"], found["bytes"]
    said = [
        f"copies out and in at once: {rate / GIB:.1f} GiB/s each way;"
        f" {bytes_in_words(size)} would take {size / rate:.3f} s"
    ]
    for name, tries in found["cases"].items():
        parts = [
            f"{step.removesuffix('_s')} after {median(each[step] for each in tries):.3f} s"
            for step in ("prepared_s", "parked_s", "back_s")
            if step in tries[0]
        ]
        whole = sorted(max(each["parked_s"], each["back_s"]) for each in tries)
        span = f"{whole[0]:.3f} to {whole[-1]:.3f} s in all"
        said.append(
            f"{name}: {', '.join(parts)}; {span}; {median(whole) * rate / size:.2f} of the link's time"
        )
        said += [f"    {step}" for step in found["steps"][name]]
    return said

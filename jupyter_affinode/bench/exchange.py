"""Exchanges of two processes on a full GPU: one move after the other, and both at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any

from ..node.protocol.wire import CommandKind, HelloFlag, MoveFlag, Status
from ..units import bytes_in_words
from .child_process import BenchProcess, with_shim
from .hand_over import hand_over, lots_for, park_into_lots
from .measure import Say, WrongContent
from .shim_peer import Listener, MoveFailed, ShimPeer
from .sizes import GIB, MIB

SPARE_BYTES = 256 * MIB  # on the GPU, beside the two and what fills it
SIMULATED_SPARE_BYTES = 16 * MIB
DUPLEX_REPEATS = 3
WARM_UP = 2  # the first touch host memory
HANDED_OVER = {"one copy of host memory, one user": False, "one copy of host memory, two users": True}
TRIES = 20
_seeds = itertools.count(1 << 20)


def exchange(listener: Listener, size: int, repeats: int, say: Say, *, simulated: bool) -> dict[str, Any]:
    """Return the seconds of each step; `skipped` tells why there are none."""
    say(f"exchange: copies out and in at once, {bytes_in_words(size)}")
    with BenchProcess() as child:
        duplex = child.ask("duplex_rates", size=min(size, 4 * GIB), repeats=DUPLEX_REPEATS)
    together = median(duplex["together_s"])
    found: dict[str, Any] = {
        "bytes": size,
        "one_way_bytes_per_s": duplex["bytes"] / together,
        "cases": {},
        "skipped": None,
    }
    with _pair(listener, size, ShimPeer.park, simulated=simulated) as pair:
        if not all(_peer(child).hello.flags & HelloFlag.EXCHANGES for child in pair):
            return {**found, "skipped": "this shim does not know exchanges"}
        for name, way in (("one after the other", _one_after_the_other), ("exchange", _at_once)):
            found["cases"][name] = _rounds(name, pair, way, repeats, say)
    for name, two_users in HANDED_OVER.items():
        listener.pools = not two_users
        with ExitStack() as stack:
            lots = stack.enter_context(lots_for(size, two_users=two_users, simulated=simulated))
            park = partial(park_into_lots, lots=lots, size=size)
            pair = stack.enter_context(_pair(listener, size, park, simulated=simulated))
            way = partial(hand_over, lots=lots, size=size)
            found["cases"][name] = _rounds(name, pair, way, repeats, say)
    return found


@contextmanager
def _pair(
    listener: Listener, size: int, park: Callable[[ShimPeer], object], *, simulated: bool
) -> Iterator[list[BenchProcess]]:
    """Yield two processes for which the GPU has not enough memory: the resident one, and the parked one."""
    spare = SIMULATED_SPARE_BYTES if simulated else SPARE_BYTES
    with ExitStack() as stack:
        resident, parked = (stack.enter_context(with_shim(listener)) for _ in range(2))
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
    repeats: int,
    say: Say,
) -> list[dict[str, float]]:
    """Exchange them again and again, and compare what they hold; return what it took."""
    took = []
    for _ in range(repeats + WARM_UP):
        say(f"exchange: {name}")
        resident, parked = pair
        resident.ask("change", seed=next(_seeds))
        took.append(change_places(_peer(resident), _peer(parked)))
        if parked.ask("verify")["differing_words"]:
            raise WrongContent("words are not what was written before the exchange")
        pair.reverse()
    return took[WARM_UP:]


def _one_after_the_other(leaves: ShimPeer, comes: ShimPeer) -> dict[str, float]:
    begin = time.perf_counter()
    leaves.park()
    parked = time.perf_counter()
    comes.resume()
    return {"parked_s": parked - begin, "back_s": time.perf_counter() - begin}


def _at_once(leaves: ShimPeer, comes: ShimPeer) -> dict[str, float]:
    """Return the seconds until the one that leaves is prepared, until it is parked, and until the other one is
    resumed.
    """
    for _ in range(TRIES):
        begin = time.perf_counter()
        park = leaves.begin(CommandKind.PARK, MoveFlag.PREPARE | MoveFlag.STREAM)
        while park not in leaves.prepared and park not in leaves.replies:
            leaves.take(0.5)
        if park in leaves.prepared:
            break
        if leaves.replies[park].status not in (Status.BUSY, Status.REVOKED):
            raise MoveFailed(f"park: {leaves.replies[park].text}")
    else:
        raise MoveFailed("park: it was not prepared")
    prepared = time.perf_counter()
    leaves.decide(park, CommandKind.COMMIT)
    resume = comes.begin(CommandKind.RESUME, MoveFlag.STREAM)
    ends: dict[str, float] = {}
    while len(ends) < 2:
        for name, peer, epoch in (("parked_s", leaves, park), ("back_s", comes, resume)):
            peer.take(0.0005)
            if epoch in peer.replies and name not in ends:
                ends[name] = time.perf_counter() - begin
                if peer.replies[epoch].status is not Status.OK:
                    reply = peer.replies[epoch]
                    raise MoveFailed(f"{name}: {reply.status.name}: {reply.text}")
    return {"prepared_s": prepared - begin, **ends}


def _peer(child: BenchProcess) -> ShimPeer:
    assert child.peer is not None
    return child.peer


def lines(found: dict[str, Any]) -> list[str]:
    """Return what was found, as text."""
    if found["skipped"]:
        return [f"not measured: exchange: {found['skipped']}"]
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
    return said

"""The measurements, each in a fresh process; they return data for the report, ready for JSON."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from ..node.protocol.page import Depth
from ..node.protocol.wire import HelloFlag
from ..node.system.lot_memory import STEP_BYTES, make_lot
from ..units import bytes_in_words
from .child_process import BenchProcess, ChildFailed, with_shim
from .shim_peer import Listener, Move, ShimPeer
from .sizes import GIB, MIB

Say = Callable[[str], None]
CEILING_BYTES = 4 * GIB
CEILING_ALLOC_BYTES = 1 * GIB  # cuMemHostAlloc is slow
SIMULATED_CEILING_BYTES = 64 * MIB
CEILING_REPEATS = 7
ONE_PERCENT = 0.01
LOT_WITHIN_S = 30.0
CONTEXT_WITHIN_S = 15.0
# Between a park and its resume. The driver goes on cleaning what was freed: into memory freed just before, copies ran
# at 47.3 GiB/s, into such of 0.1 s before at 50.8 (H200, driver 580). A kernel is parked for longer than that.
REST_S = 0.25

_seeds = itertools.count(1)  # no content is ever the same twice


class WrongContent(RuntimeError):
    """Memory was resumed with other contents than it was parked with: the one thing that must never happen."""


def ceiling(simulated: bool, room: int, say: Say) -> dict[str, Any]:
    """Return rates of pinned copies in bytes a second: the best median of two ways to pin, each way."""
    methods = []
    for pinned_by, most in (("register", CEILING_BYTES), ("alloc", CEILING_ALLOC_BYTES)):
        size = min(SIMULATED_CEILING_BYTES if simulated else most, room // (2 * MIB) * 2 * MIB)
        say(f"ceiling: pinned copies of {bytes_in_words(size)} ({pinned_by})")
        with BenchProcess() as child:
            times = child.ask("copy_rates", size=size, repeats=CEILING_REPEATS, pinned_by=pinned_by)
        methods.append({"pinned_by": pinned_by, "bytes": size, **times})
    rates = {
        way: max(method["bytes"] / median(method[f"{way}_s"]) for method in methods)
        for way in ("to_host", "to_device")
    }
    return {
        "to_host_bytes_per_s": rates["to_host"],
        "to_device_bytes_per_s": rates["to_device"],
        "methods": methods,
    }


def driver_checkpoint(sizes: tuple[int, ...], say: Say) -> dict[str, Any]:
    """Measure the driver's own checkpoint of a process that holds `size` bytes of random content."""
    cases: list[dict[str, Any]] = []
    for size in sizes:
        say(f"driver's checkpoint: {bytes_in_words(size)}")
        with BenchProcess() as child:
            child.ask("hold", size=size, block=min(size, GIB))
            child.ask("change", seed=next(_seeds))
            try:
                took = child.ask("checkpoint")
            except ChildFailed as error:
                return {"cases": cases, "skipped": str(error)}
            if "skipped" in took:
                return {"cases": cases, "skipped": took["skipped"]}
            verify(child)
        cases.append({"bytes": size, **took})
    return {"cases": cases, "skipped": None}


def moves(
    listener: Listener, size: int, block: int, repeats: int, say: Say, *, thorough: bool
) -> list[dict[str, Any]]:
    """Measure our parks and resumes of random content; `thorough` with contents that are unchanged or changed
    little.
    """
    say(f"ours: {bytes_in_words(size)} in blocks of {bytes_in_words(block)}")
    rows = _Rows(size, block)
    with with_shim(listener) as child:
        child.ask("hold", size=size, block=block)
        child.ask("change", seed=next(_seeds))
        _park_and_resume(child, rows, "first park")
        for _ in range(repeats):
            child.ask("change", seed=next(_seeds))
            _park_and_resume(child, rows, "park, all changed")
            if thorough:
                _park_and_resume(child, rows, "park, unchanged")
                child.ask("change", seed=next(_seeds), fraction=ONE_PERCENT)
                _park_and_resume(child, rows, "park, 1 % changed")
    # A process parks for the first time once, and how fast memory is touched differs from time to time.
    for _ in range(repeats - 1 if thorough else 0):
        with with_shim(listener) as child:
            child.ask("hold", size=size, block=block)
            child.ask("change", seed=next(_seeds))
            _park_and_resume(child, rows, "first park")
    return rows.as_json()


def first_park_with_lot(listener: Listener, size: int, say: Say) -> tuple[list[dict[str, Any]], str | None]:
    """Measure a first park into touched host memory, as a controller can keep it; return also why there is none."""
    say(f"ours: {bytes_in_words(size)}, first park into a lot")
    rows = _Rows(size, min(size, GIB), host="lot")
    lot_size = -(-size // STEP_BYTES) * STEP_BYTES
    with with_shim(listener) as child:
        assert child.peer is not None
        child.ask("hold", size=size, block=min(size, GIB))
        child.ask("change", seed=next(_seeds))
        lot = make_lot(lot_size, lambda _bytes: True)
        try:
            child.peer.give_lot(lot.descriptor, lot_size)
            deadline = time.monotonic() + LOT_WITHIN_S
            while child.peer.kept_bytes() < lot_size:  # mapped, and made ready for the GPU's copies
                child.peer.take(0.02)
                if time.monotonic() > deadline:
                    return [], "the shim did not make its lot ready"
            _park_and_resume(child, rows, "first park")
        finally:
            lot.let_go()
    return rows.as_json(), None


def zeros(listener: Listener, size: int, repeats: int, say: Say) -> list[dict[str, Any]]:
    """Measure our parks and resumes of memory that holds zeros, as a framework's preallocation does."""
    say(f"ours: {bytes_in_words(size)} of zeros")
    rows = _Rows(size, min(size, GIB))
    with with_shim(listener) as child:
        child.ask("hold", size=size, block=min(size, GIB))
        for _ in range(repeats):
            _park_and_resume(child, rows, "park, zeros", "resume, zeros")
    return rows.as_json()


def context_depth(
    listener: Listener, size: int, repeats: int, say: Say
) -> tuple[list[dict[str, Any]], str | None]:
    """Measure parks that take the CUDA context too; return also why there are none."""
    say(f"ours: {bytes_in_words(size)}, context depth")
    rows = _Rows(size, min(size, GIB), depth="context")
    with with_shim(listener, AFFINODE_DEPTH="context") as child:
        assert child.peer is not None
        if not child.peer.hello.flags & HelloFlag.CONTEXT:
            return [], "this shim or this driver cannot park a context"
        child.ask("hold", size=size, block=min(size, GIB))
        child.ask("change", seed=next(_seeds))
        why = _until_context(child.peer)
        if why is not None:
            return [], why
        for _ in range(repeats):
            child.ask("change", seed=next(_seeds))
            _park_and_resume(child, rows, "park, all changed", context=True)
    found = rows.as_json()
    depths = {depth for row in found if row["name"] != "resume" for depth in row["depths"]}
    if depths != {int(Depth.CONTEXT)}:
        return [], "not every park took the context"
    return found, None


def _until_context(peer: ShimPeer) -> str | None:
    """Park and resume until that takes the context too (a young process keeps it); return why it does not."""
    deadline = time.monotonic() + CONTEXT_WITHIN_S
    while True:
        move = peer.park(context=True)
        peer.resume()
        if move.depth == Depth.CONTEXT:
            return None
        if time.monotonic() > deadline:
            return move.text or "it was parked at memory depth"
        time.sleep(0.1)


def wake_by_peer(listener: Listener, size: int, repeats: int, say: Say) -> list[float]:
    """Return the seconds from a CUDA call in a parked process to its return, where the resume is commanded at once."""
    say(f"wake: {bytes_in_words(size)}, commanded at once")
    times = []
    with with_shim(listener) as child:
        assert child.peer is not None
        child.ask("hold", size=size, block=size)
        for _ in range(repeats):
            child.ask("change", seed=next(_seeds))
            child.peer.park()
            child.peer.wants = False
            child.begin("touch")
            while not child.peer.wants:
                child.peer.take(0.5)
            child.peer.resume()
            times.append(float(child.answer()["seconds"]))
            verify(child)
    return times


class _Rows:
    """Gathers moves of one size, block and depth by name."""

    def __init__(self, size: int, block: int, *, depth: str = "memory", host: str = "private"):
        self._same = {"bytes": size, "block_bytes": block, "depth": depth, "host": host}
        self._moves: dict[str, list[Move]] = {}

    def add(self, name: str, move: Move) -> None:
        self._moves.setdefault(name, []).append(move)

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                **self._same,
                "seconds": [move.seconds for move in moves_],
                "end_to_end_s": [move.end_to_end_s for move in moves_],
                "median_s": median(move.seconds for move in moves_),
                "moved_bytes": moves_[-1].bytes,
                "copied_bytes": moves_[-1].copied_bytes,
                "zero_bytes": moves_[-1].zero_bytes,
                "host_bytes": moves_[-1].copy_bytes,
                "mended_chunks": moves_[-1].mended_chunks,
                "depths": [move.depth for move in moves_],
                "tries": [move.tries for move in moves_],
            }
            for name, moves_ in self._moves.items()
        ]


def _park_and_resume(
    child: BenchProcess, rows: _Rows, park: str, resume: str = "resume", *, context: bool = False
) -> None:
    assert child.peer is not None
    rows.add(park, child.peer.park(context=context))
    time.sleep(REST_S)
    rows.add(resume, child.peer.resume())
    verify(child)


def verify(child: BenchProcess) -> None:
    """Raise WrongContent unless its memory holds what was written before the park."""
    wrong = child.ask("verify")["differing_words"]
    if wrong:
        raise WrongContent(f"{wrong} words of 8 bytes are not what was written before the park")

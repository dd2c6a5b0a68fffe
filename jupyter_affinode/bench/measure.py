"""The measurements, each in a fresh process; they return data for the report, ready for JSON."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from ..units import bytes_in_words
from .child_process import BenchProcess, with_shim
from .shim_peer import Listener, Move
from .sizes import GIB, MIB

Say = Callable[[str], None]
CEILING_BYTES = 4 * GIB
CEILING_ALLOC_BYTES = 1 * GIB  # cuMemHostAlloc is slow
SIMULATED_CEILING_BYTES = 64 * MIB
CEILING_REPEATS = 7
ONE_PERCENT = 0.01
# Between a park and its resume. The driver goes on cleaning what was freed: into memory freed just before, copies ran
# at 47.3 GiB/s, into such of 0.1 s before at 50.8 (H200, driver 580). A kernel is parked for longer than that.
REST_S = 0.25

seeds = itertools.count(1)  # no content is ever the same twice


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


def moves(
    listener: Listener, size: int, block: int, repeats: int, say: Say, *, thorough: bool = True
) -> list[dict[str, Any]]:
    """Measure our parks and resumes of random content; `thorough`: also of contents that are unchanged or changed
    little.
    """
    say(f"ours: {bytes_in_words(size)} in blocks of {bytes_in_words(block)}")
    rows = Rows(size, block)
    with with_shim(listener) as child:
        child.ask("hold", size=size, block=block)
        child.ask("change", seed=next(seeds))
        park_and_resume(child, rows, "first park")
        for _ in range(repeats):
            child.ask("change", seed=next(seeds))
            park_and_resume(child, rows, "park, all changed")
            if thorough:
                park_and_resume(child, rows, "park, unchanged")
                child.ask("change", seed=next(seeds), fraction=ONE_PERCENT)
                park_and_resume(child, rows, "park, 1 % changed")
    # A process parks for the first time once, and how fast memory is touched differs from time to time.
    for _ in range(repeats - 1 if thorough else 0):
        with with_shim(listener) as child:
            child.ask("hold", size=size, block=block)
            child.ask("change", seed=next(seeds))
            park_and_resume(child, rows, "first park")
    return rows.as_json()


class Rows:
    """Gathers moves of one size, block and depth by name."""

    def __init__(self, size: int, block: int, *, depth: str = "memory", host: str = "private"):
        self._same = {"bytes": size, "block_bytes": block, "depth": depth, "host": host}
        self._moves: dict[str, list[Move]] = {}

    def add(self, name: str, move: Move) -> None:
        """Add a move."""
        self._moves.setdefault(name, []).append(move)

    def as_json(self) -> list[dict[str, Any]]:
        """Return a row for each name."""
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


def park_and_resume(
    child: BenchProcess, rows: Rows, park: str, resume: str = "resume", *, context: bool = False
) -> None:
    """Park a child and resume it; add both moves. Raises WrongContent."""
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

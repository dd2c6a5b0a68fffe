"""Calls by entry point: counted while the controller asks for it, and not otherwise."""

from __future__ import annotations

from shim_machine import Running

COUNT = 13
S_NS = 10**9


def test_calls_are_counted_by_entry_point_from_the_first_look_until_none_is_asked_for(
    worker: Running,
) -> None:
    assert worker.peer.page().counted_since is None
    worker.ask("grow")
    worker.peer.command(COUNT, argument=60 * S_NS)
    worker.peer.wait(lambda page: page.counted_since is not None)
    assert worker.peer.page().entry_points == ()  # what was called before is not in it
    for _ in range(3):
        worker.ask("grow")
    worker.peer.wait(lambda page: dict(page.entry_points).get("cuCtxSynchronize", 0) >= 3)
    counted = dict(worker.peer.page().entry_points)
    assert counted["cuMemAlloc"] == 3 and sum("Memset" in name for name in counted) == 1
    assert list(counted.values()) == sorted(counted.values(), reverse=True)
    worker.peer.command(COUNT, argument=0)
    worker.peer.wait(lambda page: page.counted_since is None)
    worker.ask("grow")
    assert worker.peer.page().entry_points == ()


def test_a_shim_stops_counting_by_itself(worker: Running) -> None:
    worker.peer.command(COUNT, argument=3 * S_NS)  # long enough to be seen
    worker.peer.wait(lambda page: page.counted_since is not None)
    worker.peer.wait(lambda page: page.counted_since is None)

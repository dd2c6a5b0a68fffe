"""Calls by entry point: counted while the controller asks for it, and not otherwise."""

from __future__ import annotations

import struct

from link_peer import LinkPeer
from shim_machine import Running

from jupyter_affinode.node.protocol.page import PageData, parse_page

COUNT = 13
S_NS = 10**9


def data(peer: LinkPeer) -> PageData:
    """The page, while the shim does not write to it."""
    while True:
        raw = bytes(peer.map)
        (sequence,) = struct.unpack_from("=Q", raw, 24)
        if not sequence & 1 and bytes(peer.map[24:32]) == raw[24:32]:
            return parse_page(raw, float("inf"))


def test_calls_are_counted_by_entry_point_from_the_first_look_until_none_is_asked_for(
    worker: Running,
) -> None:
    assert data(worker.peer).counted_since is None
    worker.ask("grow")
    worker.peer.command(COUNT, argument=60 * S_NS)
    worker.peer.wait(lambda _: data(worker.peer).counted_since is not None)
    assert data(worker.peer).entry_points == ()  # what was called before is not in it
    for _ in range(3):
        worker.ask("grow")
    worker.peer.wait(lambda _: dict(data(worker.peer).entry_points).get("cuCtxSynchronize", 0) >= 3)
    counted = dict(data(worker.peer).entry_points)
    assert counted["cuMemAlloc"] == 3 and sum("Memset" in name for name in counted) == 1
    assert list(counted.values()) == sorted(counted.values(), reverse=True)
    worker.peer.command(COUNT, argument=0)
    worker.peer.wait(lambda _: data(worker.peer).counted_since is None)
    worker.ask("grow")
    assert data(worker.peer).entry_points == ()


def test_a_shim_stops_counting_by_itself(worker: Running) -> None:
    worker.peer.command(COUNT, argument=S_NS // 2)
    worker.peer.wait(lambda _: data(worker.peer).counted_since is not None)
    worker.peer.wait(lambda _: data(worker.peer).counted_since is None)

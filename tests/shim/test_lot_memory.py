"""Parks within their budget of host memory, and lots of the wrong size; c/mover/lots_again.c has the rest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from link_peer import LOT, NO_HOST_ROOM, OK, PARK, TRIM, LinkPeer, bytes_of
from memory_cgroup import memory_cgroup
from shim_machine import Machine, Running

MIB = 1 << 20
LOT_END = 6  # what is notified
ONE_MIB_BUDGET = 1 << 8  # in the argument of PARK: there is room for nothing
CONTENTS = (7).to_bytes(4, "little") * 1024  # a page of the worker's first block


@pytest.fixture
def memory() -> Iterator[int]:
    """A memory file of 32 MiB."""
    descriptor = os.memfd_create("lot")
    os.ftruncate(descriptor, 32 * MIB)
    yield descriptor
    os.close(descriptor)


def give(peer: LinkPeer, *descriptors: int, number: int = 5, size: int = 32 * MIB) -> None:
    peer.command(LOT, request=number, argument=size, descriptors=descriptors)


def has_ended(peer: LinkPeer, number: int = 5) -> bool:
    peer.pump()
    return (LOT_END, number, 0) in peer.notified


def holds_contents(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return any(os.pread(descriptor, 4096, at) == CONTENTS for at in range(0, size, MIB))


def has_open(running: Running, memory_file: str) -> bool:
    """Whether the process has the file open. Its other descriptors come and go: the shim reads files of /proc."""
    for descriptor in Path(f"/proc/{running.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(descriptor).startswith(f"/memfd:{memory_file} "):
                return True
    return False


def test_without_a_lot_a_park_stops_at_its_budget_and_says_what_it_takes(worker: Running) -> None:
    reply = worker.peer.reply_to(worker.peer.command(PARK, argument=ONE_MIB_BUDGET))
    assert (reply.status, reply.bytes) == (NO_HOST_ROOM, 8 * MIB)
    assert bytes_of(worker.peer.page()) == (8 * MIB, 0)
    assert worker.ask("check") is True


def test_a_lot_is_kept_in_a_pod_that_is_short_of_memory_since_it_is_none_of_the_pods(
    gpu: Machine, memory: int
) -> None:
    """Its memory limit is that of what the pod's processes took themselves."""
    with (
        memory_cgroup("pod", 256 * MIB) as pod,
        gpu.start_worker(*pod.command()) as worker,
    ):
        give(worker.peer, memory)
        worker.peer.wait(lambda page: page.retained_bytes == 32 * MIB)
        another = os.memfd_create("another")
        os.ftruncate(another, 32 * MIB)
        # Before the mover makes it ready, it looks at what memory is left.
        give(worker.peer, another, number=6)
        worker.peer.wait(lambda page: page.retained_bytes == 64 * MIB or has_ended(worker.peer))
        assert not has_ended(worker.peer)
        reply = worker.peer.reply_to(worker.peer.command(PARK, argument=ONE_MIB_BUDGET))
        assert reply.status == OK and (holds_contents(memory) or holds_contents(another))
        os.close(another)
        assert worker.ask("check") is True


@pytest.mark.parametrize("size", [0, MIB, 31 * MIB])
def test_a_lot_that_is_smaller_than_it_says_is_not_used(worker: Running, size: int) -> None:
    descriptor = os.memfd_create("small")
    os.ftruncate(descriptor, size)
    give(worker.peer, descriptor)
    os.close(descriptor)
    worker.peer.wait(lambda _: has_ended(worker.peer))
    worker.peer.wait(lambda page: page.lot_bytes == 0)
    worker.peer.wait(lambda _: not has_open(worker, "small"))


def test_descriptors_that_were_not_asked_for_are_closed(worker: Running, memory: int) -> None:
    worker.peer.command(TRIM, argument=1 << 40, descriptors=[memory])
    give(worker.peer, memory, memory, number=6)
    give(worker.peer, number=7)
    assert worker.peer.park().status == OK
    assert worker.ask("check") is True
    worker.peer.wait(lambda _: not has_open(worker, "lot"))

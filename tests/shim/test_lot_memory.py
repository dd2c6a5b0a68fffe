"""Lots in a process: used before its own memory, told of when they are empty, never taken for more than they are."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from link_peer import LOT, NO_HOST_ROOM, OK, PARK, TRIM, LinkPeer
from memory_cgroup import memory_cgroup
from shim_machine import HERE, Machine, Running

MIB = 1 << 20
LOT_END = 6  # what is notified
LOT_FORGET = 14
ONE_MIB_BUDGET = 1 << 8  # in the argument of PARK: there is room for nothing
CONTENTS = (7).to_bytes(4, "little") * 1024  # a page of the worker's first block


@pytest.fixture
def memory() -> Iterator[int]:
    """A memory file of 32 MiB."""
    descriptor = os.memfd_create("lot")
    os.ftruncate(descriptor, 32 * MIB)
    yield descriptor
    os.close(descriptor)


def lot_bytes(peer: LinkPeer) -> int:
    return int(struct.unpack_from("=Q", bytes(peer.map), 240)[0])


def kept_bytes(peer: LinkPeer) -> int:
    return int(struct.unpack_from("=Q", bytes(peer.map), 200)[0])


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


def test_a_park_goes_into_the_lot_and_the_resume_comes_out_of_it(worker: Running, memory: int) -> None:
    give(worker.peer, memory)
    worker.peer.wait(lambda _: lot_bytes(worker.peer) == 32 * MIB)
    worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)  # registered before it is parked
    reply = worker.peer.reply_to(worker.peer.command(PARK, argument=ONE_MIB_BUDGET))
    assert reply.status == OK
    assert holds_contents(memory)
    assert worker.ask("check") is True


def test_without_a_lot_a_park_stops_at_its_budget_and_says_what_it_takes(worker: Running) -> None:
    reply = worker.peer.reply_to(worker.peer.command(PARK, argument=ONE_MIB_BUDGET))
    assert (reply.status, reply.bytes) == (NO_HOST_ROOM, 8 * MIB)
    assert (worker.peer.page().parked_bytes, worker.peer.page().resident_bytes) == (0, 8 * MIB)
    assert worker.ask("check") is True


def test_a_lot_is_kept_in_a_pod_that_is_short_of_memory_since_it_is_none_of_the_pods(
    gpu: Machine, memory: int
) -> None:
    """Its memory limit is that of what the pod's processes took themselves."""
    with (
        memory_cgroup("pod", 256 * MIB) as pod,
        Running(gpu, *pod.command(sys.executable, HERE / "worker.py")) as worker,
    ):
        assert json.loads(worker.answer()) == "ready"
        give(worker.peer, memory)
        worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)
        another = os.memfd_create("another")
        os.ftruncate(another, 32 * MIB)
        # Before the mover makes it ready, it looks at what memory is left.
        give(worker.peer, another, number=6)
        worker.peer.wait(lambda _: kept_bytes(worker.peer) == 64 * MIB or has_ended(worker.peer))
        assert not has_ended(worker.peer)
        reply = worker.peer.reply_to(worker.peer.command(PARK, argument=ONE_MIB_BUDGET))
        assert reply.status == OK and (holds_contents(memory) or holds_contents(another))
        os.close(another)
        assert worker.ask("check") is True


def test_an_empty_lot_is_told_of_and_may_then_be_cut(worker: Running, memory: int) -> None:
    give(worker.peer, memory)
    worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)
    assert worker.peer.park().status == OK
    worker.peer.command(TRIM, argument=0)
    worker.peer.pump(0.3)
    assert not has_ended(worker.peer), "it holds what was on the GPU"
    assert worker.ask("check") is True
    worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)
    worker.peer.command(TRIM, argument=0)
    worker.peer.wait(lambda _: has_ended(worker.peer))
    os.ftruncate(memory, 0)  # at once: it is not touched any more, whatever the page still says
    worker.peer.wait(lambda _: lot_bytes(worker.peer) == 0)
    assert worker.peer.park().status == OK
    assert worker.ask("check") is True


def has_mapped(running: Running, memory_file: str = "lot") -> bool:
    return f"/memfd:{memory_file} " in Path(f"/proc/{running.process.pid}/maps").read_text()


def use_and_give_back(worker: Running, memory: int, number: int) -> None:
    """Park into the lot, resume, and give it back."""
    give(worker.peer, memory, number=number)
    worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)
    assert worker.peer.reply_to(worker.peer.command(PARK, argument=ONE_MIB_BUDGET)).status == OK
    assert holds_contents(memory)
    assert worker.ask("check") is True
    worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)
    worker.peer.command(TRIM, argument=0)
    worker.peer.wait(lambda _: has_ended(worker.peer, number))
    worker.peer.wait(lambda _: (lot_bytes(worker.peer), kept_bytes(worker.peer)) == (0, 0))


def test_a_lot_that_was_given_back_is_lent_again_after_another_process_had_it(
    worker: Running, memory: int
) -> None:
    use_and_give_back(worker, memory, number=5)
    assert has_mapped(worker)
    os.pwrite(memory, b"another process's" * MIB, 0)
    assert not holds_contents(memory)
    use_and_give_back(worker, memory, number=6)


def test_a_lot_that_was_given_back_is_unmapped_when_it_is_to_be_forgotten(
    worker: Running, memory: int
) -> None:
    use_and_give_back(worker, memory, number=5)
    assert has_mapped(worker)
    worker.peer.command(LOT_FORGET, descriptors=[memory])
    worker.peer.wait(lambda _: not has_mapped(worker))
    use_and_give_back(worker, memory, number=6)


def test_a_lot_that_has_contents_is_not_forgotten(worker: Running, memory: int) -> None:
    give(worker.peer, memory)
    worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)
    assert worker.peer.park().status == OK
    worker.peer.command(LOT_FORGET, descriptors=[memory])
    assert worker.ask("check") is True
    worker.peer.command(TRIM, argument=0)
    worker.peer.wait(lambda _: has_ended(worker.peer))
    worker.peer.wait(lambda _: not has_mapped(worker))


def test_what_stayed_of_lots_goes_when_the_controller_is_gone(
    gpu: Machine, worker: Running, memory: int
) -> None:
    use_and_give_back(worker, memory, number=5)
    assert has_mapped(worker)
    worker.peer.close()
    worker.peer = gpu.listener.accept()
    worker.peer.wait(lambda _: not has_mapped(worker))
    use_and_give_back(worker, memory, number=5)


@pytest.mark.parametrize("size", [0, MIB, 31 * MIB])
def test_a_lot_that_is_smaller_than_it_says_is_not_used(worker: Running, size: int) -> None:
    descriptor = os.memfd_create("small")
    os.ftruncate(descriptor, size)
    give(worker.peer, descriptor)
    os.close(descriptor)
    worker.peer.wait(lambda _: has_ended(worker.peer))
    worker.peer.wait(lambda _: lot_bytes(worker.peer) == 0)
    worker.peer.wait(lambda _: not has_open(worker, "small"))


def test_descriptors_that_were_not_asked_for_are_closed(worker: Running, memory: int) -> None:
    worker.peer.command(TRIM, argument=1 << 40, descriptors=[memory])
    give(worker.peer, memory, memory, number=6)
    give(worker.peer, number=7)
    assert worker.peer.park().status == OK
    assert worker.ask("check") is True
    worker.peer.wait(lambda _: not has_open(worker, "lot"))


def test_after_another_controller_came_an_old_lot_is_used_and_its_end_is_not_told(
    gpu: Machine, worker: Running, memory: int
) -> None:
    give(worker.peer, memory)
    worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)
    worker.peer.close()
    worker.peer = gpu.listener.accept()
    assert lot_bytes(worker.peer) == 32 * MIB
    reply = worker.peer.reply_to(worker.peer.command(PARK, argument=ONE_MIB_BUDGET))
    assert reply.status == OK and holds_contents(memory)
    assert worker.ask("check") is True
    worker.peer.wait(lambda _: kept_bytes(worker.peer) == 32 * MIB)
    worker.peer.command(TRIM, argument=0)
    worker.peer.wait(lambda _: lot_bytes(worker.peer) == 0)
    worker.peer.pump(0.2)
    assert not [notified for notified in worker.peer.notified if notified[0] == LOT_END]

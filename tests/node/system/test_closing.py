"""A close that blocks ends at a signal, and holds up the descriptors of no other sender if it does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import threading

import pytest
from waiting import until

from jupyter_affinode.node.system import closing, peer_socket
from jupyter_affinode.node.system.closing import Closing
from jupyter_affinode.node.system.peer_socket import ListeningSocket


@pytest.fixture
def lingering():
    """`lingering()`: the descriptor of a socket whose close waits for its peer, which never reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as deaf:

        def make() -> int:
            made = socket.create_connection(deaf.getsockname())
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 3600))
            made.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    made.send(bytes(1 << 16))
            return made.detach()

        yield make


@pytest.fixture
def interrupts():
    """As in the controller's process."""
    before = signal.getsignal(closing.INTERRUPT)
    closing.let_closes_be_interrupted()
    yield
    signal.signal(closing.INTERRUPT, before)


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_one_that_lingers_is_closed_though_its_peer_never_reads(lingering, interrupts):
    async def close_them():
        closer = Closing()
        closer.close("mallory", [lingering() for _ in range(50)])
        await until(lambda: len(closer) == 0)

    asyncio.run(close_them())


def test_a_close_that_no_signal_ends_holds_up_no_other_sender(lingering):
    async def close_them():
        closer = Closing()
        closer.close("mallory", [lingering()])
        ours, theirs = socket.socketpair()
        closer.close("alice", [ours.detach()])
        with theirs:
            await until(lambda: not theirs.recv(1) if len(closer) == 1 else False)
        closer.stop()

    asyncio.run(close_them())


def test_what_no_thread_could_be_started_for_is_closed_soon(monkeypatch):
    start, tries = threading.Thread.start, []

    def fail_once(thread):
        tries.append(thread)
        if len(tries) == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def close_them():
        closer = Closing()
        ours, theirs = socket.socketpair()
        with theirs:
            monkeypatch.setattr(threading.Thread, "start", fail_once)
            with contextlib.suppress(RuntimeError):
                closer.close("alice", [ours.detach()])
            await until(lambda: len(closer) == 0)
            assert theirs.recv(1) == b""
        closer.stop()

    asyncio.run(close_them())


def test_an_error_of_one_leaves_no_other_open():
    async def close_them():
        closer = Closing()
        pairs = [os.pipe() for _ in range(2)]
        descriptors = [pairs[0][0], -1, *pairs[1], pairs[0][1]]
        pipes = {each: os.fstat(each).st_ino for each in descriptors if each >= 0}
        closer.close("mallory", descriptors)
        await until(lambda: len(closer) == 0)
        # Another thread of this process may have a number by now.
        assert not any(is_open(each) and os.fstat(each).st_ino == pipe for each, pipe in pipes.items())

    asyncio.run(close_them())


def test_a_connection_that_holds_no_descriptors_is_closed_without_a_thread(tmp_path):
    async def accept_and_close():
        closer = Closing()
        with ListeningSocket(socket.SOCK_STREAM, closer, takes_descriptors=False) as listening:
            if not peer_socket.refuse_descriptors(listening):
                pytest.skip("this Linux cannot refuse descriptors")
            listening.listen_at(tmp_path / "node.sock", 0o600, 5)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "node.sock"))
                accepted, _ = listening.accept()
                accepted.close()
                assert client.recv(1) == b""
        assert len(closer) == 0 and not closer._threads

    asyncio.run(accept_and_close())

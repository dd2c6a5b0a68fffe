"""What a kernel needs to find again, and another program has taken meanwhile: each is told before CRIU starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_machine import Machine
from lone_kernel import LoneKernel, Refused

from jupyter_affinode.hibernation.files import TERMINAL, objection_to_files
from jupyter_affinode.hibernation.terminals import TerminalsHeld

HAS = """
import fcntl, os, pty, socket
os.makedirs("place", exist_ok=True)
place = os.open("place", os.O_RDONLY)
os.mkfifo("fifo"); fifo = os.open("fifo", os.O_RDWR)
whole = open("whole.h5", "w"); fcntl.flock(whole, fcntl.LOCK_EX)
part = open("part.db", "w+"); part.write("x" * 100); part.flush(); fcntl.lockf(part, fcntl.LOCK_EX, 10, 20)
pairs = [pty.openpty() for _ in range(20)]  # CRIU finds one of 32
master, slave = pairs.pop()
for pair in pairs: os.close(pair[0]); os.close(pair[1])
server = socket.create_server(("127.0.0.78", 0))
print(os.ttyname(slave), server.getsockname()[1])
"""
STILL_HAS = """
client = socket.create_connection(server.getsockname())
os.write(slave, b"x"); os.write(fifo, b"y")
print(os.read(master, 9), os.read(fifo, 9), os.listdir(place))
"""


@contextlib.contextmanager
def locked(path: Path, lock: Callable[..., object], *where: int) -> Iterator[None]:
    """Another program has locked a file."""
    with path.open("r+") as file:
        lock(file, fcntl.LOCK_EX, *where)
        yield


@contextlib.contextmanager
def terminal(name: str) -> Iterator[None]:
    """Another program has a terminal of that name."""
    taken: list[int] = []
    try:
        while name not in [os.ttyname(each) for each in taken[1::2]]:
            taken += os.openpty()
        yield
    finally:
        for each in taken:
            os.close(each)


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    """Another program listens at a port."""
    with socket.create_server(("127.0.0.78", port)):
        yield


@contextlib.contextmanager
def elsewhere(path: Path) -> Iterator[None]:
    """A file or folder is not where it was."""
    aside = path.with_name("aside")
    path.rename(aside)
    yield
    aside.rename(path)


@contextlib.contextmanager
def other_kind(path: Path) -> Iterator[None]:
    """A folder is a file."""
    with elsewhere(path):
        path.touch()
        yield
        path.unlink()


@pytest.mark.long
def test_what_another_program_took_is_told_before_a_wake_begins(gpu_machine_with_criu: Machine) -> None:
    with LoneKernel(gpu_machine_with_criu, uses_gpu=False) as kernel:
        name, port = kernel.run(HAS).split()
        work, here = kernel.machine.work, f"process {os.getpid()}"
        kernel.hibernate()
        taken = {
            f"has locked {work}/whole.h5, which the kernel had locked": locked(
                work / "whole.h5", fcntl.flock
            ),
            f"has locked {work}/part.db, which the kernel had locked": locked(
                work / "part.db", fcntl.lockf, 5, 25
            ),
            f"its terminal {name} is another program's now": terminal(name),
            f"has port {port}, at which the kernel listened": listening(int(port)),
            f"the folder {work}/place is not there any more: the kernel worked in it": elsewhere(
                work / "place"
            ),
            f"{work}/place is a file now, and the kernel had a folder there": other_kind(work / "place"),
            f"the file {work}/fifo is not there any more": elsewhere(work / "fifo"),
        }
        for words, hold in taken.items():
            kernel.kill_keeper()  # which holds its terminal and ports
            with hold:
                kernel.start_keeper()
                with pytest.raises(Refused) as refused:
                    kernel.wake()
            assert words in str(refused.value)
            assert ("any more" in words or "is a file" in words) or here in str(refused.value)
            assert kernel.is_hibernated()
        with locked(work / "part.db", fcntl.lockf, 5, 50):  # beside what the kernel had
            kernel.wake()
        assert kernel.run(STILL_HAS) == "b'x' b'y' []\n"
        kernel.check()


def test_a_terminals_number_is_held_until_it_is_let_go() -> None:
    pairs = [os.openpty() for _ in range(64)]
    name = os.ttyname(pairs[-1][1])
    for each in pairs:
        os.close(each[0])
        os.close(each[1])
    needed = {name: [TERMINAL]}
    held = TerminalsHeld(needed)
    assert os.path.exists(name)
    assert objection_to_files(needed, {}) is None, "it is held for the kernel"
    held.free()
    assert not os.path.exists(name) and objection_to_files(needed, {}) is None

"""Input and output that another program gave a kernel: a pipe, a terminal, a socket. At a wake it is /dev/null."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from live_machine import Machine
from lone_kernel import LoneKernel, Refused

LOOK = """
import os
print({os.readlink(f"/proc/self/fd/{number}") for number in outer})
"""
OUTER = """
import os
def leads_out(number):
    try:
        there = os.stat(number)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) in WHERE
outer = [number for number in map(int, os.listdir("/proc/self/fd")) if leads_out(number)]
print(len(outer))
"""
WRITE = "print([os.write(number, b'x') for number in outer if number])"


@contextlib.contextmanager
def pipe() -> Iterator[dict[str, Any]]:
    """Output goes through a pipe to another program."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        try:
            yield {"stdout": reader.stdin, "stderr": reader.stdin}
        finally:
            reader.kill()


@contextlib.contextmanager
def terminal() -> Iterator[dict[str, Any]]:
    """All is a terminal that another program has."""
    master, slave = os.openpty()
    yield {"stdin": slave, "stdout": slave, "stderr": slave}
    os.close(master)
    os.close(slave)


@contextlib.contextmanager
def sockets() -> Iterator[dict[str, Any]]:
    """All is a socket, as where Node.js starts a program."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield {"stdin": theirs, "stdout": theirs, "stderr": theirs}


KINDS = {"a pipe": pipe, "a terminal": terminal, "sockets": sockets}


@pytest.mark.long
@pytest.mark.parametrize("holds_output", [pytest.param(True, marks=pytest.mark.long), False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_another_program_gave_a_kernel_leads_nowhere_after_a_wake(
    gpu_machine_with_criu: Machine, kind: str, holds_output: bool
) -> None:
    kernel = LoneKernel(gpu_machine_with_criu, uses_gpu=False)
    if holds_output:
        kernel.environment.pop("PYTEST_CURRENT_TEST", None)  # with it ipykernel leaves its output where it is
    with KINDS[kind]() as kernel.streams, kernel:
        there = [
            os.fstat(each if isinstance(each, int) else each.fileno()) for each in kernel.streams.values()
        ]
        where = {(each.st_dev, each.st_ino) for each in there}
        assert int(kernel.run(OUTER.replace("WHERE", repr(where)))) >= 2
        for _ in range(2):
            kernel.hibernate()
            kernel.wake()
            kernel.check()
            assert kernel.run(LOOK) == "{'/dev/null'}\n"
        kernel.run(WRITE)


@pytest.mark.long
def test_a_log_that_is_deleted_keeps_no_kernel_asleep(gpu_machine_with_criu: Machine) -> None:
    """As a batch job's output. Deleted before it is /dev/null, deleted while the kernel is away it is made anew."""
    kernel = LoneKernel(gpu_machine_with_criu, uses_gpu=False)
    log, folder = kernel.machine.work / "logs" / "slurm-38.out", kernel.machine.work / "logs"
    folder.mkdir()
    with log.open("a") as kernel.streams["stdout"], kernel:
        kernel.hibernate()
        log.unlink()
        folder.rmdir()
        with pytest.raises(Refused, match=f"the folder {folder} is not there any more"):
            kernel.wake()
        folder.mkdir()
        kernel.wake()
        kernel.run("import os; os.write(1, b'after it')")
        assert log.read_bytes().endswith(b"after it")
        kernel.check()
        log.unlink()
        kernel.hibernate()
        kernel.wake()
        kernel.check()
        assert os.readlink(f"/proc/{kernel.pid}/fd/1") == os.devnull

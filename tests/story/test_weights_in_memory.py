"""What parked kernels of a user have in common is in host memory once, whatever becomes of each."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_cells import SETUP
from live_machine import Machine
from live_server import JupyterKernel, JupyterServer
from waiting import wait_until

MIB = 1 << 20
WEIGHTS_MIB, OWN_MIB = 16, 2
SMALL_MIB = 3  # of each kernel: what its checksums take, and the ends of packs
OPTIONS = ["--park-when=idle", "--idle-timeout=0.1", "--low-watermark=0", "--lot-bytes=0"]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in host memory."""
    with tempfile.TemporaryDirectory(prefix="aff-share-", dir="/dev/shm") as folder:
        yield Path(folder)


def packs(folder: Path) -> int:
    """What the packs below the folder take, each once."""
    found = [path.stat() for path in folder.glob("affinode-*/*/gpu-*")]
    return sum({status.st_ino: status.st_blocks * 512 for status in found}.values())


class Course:
    """Kernels of one user, all with the same weights, and each with some memory of its own."""

    def __init__(self, machine: Machine, folder: Path):
        self.machine, self.folder = machine, folder
        self.start_controller()
        self.server = JupyterServer(machine).start()
        self.kernels: list[JupyterKernel] = []

    def start_controller(self) -> None:
        """Start one that has kernels share."""
        self.machine.start_controller(f"--share-dir={self.folder}", *OPTIONS)

    def add(self) -> JupyterKernel:
        """Start one more, with all on the GPU."""
        kernel = self.server.start_kernel()
        seed = 100 + len(self.kernels)
        done = kernel.run(
            f"{SETUP}\nweights = Block({WEIGHTS_MIB}, seed=9)\nown = Block({OWN_MIB}, seed={seed})\n"
            "whole = weights.checksum(), own.checksum()"
        )
        assert done.status == "ok", done
        self.kernels.append(kernel)
        return kernel

    def share(self) -> None:
        """Wait until all are parked, and have the weights in common."""

        def do() -> bool:
            seen = [self.machine.kernel(kernel.id) or {} for kernel in self.kernels]
            return all(each.get("shared_bytes", 0) >= (WEIGHTS_MIB - 2) * MIB for each in seen)

        wait_until(do, 60, self.machine.controller_log)

    def takes(self) -> tuple[int, int]:
        """What is allowed in host memory, and what is there: packs, and what kernels have by themselves."""
        alone = sum((self.machine.kernel(kernel.id) or {})["copy_bytes"] for kernel in self.kernels)
        return (WEIGHTS_MIB + len(self.kernels) * (OWN_MIB + SMALL_MIB)) * MIB, packs(self.folder) + alone

    def has_its_own(self, kernel: JupyterKernel) -> None:
        """Assert that what it has on the GPU is right."""
        ran = kernel.run("print((weights.checksum(), own.checksum()) == whole)")
        assert ran.text == "True\n", self.machine.controller_log()


@pytest.mark.timeout(240)
def test_parked_kernels_have_their_weights_once_and_each_its_own(native, machine: Machine, shared: Path):
    machine.simulate()
    course = Course(machine, shared)
    first, second, third = (course.add() for _ in range(3))
    course.share()
    allowed, there = course.takes()
    assert there <= allowed, machine.controller_log()
    host = machine.node()["host"]
    assert WEIGHTS_MIB * MIB - host["shared_bytes"] <= SMALL_MIB * MIB
    assert "several kernels share" in machine.affinode("status").stdout
    for kernel in course.kernels:
        course.has_its_own(kernel)
    first.run("weights.fill(11); whole = weights.checksum(), own.checksum()")
    second.run("weights.checksum()")
    wait_until(lambda: machine.kernel(first.id)["residency"] == "parked")
    for kernel in course.kernels:
        course.has_its_own(kernel)
    first.run("weights.fill(9); whole = weights.checksum(), own.checksum()")
    course.share()

    os.kill(second.pid, signal.SIGKILL)
    course.kernels.remove(second)
    course.share()
    controller = machine.controller_pid()
    assert controller is not None
    os.kill(controller, signal.SIGKILL)
    with contextlib.suppress(
        AssertionError
    ):  # the server may have started one already, which has nothing shared
        course.start_controller()
    for kernel in (first, third):
        course.has_its_own(kernel)

"""Processes that are lent host memory, keep its descriptors, and would be lent more: one after the other.

One hands what it was lent to another process and ends; one says that it has given back what it still has mapped; one
hangs up and connects again, and so on.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
import uuid
from typing import NoReturn

import attacking  # noqa: F401  # finds the next ones
import fake_shim
from attacking import FOLDER, goes_on, node, under_way
from fake_shim import LOT_END, MIB, PARK, FakeShim, notify

from jupyter_affinode.bench.driver import Driver

ROUNDS = 3
GPU_BYTES = 100 * MIB


def use_gpu() -> None:
    """Have as much on the GPU as the shims say; else nothing is lent."""
    fake_shim.GPU = uuid.UUID(node()["gpus"][0]["uuid"].removeprefix("GPU-")).bytes
    Driver().allocate(GPU_BYTES)


def borrow(name: str) -> FakeShim:
    """Be parked; before that comes a lot, if there is one."""
    shim = FakeShim(FOLDER, name, resident=GPU_BYTES)
    while not shim.heard.of(PARK):
        time.sleep(0.01)
    return shim


def wait_for_a_lot() -> None:
    """Wait until there is one to be had."""
    while not node()["host"]["lots"]["ready_bytes"]:
        time.sleep(0.03)  # not more often than one user may ask


def held(descriptors: list[int]) -> int:
    """How much memory is behind these."""
    return sum(os.fstat(descriptor).st_blocks * 512 for descriptor in descriptors)


def hand_on(number: int, to: socket.socket) -> NoReturn:
    """Be lent a lot, give it to another process and end."""
    use_gpu()
    wait_for_a_lot()
    while not (shim := borrow(f"handing-{number}")).heard.lots:  # NVML did not show this process yet
        shim.close()
    socket.send_fds(to, [b"x"], list(shim.heard.lots.values()))
    os._exit(0)


def main() -> None:
    """Borrow all that can be had."""
    taken: list[int] = []
    for number in range(ROUNDS):
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            hand_on(number, theirs)
        os.waitpid(child, 0)
        taken += socket.recv_fds(ours, 1, 4)[1]
    handed = len(taken)
    use_gpu()
    mapped = []
    for number in range(ROUNDS):
        wait_for_a_lot()
        while not (shim := borrow(f"lying-{number}")).heard.lots:
            shim.close()
        for lot, descriptor in shim.heard.lots.items():
            mapped.append(mmap.mmap(descriptor, 64 * MIB))
            taken.append(os.dup(descriptor))
            shim.send(notify(LOT_END, number=lot))
    lied = len(taken) - handed
    wait_for_a_lot()
    for _ in range(ROUNDS):
        shim = borrow("hanging-up")
        taken += [os.dup(descriptor) for descriptor in shim.heard.lots.values()]
        shim.close()
    under_way(handed=handed, lied=lied, kept=len(taken) - handed - lied, held=held(taken))
    while goes_on(0.1):
        pass


if __name__ == "__main__":
    main()

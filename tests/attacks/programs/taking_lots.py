"""Processes that are lent host memory, keep its descriptors, and would be lent more: one after the other.

One hands what it was lent to another process and ends; one says that it has given back what it still has mapped; one
hangs up and connects again, and so on. Each has GPU memory of its own: for what another page of its process says that
it parked, none is parked again.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import NoReturn

import attacking  # noqa: F401  # finds the next ones
import fake_shim
from attacking import FOLDER, goes_on, node, under_way
from fake_shim import LOT_END, MIB, PARK, FakeShim, notify

from jupyter_affinode.bench.driver import Driver

ROUNDS = 3
GPU_BYTES = 100 * MIB
PARKED_WITHIN_S = 5.0


def use_gpu() -> None:
    """Have as much on the GPU as the shims say; else nothing is lent."""
    fake_shim.GPU = uuid.UUID(node()["gpus"][0]["uuid"].removeprefix("GPU-")).bytes
    Driver().allocate(GPU_BYTES)


def borrow(name: str) -> FakeShim:
    """Be parked, if it is believed; before that comes a lot, if there is one."""
    shim, began = FakeShim(FOLDER, name, resident=GPU_BYTES), time.monotonic()
    while not shim.heard.of(PARK) and time.monotonic() - began < PARKED_WITHIN_S:
        time.sleep(0.01)
    return shim


def wait_for_a_lot() -> None:
    """Wait until there is one to be had."""
    while not node()["host"]["lots"]["ready_bytes"]:
        time.sleep(0.03)  # not more often than one user may ask


def held(descriptors: list[int]) -> int:
    """How much memory is behind these."""
    return sum(os.fstat(descriptor).st_blocks * 512 for descriptor in descriptors)


def borrow_a_lot(name: str) -> FakeShim:
    """Use the GPU, and be lent a lot for that."""
    use_gpu()
    wait_for_a_lot()
    while not (shim := borrow(name)).heard.lots:  # NVML did not show this process yet
        shim.close()
    return shim


def hand_on(number: int, to: socket.socket) -> NoReturn:
    """Be lent a lot, give it to another process and end."""
    shim = borrow_a_lot(f"handing-{number}")
    socket.send_fds(to, [b"x"], list(shim.heard.lots.values()))
    os._exit(0)


def lie(number: int, to: socket.socket) -> NoReturn:
    """Be lent a lot, say that it is given back, and keep it mapped."""
    shim = borrow_a_lot(f"lying-{number}")
    mapped = [mmap.mmap(descriptor, 64 * MIB) for descriptor in shim.heard.lots.values()]
    for lot in shim.heard.lots:
        shim.send(notify(LOT_END, number=lot))
    socket.send_fds(to, [b"x"], list(shim.heard.lots.values()))
    while mapped and goes_on(0.1):
        pass
    os._exit(0)


def taken_by(does: Callable[[int, socket.socket], NoReturn]) -> list[int]:
    """What processes that do this, one after the other, were lent."""
    taken: list[int] = []
    for number in range(ROUNDS):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            does(number, theirs)
        taken += socket.recv_fds(ours, 1, 4)[1]
    return taken


def main() -> None:
    """Borrow all that can be had."""
    handed, lied = taken_by(hand_on), taken_by(lie)
    use_gpu()
    wait_for_a_lot()
    kept = []
    for _ in range(ROUNDS):
        shim = borrow("hanging-up")
        kept += [os.dup(descriptor) for descriptor in shim.heard.lots.values()]
        shim.close()
    under_way(handed=len(handed), lied=len(lied), kept=len(kept), held=held([*handed, *lied, *kept]))
    while goes_on(0.1):
        pass


if __name__ == "__main__":
    main()

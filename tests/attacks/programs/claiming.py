"""Processes that claim much GPU memory on every GPU, have none or little, and make nothing of a park or an exchange.

`claiming.py FOLDER WAY COUNT MEBIBYTES [REAL]`: how a process answers when it is to be parked (see `WAYS`), how many
processes there are, how much each claims on each GPU, and how much this program really has on the first.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable

import attacking  # noqa: F401  # finds the next ones
from attacking import FOLDER, goes_on, node, under_way
from fake_shim import (
    ABORT,
    BUSY,
    COMMIT,
    FAILED,
    MIB,
    OK,
    PARK,
    PARKED,
    PARKING,
    PREPARE,
    PREPARED,
    RESIDENT,
    WANT,
    Command,
    FakeShim,
    notify,
    reply,
)

from jupyter_affinode.bench.driver import Driver


class Claiming(FakeShim):
    """One that has claimed `memory` for long."""

    def __init__(self, name: str, memory: dict[bytes, int], way: str):
        super().__init__(FOLDER, name)
        self.name, self.claim, self.way = name, memory, way
        self.on_command = self.answer
        self.is_over = False
        self.say()

    def say(self) -> None:
        """Claim the memory, never used."""
        with self._lock:
            self.page.memory = {gpu: [size, 0, 0] for gpu, size in self.claim.items()}
            self.page.last_activity = 1  # since the machine began
        self.become(RESIDENT)

    def answer(self, command: Command) -> None:
        """Answer a command in this process's way."""
        if command.kind in (PARK, COMMIT, ABORT):
            WAYS[self.way](self, command)

    def end(self, command: Command, status: int) -> None:
        """Say how a move ended."""
        epoch = command.request if command.kind in (COMMIT, ABORT) else command.epoch
        self.send(reply(PARK, epoch, status, sum(self.claim.values()), f"status {status}"))


def silent(shim: Claiming, command: Command) -> None:
    """Say nothing."""


def busy(shim: Claiming, command: Command) -> None:
    """Be at work whenever it is asked."""
    shim.end(command, BUSY)


def done(shim: Claiming, command: Command) -> None:
    """Be parked as it says, free nothing, and claim all of it again soon."""
    if command.argument & PREPARE and command.kind == PARK:
        shim.become(PARKING)
        shim.end(command, PREPARED)
        return
    with shim._lock:
        shim.page.memory = {gpu: [0, size, 0] for gpu, size in shim.claim.items()}
        shim.page.parks += 1
    shim.become(PARKED)
    shim.end(command, OK)
    threading.Timer(0.5, shim.say).start()


def wanting(shim: Claiming, command: Command) -> None:
    """Prepare, and use the GPU when all are about to go."""
    if command.kind == PARK:
        shim.become(PARKING)
        shim.end(command, PREPARED)
        shim.page.want = 1
        shim.page.write()
        shim.send(notify(WANT))
    else:
        shim.page.want = 0
        shim.say()
        shim.end(command, BUSY)


def failing(shim: Claiming, command: Command) -> None:
    """Prepare, and fail once it is to go."""
    if command.kind == PARK and command.argument & PREPARE:
        shim.become(PARKING)
        shim.end(command, PREPARED)
    else:
        shim.say()
        shim.end(command, FAILED)


def staying(shim: Claiming, command: Command) -> None:
    """Prepare, and say nothing more."""
    if command.kind == PARK:
        shim.become(PARKING)
        shim.end(command, PREPARED)


def leaving(shim: Claiming, command: Command) -> None:
    """Prepare, and hang up for good; another process takes its place."""
    if command.kind == PARK:
        shim.become(PARKING)
        shim.end(command, PREPARED)
        shim.is_over = True
        shim.hang_up()


WAYS: dict[str, Callable[[Claiming, Command], None]] = {
    each.__name__: each for each in (silent, busy, done, wanting, failing, staying, leaving)
}


def main() -> None:
    """Make them, and put another in the place of each that has ended."""
    way, count, claim = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) * MIB
    gpus = [uuid.UUID(gpu["uuid"].removeprefix("GPU-")).bytes for gpu in node()["gpus"]]
    if len(sys.argv) > 5:
        Driver().allocate(int(sys.argv[5]) * MIB)
    memory = dict.fromkeys(gpus, claim)
    made = [Claiming(f"fake-{number}", memory, way) for number in range(count)]
    under_way()
    while goes_on(0.1):
        for number, shim in enumerate(made):
            if shim.is_over:
                shim.close()
                count += 1
                made[number] = Claiming(f"fake-{count}", memory, way)


if __name__ == "__main__":
    main()

"""Processes that ask for the whole GPU again and again and take nothing: one says it resumes, the others are silent."""

from __future__ import annotations

import uuid

from attacking import FOLDER, goes_on, node, under_way
from fake_shim import QUEUED, RESUME, RESUMING, Command, FakeShim

FAKES = 12


class Fake(FakeShim):
    """One that is told to resume now and then."""

    def ask_for(self, gpu: bytes, size: int) -> None:
        """Say that so much of that GPU is parked and wanted."""
        self.answers = False
        self.page.memory = {gpu: [0, size, 0]}
        self.become(QUEUED)

    def say_so_for_ever(self) -> None:
        """Begin each resume, and never end it."""

        def begin(command: Command) -> None:
            if command.kind == RESUME:
                self.become(RESUMING)

        self.on_command = begin


def main() -> None:
    """Make them, and wait."""
    (gpu,) = node()["gpus"]
    fakes = [Fake(FOLDER, f"fake-{number}") for number in range(FAKES)]
    fakes[0].say_so_for_ever()
    for fake in fakes:
        fake.ask_for(uuid.UUID(gpu["uuid"].removeprefix("GPU-")).bytes, gpu["total_bytes"] * 9 // 10)
    under_way()
    while goes_on(0.1):
        pass


if __name__ == "__main__":
    main()

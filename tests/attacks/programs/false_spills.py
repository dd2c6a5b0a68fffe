"""Processes without GPU memory that say they are parked: `false_spills.py FOLDER KERNELS MEBIBYTES HOW`.

Each says that so much of its memory could go to disk. HOW it answers when it is to: `written` (it was not), `revoked`
(for no call), or not at all (`mute`). With `real-` they have that much memory of the machine, all together; with
`-renewed` each connects as another kernel after it was asked.
"""

from __future__ import annotations

import sys
import threading

import attacking  # noqa: F401  # finds the next ones
from attacking import FOLDER, goes_on, under_way
from fake_shim import OK, PARKED, REVOKED, Command, FakeShim, reply

SPILL = 12  # a command
COUNT, SIZE, HOW = int(sys.argv[2]), int(sys.argv[3]) << 20, sys.argv[4]


class Liar:
    """One of them."""

    def __init__(self, name: str):
        self._number = 0
        self._name = name
        self._changed = threading.Event()
        self._connect()

    def _connect(self) -> None:
        self._shim = FakeShim(FOLDER, f"{self._name}-{self._number}", parked=SIZE, state=PARKED)
        self._shim.page.host[0] = SIZE
        self._shim.page.write()
        self._shim.on_command = self._take

    def _take(self, command: Command) -> None:
        if command.kind != SPILL:
            return
        if "written" in HOW:
            self._shim.send(reply(SPILL, command.epoch, OK, command.argument))
        elif "revoked" in HOW:
            self._shim.send(reply(SPILL, command.epoch, REVOKED))
        self._changed.set()

    def renew(self) -> None:
        """Be another kernel, if it was asked."""
        if "renewed" in HOW and self._changed.is_set():
            self._changed.clear()
            self._shim.close()
            self._number += 1
            self._connect()


def main() -> None:
    """Lie until the end."""
    memory = bytearray(SIZE) if "real" in HOW else b""
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    liars = [Liar(f"liar-{number}") for number in range(COUNT)]
    under_way()
    while goes_on(0.05):
        for liar in liars:
            liar.renew()


if __name__ == "__main__":
    main()

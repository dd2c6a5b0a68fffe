"""The board through which a test has simulated driver calls fail or wait while programs run."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

SIZE = 4096
STRUCK_AT, TEXT_AT = 24, 24 + 512


class FaultBoard:
    """`struct sim_fault_board` (shim/sim/machine/fault_board.h), for programs that are started with its path as
    AFFINODE_SIM_FAULT_BOARD.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), SIZE)

    def arm(self, faults: str) -> None:
        """Have these faults (shim/sim/machine/faults.h) from now on; calls are counted anew."""
        self.map[TEXT_AT:] = faults.encode().ljust(SIZE - TEXT_AT, b"\0")
        self.map[STRUCK_AT:TEXT_AT] = bytes(TEXT_AT - STRUCK_AT)
        generation = struct.unpack_from("=I", self.map)[0] + 1
        struct.pack_into("=II", self.map, 4, 0, 0)
        struct.pack_into("=I", self.map, 0, generation)

    def calls(self) -> int:
        """How many calls were made since."""
        return int(struct.unpack_from("=I", self.map, 4)[0])

    def met(self) -> int:
        """How many faults struck since."""
        return int(struct.unpack_from("=I", self.map, 8)[0])

    def held(self) -> int:
        """How many calls wait now."""
        return int(struct.unpack_from("=I", self.map, 12)[0])

    def registered_bytes(self) -> int:
        """How much host memory is registered."""
        return int(struct.unpack_from("=q", self.map, 16)[0])

    def struck(self) -> list[str]:
        """Names of the calls that faults struck since."""
        return bytes(self.map[STRUCK_AT:TEXT_AT]).split(b"\0")[0].decode().split()

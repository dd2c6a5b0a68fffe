"""A user's program on the GPU: `gpu_program.py MEBIBYTES`. It allocates that, fills it, and says how long it took.

Then, for each line on standard input: `use` looks whether its memory is as it was left and writes it anew, `allocate
MEBIBYTES` takes more, `export` gives its first memory a handle of legacy IPC. Each answer is a line of JSON: `took_s`,
how many words were `wrong`, and the driver's `error`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from jupyter_affinode.bench.driver import CudaError, Driver

STEP = 2 << 20


class Program:
    """Blocks of memory, each filled with one value."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._blocks: list[tuple[int, int]] = []  # address, bytes
        self._value = 0

    def allocate(self, mebibytes: str) -> int:
        """Take more."""
        size = int(mebibytes) << 20
        self._blocks.append((self._driver.allocate(size), size))
        self._fill(*self._blocks[-1])
        return 0

    def use(self) -> int:
        """How many of the words that were looked at were wrong."""
        word, wrong = ctypes.c_uint32(), 0
        for address, size in self._blocks:
            for at in range(address, address + size, STEP):
                self._driver.call(
                    "cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(at), ctypes.c_size_t(4)
                )
                wrong += word.value != self._value
        self._value += 1
        for block in self._blocks:
            self._fill(*block)
        return wrong

    def export(self) -> int:
        """Give a handle of legacy CUDA IPC to its first block."""
        handle = ctypes.create_string_buffer(64)
        self._driver.call("cuIpcGetMemHandle", handle, ctypes.c_uint64(self._blocks[0][0]))
        return 0

    def _fill(self, address: int, size: int) -> None:
        self._driver.call("cuMemsetD32_v2", ctypes.c_uint64(address), self._value, ctypes.c_size_t(size // 4))
        self._driver.synchronize()


def main() -> None:
    """Do as told."""
    program: Program | None = None
    for line in [f"allocate {sys.argv[1]}", None]:
        for told in [line] if line else sys.stdin:
            began, wrong, error = time.monotonic(), 0, None
            try:
                program = program or Program()
                name, *arguments = told.split()
                wrong = getattr(program, name)(*arguments)
            except CudaError as failed:
                error = str(failed)
            took = time.monotonic() - began
            print(json.dumps({"took_s": took, "wrong": wrong, "error": error}), flush=True)


if __name__ == "__main__":
    main()

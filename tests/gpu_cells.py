"""Cells that use a GPU through NVIDIA's cuda-bindings, for kernels under test; simulated or real alike."""

from __future__ import annotations

import subprocess
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "shim" / "sim" / "kernels.ptx"

SETUP = f"""
import ctypes, gc, threading, time
from cuda.bindings import driver as cuda

def ok(result):
    error, *values = result
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(error.name)
    return values[0] if len(values) == 1 else tuple(values)

ok(cuda.cuInit(0))
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(0))))))
module = ok(cuda.cuModuleLoadData(open({str(KERNELS)!r}, "rb").read() + b"\\0"))

class Block:
    '''`mib` MiB of device memory holding the pattern of `seed`.'''

    def __init__(self, mib, seed=1):
        self.count = mib * 2**20 // 4
        self.pointer = int(ok(cuda.cuMemAlloc(mib * 2**20)))
        self.fill(seed)

    def launch(self, name, *values):
        function = ok(cuda.cuModuleGetFunction(module, name.encode()))
        numbers = (self.pointer, self.count, *values)
        types = (ctypes.c_uint64, ctypes.c_uint64, *(ctypes.c_uint32 for value in values))
        ok(cuda.cuLaunchKernel(function, 32, 1, 1, 256, 1, 1, 0, 0, (numbers, types), 0))

    def fill(self, seed):
        self.launch("affinode_pattern_u32", seed)
        ok(cuda.cuCtxSynchronize())

    def checksum(self):
        out = int(ok(cuda.cuMemAlloc(4096)))
        function = ok(cuda.cuModuleGetFunction(module, b"affinode_checksum_u32"))
        ok(cuda.cuMemsetD8(out, 0, 8))
        numbers, types = (self.pointer, self.count, out), (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
        ok(cuda.cuLaunchKernel(function, 32, 1, 1, 256, 1, 1, 0, 0, (numbers, types), 0))
        host = bytearray(8)
        ok(cuda.cuMemcpyDtoH((ctypes.c_char * 8).from_buffer(host), out, 8))
        ok(cuda.cuMemFree(out))
        return int.from_bytes(host, "little")

    def free(self):
        ok(cuda.cuMemFree(self.pointer))
"""

# Keeps a block of so many MiB, its argument; each line of its standard input it answers with how that is.
KEEPER = f"""{SETUP}
import sys
block = Block(int(sys.argv[1]), seed=7)
wanted = block.checksum()
print("ready", flush=True)
for line in sys.stdin:
    print("same" if block.checksum() == wanted else "other", flush=True)
"""


def contents(keeper: subprocess.Popen[str]) -> str:
    """How the block of a `KEEPER` is."""
    assert keeper.stdin and keeper.stdout
    keeper.stdin.write("\n")
    keeper.stdin.flush()
    return keeper.stdout.readline().strip()

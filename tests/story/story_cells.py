"""Cells that use the GPU as a person's code would, for kernels under test; they run on a real driver too."""

from __future__ import annotations

# Defines `gpu.allocate(name, mib, seed)`, `gpu.check(name)`, `gpu.add(name, n)`, `gpu.free(name)`, … in the kernel.
SETUP = '''
import ctypes, numpy, types
from cuda.bindings import driver as cu

def ok(result):
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]

class Gpu:
    """One context; blocks by name, each with the pattern it must still hold."""

    PTX = b".version 7.0\\n.target sm_70\\n.address_size 64\\n" + b"\\n".join(
        b".visible .entry %s() { ret; }" % name
        for name in (b"affinode_add_u32", b"affinode_spin_ns", b"affinode_wait_flag")
    ) + b"\\0"

    def __init__(self):
        ok(cu.cuInit(0))
        self.device = ok(cu.cuDeviceGet(0))
        self.context = ok(cu.cuDevicePrimaryCtxRetain(self.device))
        ok(cu.cuCtxSetCurrent(self.context))
        self.module = ok(cu.cuModuleLoadData(self.PTX))
        self.blocks = {}

    def allocate(self, name, mib, seed=1):
        size = mib << 20
        address = ok(cu.cuMemAlloc(size))
        pattern = numpy.arange(size // 4, dtype=numpy.uint32) * numpy.uint32(2654435761) + numpy.uint32(seed)
        ok(cu.cuMemcpyHtoD(address, pattern.ctypes.data, size))
        self.blocks[name] = [address, size, seed]

    def launch(self, function, *arguments):
        values, types_ = zip(*arguments)
        ok(cu.cuLaunchKernel(ok(cu.cuModuleGetFunction(self.module, function)), 1, 1, 1, 1, 1, 1, 0, 0,
                             (values, types_), 0))

    def add(self, name, n):
        address, size, seed = self.blocks[name]
        count = (size // 4, ctypes.c_uint64)
        self.launch(b"affinode_add_u32", (int(address), ctypes.c_uint64), count, (n, ctypes.c_uint32))
        ok(cu.cuCtxSynchronize())
        self.blocks[name][2] = (seed + n) & 0xffffffff

    def check(self, name):
        address, size, seed = self.blocks[name]
        found = numpy.empty(size // 4, dtype=numpy.uint32)
        ok(cu.cuMemcpyDtoH(found.ctypes.data, address, size))
        expected = numpy.arange(size // 4, dtype=numpy.uint32) * numpy.uint32(2654435761) + numpy.uint32(seed)
        return bool((found == expected).all())

    def free(self, name):
        ok(cu.cuMemFree(self.blocks.pop(name)[0]))

gpu = Gpu()
'''

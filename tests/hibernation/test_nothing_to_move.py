"""Kernels that use CUDA, and have nothing on the GPU that could be moved: they hibernate as all others."""

from __future__ import annotations

import pytest
from gpu_cells import SETUP
from lone_kernel import LoneKernel
from waiting import wait_until

# `look` is what a kernel has, and needs the GPU for: the same number each time.
LOOK = """
class block:
    @staticmethod
    def checksum():
        return int(look())

import os
kept, count = {"a": [1, 2]}, 0
print(os.getpid(), id(kept), block.checksum())
"""
INIT_ALONE = """
from cuda.bindings import driver as cuda
def ok(result):
    assert result[0] == cuda.CUresult.CUDA_SUCCESS, result
    return result[1] if len(result) > 1 else None

ok(cuda.cuInit(0))

def look():
    ok(cuda.cuDevicePrimaryCtxRetain(0))
    ok(cuda.cuDevicePrimaryCtxRelease(0))
    return ok(cuda.cuDeviceGetCount())
"""
PRIMARY_ALONE = f"""{INIT_ALONE}
context = ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(0))))

def look():
    ok(cuda.cuCtxSetCurrent(context))
    ok(cuda.cuCtxSynchronize())
    return int(ok(cuda.cuCtxGetDevice()))
"""
OWN_CONTEXT = f"""{SETUP}
ok(cuda.cuDevicePrimaryCtxRelease(0))
context = ok(cuda.cuCtxCreate(None, 0, 0))

def look():
    ok(cuda.cuStreamDestroy(ok(cuda.cuStreamCreate(0))))
    return int(ok(cuda.cuCtxGetCurrent())) == int(context)
"""
FREED_AGAIN = f"""{SETUP}
Block(8).free()

def look():
    again = Block(4, seed=3)
    found = again.checksum()
    again.free()
    return found
"""
SMALL_BLOCKS = f"""{SETUP}
blocks = [int(ok(cuda.cuMemAlloc(4096))) for _ in range(3)]
for at, number in enumerate(blocks):
    ok(cuda.cuMemsetD32(number, 1000 + at, 1024))

def look():
    words = bytearray(4096)
    found = 0
    for number in blocks:
        ok(cuda.cuMemcpyDtoH((ctypes.c_char * 4096).from_buffer(words), number, 4096))
        found = found * 65599 + sum(words)
    return found
"""


@pytest.mark.parametrize(
    "has",
    [
        pytest.param(SMALL_BLOCKS, id="small blocks", marks=pytest.mark.long),
        pytest.param(PRIMARY_ALONE, id="a primary context alone", marks=pytest.mark.long),
        pytest.param(INIT_ALONE, id="no context", marks=pytest.mark.long),
        pytest.param(OWN_CONTEXT, id="a context of its own", marks=pytest.mark.long),
        pytest.param(FREED_AGAIN, id="all freed again", marks=pytest.mark.long),
    ],
)
def test_a_kernel_with_nothing_that_can_be_moved_hibernates_and_wakes(gpu_machine_with_criu, has):
    machine = gpu_machine_with_criu
    with LoneKernel(machine, cells=has + LOOK) as lone:
        status, answer = machine.ask("POST", f"/kernels/{lone.id}/park", {})
        assert (status, answer["nothing_moved"]["code"]) == (200, "nothing-to-move"), answer
        for _ in range(2):
            assert machine.kernel(lone.id)["residency"] == "resident"
            lone.hibernate()
            wait_until(lambda: machine.node()["gpus"][0]["used_bytes"] == 0)
            lone.wake()
            lone.check()

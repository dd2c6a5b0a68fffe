"""What the programs of these tests share: cuda-bindings with errors as exceptions, and the built-in kernels.

Runs in the programs' own processes (conftest.SimulatedMachine), on a real driver as well.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda

MIB = 1 << 20
PTX = (Path(__file__).resolve().parents[2] / "shim" / "sim" / "kernels.ptx").read_bytes() + b"\0"
U32, U64 = ctypes.c_uint32, ctypes.c_uint64
KERNELS: dict[str, tuple[Any, ...]] = {
    "fill_u32": (U64, U64, U32),
    "pattern_u32": (U64, U64, U32),
    "add_u32": (U64, U64, U32),
    "checksum_u32": (U64, U64, U64),
    "spin_ns": (U64,),
    "wait_flag": (U64,),
}


def ok(result: tuple[Any, ...]) -> Any:
    """The values of a successful call; an AssertionError with the error's name otherwise."""
    assert result[0] == cuda.CUresult.CUDA_SUCCESS, result[0]
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]


def name(result: tuple[Any, ...]) -> str:
    """The error's name without CUDA_ERROR_, or SUCCESS."""
    return str(result[0].name).replace("CUDA_ERROR_", "").replace("CUDA_", "")


def context(device: int = 0) -> Any:
    """Initialise, and make the device's primary context current."""
    ok(cuda.cuInit(0))
    made = ok(cuda.cuDevicePrimaryCtxRetain(device))
    ok(cuda.cuCtxSetCurrent(made))
    return made


class Kernels:
    """The built-in kernels, loaded from the same text that a real GPU would compile."""

    def __init__(self) -> None:
        module = ok(cuda.cuModuleLoadData(PTX))
        self.functions = {
            short: ok(cuda.cuModuleGetFunction(module, f"affinode_{short}".encode())) for short in KERNELS
        }

    def launch(self, short: str, *arguments: Any, stream: Any = 0, threads: int = 32) -> tuple[Any, ...]:
        """Launch and return the call's own result."""
        values = tuple(map(int, arguments))
        one = 1 if short in ("spin_ns", "wait_flag") else threads
        return cuda.cuLaunchKernel(
            self.functions[short], 1, 1, 1, one, 1, 1, 0, stream, (values, KERNELS[short]), 0
        )


def words(address: Any, count: int) -> list[int]:
    """Copy 32-bit words from the device."""
    buffer = (U32 * count)()
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(buffer), address, 4 * count))
    return list(buffer)


def pattern(seed: int, count: int) -> list[int]:
    """What affinode_pattern_u32 writes."""
    return [((seed * 2654435761 + i * 2246822519) & 0xFFFFFFFF) ^ (i >> 15) for i in range(count)]


def free_bytes() -> int:
    """cuMemGetInfo's free bytes."""
    return int(ok(cuda.cuMemGetInfo())[0])


def properties(device: int = 0) -> Any:
    """cuMemCreate's properties for plain device memory."""
    made = cuda.CUmemAllocationProp()
    made.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    return made


def access(device: int = 0) -> Any:
    """cuMemSetAccess's description for reading and writing."""
    made = cuda.CUmemAccessDesc()
    made.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = device
    made.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return made


def mapped(size: int, device: int = 0, *, accessible: bool = True) -> tuple[Any, Any]:
    """Reserve, create, map (and make accessible): (address, handle)."""
    address = ok(cuda.cuMemAddressReserve(size, 0, 0, 0))
    handle = ok(cuda.cuMemCreate(size, properties(device), 0))
    ok(cuda.cuMemMap(address, size, 0, handle, 0))
    if accessible:
        ok(cuda.cuMemSetAccess(address, size, [access(device)], 1))
    return address, handle


def in_thread(call: Callable[[], Any]) -> Any:
    """The call's result, from another thread with the same current context."""
    current, results = ok(cuda.cuCtxGetCurrent()), []

    def body() -> None:
        ok(cuda.cuCtxSetCurrent(current))
        results.append(call())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return results[0]


def wait_until_asleep(thread: threading.Thread) -> None:
    """Wait until a thread has been asleep for so long that it waits for something."""
    stat, looks = Path(f"/proc/self/task/{thread.native_id}/stat"), 0
    while looks < 50:
        looks += stat.read_text().rpartition(") ")[2].startswith("S")
        time.sleep(0.0005)


def say(*what: Any) -> None:
    """Print for the test that watches."""
    print(*what, flush=True)

"""Libraries that reach the driver each in its own way, in one process, for side_by_side.py.

`python side_by_side_programs.py NAME [NAME …]` prints "ready"; it answers each line "step" with "right", once every
library has changed its memory on the GPU and found there what its twin on the host has, or with what is wrong. Ends
with its input.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

# Their kernels are real ones, and the simulated GPU knows their names.
KERNELS = Path(__file__).resolve().parents[3] / "shim" / "sim" / "kernels.ptx"
COUNT = 4 << 20  # words of each library: 16 MiB


class Library:
    """One library's memory on the GPU, and what should be in it."""

    def __init__(self) -> None:
        self.twin = np.arange(COUNT, dtype=np.uint32)

    def step(self, number: int) -> None:
        """Add a number to every word and compare. Raises RuntimeError."""
        self.add(number)
        self.twin += np.uint32(number)
        wrong = int((self.read() != self.twin).sum())
        if wrong:
            raise RuntimeError(f"{wrong} words of {COUNT}")

    def add(self, number: int) -> None:
        raise NotImplementedError

    def read(self) -> np.ndarray[Any, Any]:
        raise NotImplementedError


class Triton(Library):
    """Triton's own modules, which are linked to the driver, without PyTorch: a kernel loaded and launched by them."""

    def __init__(self) -> None:
        super().__init__()
        from triton.backends.nvidia import driver as nvidia

        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self._checked(self.cuda.cuInit(0))
        self._checked(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._checked(self.cuda.cuCtxSetCurrent(context))
        utils = nvidia.CudaUtils()
        assert utils.get_device_properties(0)["multiprocessor_count"] > 0
        self.function = utils.load_binary("affinode_add_u32", KERNELS.read_bytes() + b"\0", 0, 0)[1]
        source = nvidia.make_launcher({}, {0: "u64", 1: "u64", 2: "u32"}, None)
        self.launcher = nvidia.compile_module_from_src(
            src=source,
            name="__triton_launcher",
            library_dirs=nvidia.library_dirs(),
            include_dirs=nvidia.include_dirs,
            libraries=nvidia.libraries,
        )
        self.block = ctypes.c_uint64()
        self._checked(self.cuda.cuMemAlloc_v2(ctypes.byref(self.block), ctypes.c_size_t(self.twin.nbytes)))
        start = ctypes.c_void_p(self.twin.ctypes.data)
        self._checked(self.cuda.cuMemcpyHtoD_v2(self.block, start, ctypes.c_size_t(self.twin.nbytes)))

    def add(self, number: int) -> None:
        metadata = (8, 1, 0)  # warps, blocks of a cluster, bytes of shared memory
        arguments = (self.block.value, COUNT, number)
        self.launcher.launch(
            32, 1, 1, 0, self.function, False, False, None, None, metadata, None, None, None, *arguments
        )
        self._checked(self.cuda.cuCtxSynchronize())

    def read(self) -> np.ndarray[Any, Any]:
        found = np.empty_like(self.twin)
        into = ctypes.c_void_p(found.ctypes.data)
        self._checked(self.cuda.cuMemcpyDtoH_v2(into, self.block, ctypes.c_size_t(found.nbytes)))
        return found

    @staticmethod
    def _checked(result: int) -> None:
        if result:
            raise RuntimeError(f"the driver returned {result}")


class PyTorchAndTriton(Library):
    """A kernel that Triton compiles, on a tensor of PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        import torch
        import triton

        globals()["tl"] = triton.language  # what a kernel names is looked up in its module
        self.torch, self.kernel = torch, triton.jit(_add)
        self.tensor = torch.from_numpy(self.twin.view(np.int32).copy()).cuda()

    def add(self, number: int) -> None:
        self.kernel[(COUNT // 1024,)](self.tensor, number, BLOCK=1024)

    def read(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.tensor.cpu().numpy()
        return found.view(np.uint32)


def _add(pointer, number, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,name-defined] # noqa: F821
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # type: ignore[name-defined] # noqa: F821
    tl.store(pointer + places, tl.load(pointer + places) + number)  # type: ignore[name-defined] # noqa: F821


class PyCUDA(Library):
    """An extension module that is linked to the driver."""

    def __init__(self) -> None:
        super().__init__()
        import pycuda.driver as driver

        driver.init()
        self.driver, self.context = driver, driver.Device(0).retain_primary_context()
        self.context.push()
        module = driver.module_from_buffer(KERNELS.read_bytes() + b"\0")
        self.function = module.get_function("affinode_add_u32")
        self.block = driver.to_device(self.twin)
        self.context.pop()

    def add(self, number: int) -> None:
        self.context.push()
        arguments = (self.block, np.uint64(COUNT), np.uint32(number))
        self.function(*arguments, block=(256, 1, 1), grid=(32, 1, 1))
        self.context.pop()

    def read(self) -> np.ndarray[Any, Any]:
        self.context.push()
        found = self.driver.from_device_like(self.block, self.twin)
        self.context.pop()
        return found


class CuPy(Library):
    """By the CUDA runtime, which it brings, and with a kernel that it compiles."""

    def __init__(self) -> None:
        super().__init__()
        import cupy

        self.cupy, self.array = cupy, cupy.asarray(self.twin)

    def add(self, number: int) -> None:
        self.array += self.cupy.uint32(number)

    def read(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.array.get()
        return found


LIBRARIES: dict[str, type[Library]] = {
    "Triton": Triton,
    "PyTorch and Triton": PyTorchAndTriton,
    "PyCUDA": PyCUDA,
    "CuPy": CuPy,
}


def main() -> int:
    libraries = {name: LIBRARIES[name]() for name in sys.argv[1:]}
    print("ready", flush=True)
    for number, _line in enumerate(sys.stdin, 1):
        wrong = []
        for name, library in libraries.items():
            try:
                library.step(number)
            except Exception as error:
                traceback.print_exc()
                wrong.append(f"{name}: {type(error).__name__}: {error}")
        print("; ".join(wrong).replace("\n", " ") or "right", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

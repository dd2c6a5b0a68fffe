"""A parent and a child that share CUDA memory, for ipc.py: `python ipc_programs.py pytorch|driver`.

Prints "ready", reads steps, and answers each with "right" or "WRONG: …".
"""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
from typing import Any

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE
SIZES = (1000, 300_000, 8 << 20, 64 << 20)  # floats: small ones live in the caching allocator's shared blocks


def pytorch_child(tasks: Any, answers: Any) -> None:
    import torch

    held: list[Any] = []
    while True:
        what, *rest = tasks.get()
        if what == "take":
            held = rest[0]
            answers.put([float(tensor.double().sum()) for tensor in held])
        elif what == "write":
            for tensor in held:
                tensor.add_(1)
            torch.cuda.synchronize()
            answers.put("written")
        elif what == "drop":
            held = []
            rest.clear()
            torch.cuda.synchronize()
            answers.put("dropped")
        else:
            return


class PyTorch:
    """torch.multiprocessing, with the default (legacy IPC) way of sharing CUDA tensors."""

    def __init__(self) -> None:
        import torch
        import torch.multiprocessing as mp

        self.torch = torch
        context = mp.get_context("spawn")
        self.tasks, self.answers = context.Queue(), context.Queue()
        self.child = context.Process(target=pytorch_child, args=(self.tasks, self.answers), daemon=True)
        self.child.start()
        self.own = torch.randn(32 << 20, device="cuda")
        self.expected_own = float(self.own.double().sum())
        self.shared: list[Any] = []
        self.expected: list[float] = []

    def do(self, step: str) -> str:
        if step == "share":
            self.shared = [self.torch.arange(size, device="cuda", dtype=self.torch.float32) for size in SIZES]
            self.expected = self._sums()
            self.tasks.put(("take", self.shared))
            return self._compare("the child's view", self.answers.get(timeout=60))
        if step == "child writes":
            self.tasks.put(("write",))
            self.answers.get(timeout=60)
            self.expected = [
                float((self.torch.arange(size, dtype=self.torch.float32) + 1).double().sum())
                for size in SIZES
            ]
            return self._compare("the parent's view", self._sums())
        if step == "end sharing":
            self.tasks.put(("drop",))
            self.answers.get(timeout=60)
            self.shared, self.expected = [], []
            self.torch.cuda.ipc_collect()
            self.torch.cuda.empty_cache()
        if float(self.own.double().sum()) != self.expected_own:
            return "WRONG: the parent's own memory"
        return self._compare("the parent's view", self._sums())

    def _sums(self) -> list[float]:
        return [float(tensor.double().sum()) for tensor in self.shared]

    def _compare(self, whose: str, found: list[float]) -> str:
        return "right" if found == self.expected else f"WRONG: {whose}: {found} instead of {self.expected}"


def driver_child(pipe: Any) -> None:
    cuda = open_driver()
    pointer = None
    while True:
        try:
            what, *rest = pipe.recv()
        except EOFError:  # the parent has ended
            return
        if what == "take":
            handle = cuda.CUipcMemHandle()
            ctypes.memmove(handle.getPtr(), rest[0], HANDLE_BYTES)
            flag = cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            error, pointer = cuda.cuIpcOpenMemHandle(handle, flag)
            if int(error):
                pipe.send(error.name)
                continue
            pipe.send(read(cuda, pointer))
        elif what == "write":
            (error,) = cuda.cuMemsetD8(pointer, 7, 1 << 20)
            (ended,) = cuda.cuCtxSynchronize()  # the parent's copy is ordered with nothing of ours
            pipe.send((ended if not int(error) else error).name)
        elif what == "drop":
            (error,) = cuda.cuIpcCloseMemHandle(pointer)
            pipe.send(error.name)


def open_driver() -> Any:
    from cuda.bindings import driver as cuda

    assert int(cuda.cuInit(0)[0]) == 0
    context = cuda.cuDevicePrimaryCtxRetain(cuda.cuDeviceGet(0)[1])[1]
    assert int(cuda.cuCtxSetCurrent(context)[0]) == 0
    return cuda


def read(cuda: Any, pointer: Any) -> bytes:
    host = bytearray(1 << 20)
    (error,) = cuda.cuMemcpyDtoH(host, pointer, len(host))
    return bytes(host) if not int(error) else error.name.encode()


class DriverApi:
    """cuIpcGetMemHandle and cuIpcOpenMemHandle of one large allocation."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=driver_child, args=(theirs,), daemon=True)
        self.child.start()
        self.cuda = open_driver()
        self.own = self._block(3)
        self.shared: Any = None

    def do(self, step: str) -> str:
        if step == "share":
            self.shared = self._block(5)
            error, handle = self.cuda.cuIpcGetMemHandle(self.shared)
            if int(error):
                return f"WRONG: cuIpcGetMemHandle: {error.name}"
            self.pipe.send(("take", ctypes.string_at(handle.getPtr(), HANDLE_BYTES)))
            return self._right(self.pipe.recv(), 5)
        if step == "child writes":
            self.pipe.send(("write",))
            said = self.pipe.recv()
            return (
                self._right(read(self.cuda, self.shared), 7) if said == "CUDA_SUCCESS" else f"WRONG: {said}"
            )
        if step == "end sharing":
            self.pipe.send(("drop",))
            said = self.pipe.recv()
            (error,) = self.cuda.cuMemFree(self.shared)
            self.shared = None
            if said != "CUDA_SUCCESS" or int(error):
                return f"WRONG: {said}, {error.name}"
        return self._right(read(self.cuda, self.own), 3)

    def _block(self, value: int) -> Any:
        error, pointer = self.cuda.cuMemAlloc(8 << 20)
        assert not int(error)
        assert not int(self.cuda.cuMemsetD8(pointer, value, 8 << 20)[0])
        assert not int(self.cuda.cuCtxSynchronize()[0])
        return pointer

    def _right(self, found: Any, value: int) -> str:
        return "right" if found == bytes([value]) * (1 << 20) else f"WRONG: {found[:80]!r}"


def main() -> int:
    program: PyTorch | DriverApi = PyTorch() if sys.argv[1] == "pytorch" else DriverApi()
    print("ready", flush=True)
    for line in sys.stdin:
        print(program.do(line.strip()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

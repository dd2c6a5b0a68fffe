"""Programs on two GPUs for two_gpus.py: `python two_gpu_programs.py NAME RANK PORT`.

Prints "ready" when it holds memory on its GPUs. For every line that it reads it does what the line says and answers
with one line: "work" uses the memory and the peer GPU, "right" or "WRONG: …"; "delay S" submits S seconds of GPU work
without waiting and answers "delayed".
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

Answers = dict[str, Callable[..., str]]


def peer_pytorch(_rank: int, _port: int) -> Answers:
    """One process, tensors on both GPUs, copied from one to the other."""
    import torch

    first = torch.randn(64 << 20, device="cuda:0")  # 256 MiB
    second = first.to("cuda:1")
    expected = float(first.double().sum())
    rounds = 0

    def work() -> str:
        nonlocal rounds
        rounds += 1
        wrong = []
        if float(first.double().sum()) != expected or not torch.equal(first.cpu(), second.cpu()):
            wrong.append("contents")
        there = (first + rounds).to("cuda:1")  # a kernel, then a peer copy into fresh memory
        back = there.to("cuda:0")
        if not torch.equal(back, first + rounds):
            wrong.append("Tensor.to and back")
        second.add_(1).sub_(1)
        second.copy_(first)  # into memory that was parked
        if not torch.equal(second.cpu(), first.cpu()):
            wrong.append("copy_ into parked memory")
        return f"WRONG: {', '.join(wrong)}" if wrong else "right"

    def delay(seconds: str) -> str:
        for device in (0, 1):
            with torch.cuda.device(device):
                torch.cuda._sleep(int(float(seconds) * 1.7e9))
        return "delayed"

    return {"work": work, "delay": delay}


def nccl(rank: int, port: int) -> Answers:
    """One of two ranks, a GPU each, with a live communicator."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, device_id=device
    )
    torch.manual_seed(rank)
    own = torch.randint(0, 1 << 20, (32 << 20,), device=device)  # 256 MiB
    before = int(own.sum())
    sums = torch.tensor([before, 0], device=device)
    dist.all_reduce(sums)
    both = int(sums[0])

    def work() -> str:
        copy = own.clone()
        dist.all_reduce(copy)
        if int(own.sum()) != before:
            return "WRONG: contents"
        return "right" if int(copy.sum()) == both else "WRONG: all-reduce"

    def delay(seconds: str) -> str:
        torch.cuda._sleep(int(float(seconds) * 1.7e9))
        return "delayed"

    return {"work": work, "delay": delay}


def peer_driver(_rank: int, _port: int) -> Answers:
    """The driver API alone: cuMemcpyPeer between two devices, and mapped peer access."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from cuda.bindings import driver as cuda
    from gpu_cells import KERNELS

    def ok(result):  # type: ignore[no-untyped-def]
        error, *values = result
        if error != cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(error.name)
        return values[0] if values else None

    size = 32 << 20
    ok(cuda.cuInit(0))
    contexts = [ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(i)))) for i in (0, 1)]
    blocks, functions = [], []
    for i, context in enumerate(contexts):
        ok(cuda.cuCtxSetCurrent(context))
        blocks.append(ok(cuda.cuMemAlloc(size)))
        module = ok(cuda.cuModuleLoadData(KERNELS.read_bytes() + b"\0"))
        functions.append(
            [
                ok(cuda.cuModuleGetFunction(module, name))
                for name in (b"affinode_add_u32", b"affinode_spin_ns")
            ]
        )
        ok(cuda.cuCtxEnablePeerAccess(contexts[1 - i], 0))
    pattern = bytearray(range(256)) * (size // 256)
    ok(cuda.cuMemcpyHtoD(blocks[0], bytes(pattern), size))
    rounds = 0

    def words(block: object) -> bytes:
        host = bytearray(size)
        ok(cuda.cuMemcpyDtoH((ctypes.c_char * size).from_buffer(host), block, size))
        return bytes(host)

    def launch(gpu: int, which: int, values: tuple[int, ...], types: tuple[type, ...]) -> None:
        ok(cuda.cuCtxSetCurrent(contexts[gpu]))
        ok(cuda.cuLaunchKernel(functions[gpu][which], 8, 1, 1, 64, 1, 1, 0, 0, (values, types), 0))

    def work() -> str:
        nonlocal rounds
        if words(blocks[0]) != bytes(pattern):
            return "WRONG: contents"
        ok(cuda.cuMemcpyPeer(blocks[1], contexts[1], blocks[0], contexts[0], size))
        if words(blocks[1]) != bytes(pattern):
            return "WRONG: cuMemcpyPeer"
        rounds += 1
        types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
        launch(1, 0, (int(blocks[0]), 1, 1), types)  # GPU 1 writes to GPU 0's memory
        ok(cuda.cuCtxSynchronize())
        word = int.from_bytes(pattern[:4], "little") + 1
        pattern[:4] = word.to_bytes(4, "little")
        return "right" if words(blocks[0])[:4] == bytes(pattern[:4]) else "WRONG: peer access"

    def delay(seconds: str) -> str:
        launch(1, 1, (int(float(seconds) * 1e9),), (ctypes.c_uint64,))
        return "delayed"

    return {"work": work, "delay": delay}


def rank_driver(rank: int, _port: int) -> Answers:
    """Stands for a rank where there is no NCCL: memory of its own on its own GPU."""
    from jupyter_affinode.bench.driver import Driver
    from jupyter_affinode.bench.test_pattern import Content

    driver = Driver()
    content = Content(driver, 32 << 20, 8 << 20)
    content.change_all(rank + 1)

    def work() -> str:
        wrong = content.differing_words()
        return f"WRONG: {wrong} words" if wrong else "right"

    def delay(_seconds: str) -> str:
        content.change_all(rank + 1)
        return "delayed"

    return {"work": work, "delay": delay}


PROGRAMS: dict[str, Callable[[int, int], Answers]] = {
    "peer_pytorch": peer_pytorch,
    "peer_driver": peer_driver,
    "nccl": nccl,
    "rank_driver": rank_driver,
}


def main() -> int:
    answers = PROGRAMS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
    print("ready", flush=True)
    for line in sys.stdin:
        word, *arguments = line.split()
        print(answers[word](*arguments), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A process that uses CUDA and does, one line of standard input at a time, what a kernel's code may do; answers in
JSON.

Run by test_processes.py under the shim and the simulated driver.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import select
import subprocess
import sys

from cuda.bindings import driver as cu

WORDS = 1 << 20


def checked(answer: tuple) -> object:  # type: ignore[type-arg]
    if answer[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(answer[0].name)
    return answer[1] if len(answer) == 2 else answer[1:]


def start() -> None:
    checked(cu.cuInit(0))
    context = checked(cu.cuDevicePrimaryCtxRetain(0))
    checked(cu.cuCtxSetCurrent(context))


def allocate(value: int) -> int:
    block = checked(cu.cuMemAlloc(4 * WORDS))
    checked(cu.cuMemsetD32(block, value, WORDS))
    checked(cu.cuCtxSynchronize())
    return int(block)


def is_filled(block: int, value: int) -> bool:
    data = bytearray(4 * WORDS)
    checked(
        cu.cuMemcpyDtoH(ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data)), block, len(data))
    )
    return data == value.to_bytes(4, "little") * WORDS


def use_cuda_in_a_new_process(value: int) -> bool:
    """What a spawned worker does: everything from the start."""
    start()
    return is_filled(allocate(value), value)


def cuda_after_fork(queue: multiprocessing.SimpleQueue) -> None:  # type: ignore[type-arg]
    """In a forked child of a process that uses CUDA no call works, with the shim as without it."""
    answer = cu.cuMemAlloc(4096)
    queue.put(answer[0].name)


class Worker:
    def __init__(self) -> None:
        start()
        self.block = allocate(7)
        self.spare = allocate(8)

    def check(self) -> bool:
        return is_filled(self.block, 7)

    def grow(self) -> bool:
        """Take more memory of the GPU."""
        self.more = allocate(9)
        return is_filled(self.more, 9)

    def drop(self) -> bool:
        """Free a block: it must not wait for the GPU."""
        checked(cu.cuMemFree(self.spare))
        return True

    def fork_exit(self) -> int:
        pid = os.fork()
        if pid == 0:
            sys.exit(5)  # through Python's and libc's exit handlers
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def fork_cuda(self) -> list[str]:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            names = [
                cu.cuMemAlloc(4096)[0].name,
                cu.cuCtxSynchronize()[0].name,
                cu.cuMemFree(self.block)[0].name,
            ]
            os.write(theirs, json.dumps(names).encode())
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as answer:
            names = json.loads(answer.read())
        os.waitpid(pid, 0)
        return names

    def subprocess(self) -> str:
        """`vfork` or `posix_spawn`, as Python chooses; and with a `preexec_fn`, by `fork`."""
        plain = subprocess.run(["/bin/echo", "a"], capture_output=True, text=True, check=True).stdout
        forked = subprocess.run(
            ["/bin/echo", "b"], capture_output=True, text=True, check=True, preexec_fn=os.getpid
        )
        pid = os.posix_spawn("/bin/true", ["true"], os.environ)
        return plain.strip() + forked.stdout.strip() + str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def mp_fork(self) -> str:
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=cuda_after_fork, args=(queue,))
        child.start()
        name = queue.get()
        child.join()
        return str(name)

    def mp_spawn(self) -> bool:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return bool(pool.apply(use_cuda_in_a_new_process, (11,)))

    def serve_caches(self) -> bool:
        """Say that wishes to drop caches are served here."""
        self.wishes: int = ctypes.CDLL(None).affinode_caches_fd()
        return self.wishes >= 0

    def wait_for_wish(self) -> bool:
        return bool(select.select([self.wishes], [], [], 10)[0])

    def begin_to_drop(self) -> int:
        return int(ctypes.CDLL(None).affinode_caches_begin())

    def end_of_drop(self, status: str) -> None:
        ctypes.CDLL(None).affinode_caches_end(int(status))

    def begin_to_drop_in_a_fork(self) -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(self.begin_to_drop())
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def dlopen(self, library: str) -> int:
        """Its constructor calls CUDA, holding the loader's lock."""
        return int(ctypes.c_int.in_dll(ctypes.CDLL(library), "constructed").value)


def main() -> None:
    worker = Worker()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(getattr(worker, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()

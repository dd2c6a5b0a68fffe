"""Faults on demand: what each does, by the environment and by a board that changes while the program runs."""

from __future__ import annotations

import signal
from pathlib import Path

from fault_board import FaultBoard


def board_of(gpu, folder: Path) -> FaultBoard:
    """A board for the programs of a machine."""
    board = FaultBoard(folder / "board")
    gpu.set(fault_board=str(board.path))
    return board


def test_faults_strike_the_call_they_are_meant_for(gpu):
    gpu.set(faults="cuMemAlloc:OUT_OF_MEMORY:2,cuStreamCreate:999:1+")
    lines = gpu.run("""
        context()
        say(*(name(cuda.cuMemAlloc(100)) for _ in range(3)))
        say(*(name(cuda.cuStreamCreate(0)) for _ in range(2)))
    """)
    assert lines == ["SUCCESS OUT_OF_MEMORY SUCCESS", "UNKNOWN UNKNOWN"]


def test_any_call_can_be_struck_by_its_number(gpu):
    gpu.set(faults="*:NOT_PERMITTED:4")
    lines = gpu.run("""
        context()                                   # cuInit, cuDevicePrimaryCtxRetain, cuCtxSetCurrent
        say(name(cuda.cuMemAlloc(100)), name(cuda.cuMemAlloc(100)))
    """)
    assert lines == ["NOT_PERMITTED SUCCESS"]


def test_one_bit_of_a_corrupted_copy_or_fill_is_wrong(gpu):
    gpu.set(faults="cuMemcpyHtoD:CORRUPT:1,cuMemcpyDtoH:CORRUPT:2,cuMemsetD32:CORRUPT:1")
    gpu.run("""
        context()
        address, data, back = ok(cuda.cuMemAlloc(4096)), os.urandom(4096), bytearray(4096)
        def differences():
            return [(i, a ^ b) for i, (a, b) in enumerate(zip(data, back)) if a != b]
        ok(cuda.cuMemcpyHtoD(address, data, 4096))
        ok(cuda.cuMemcpyDtoH(back, address, 4096))
        assert differences() == [(2048, 0x10)], "the destination"
        ok(cuda.cuMemcpyHtoD(address, data, 4096))
        ok(cuda.cuMemcpyDtoH(back, address, 4096))
        assert differences() == [(2048, 0x10)]
        ok(cuda.cuMemcpyDtoH(back, address, 4096))
        assert differences() == []
        ok(cuda.cuMemsetD32(address, 0, 4))
        assert words(address, 4) == [0, 0, 0x10, 0]
        ok(cuda.cuMemsetD32(address, 0, 4))
        assert words(address, 4) == [0] * 4
    """)


def test_only_copies_of_a_size_are_counted_if_asked(gpu):
    gpu.set(faults="cuMemcpyHtoD:CORRUPT=1KiB:2+")
    gpu.run("""
        context()
        address = ok(cuda.cuMemAlloc(4096))
        def right(size):
            ok(cuda.cuMemcpyHtoD(address, bytes(size), size))
            return words(address, size // 4) == [0] * (size // 4)
        assert [right(size) for size in (1024, 1020, 1024, 1020, 1028)] == [True, True, False, True, False]
    """)


def test_work_can_come_late(gpu):
    gpu.set(faults="cuMemsetD8Async:LATE:2")
    gpu.run("""
        context()
        stream, address = ok(cuda.cuStreamCreate(1)), ok(cuda.cuMemAlloc(4096))
        ok(cuda.cuMemsetD8Async(address, 1, 4096, stream))
        ok(cuda.cuStreamSynchronize(stream))
        began = time.monotonic()
        ok(cuda.cuMemsetD8Async(address, 2, 4096, stream))
        seen = name(cuda.cuStreamQuery(stream)), words(address, 1)
        assert seen == ("NOT_READY", [0x01010101]) or time.monotonic() >= began + 0.1
        ok(cuda.cuStreamSynchronize(stream))
        assert time.monotonic() >= began + 0.1                  # LATE_MS
        assert words(address, 1) == [0x02020202]
    """)


def test_work_can_fail_after_its_call_succeeded(gpu):
    gpu.set(faults="cuMemcpyHtoDAsync:FAIL:2")
    gpu.run("""
        context()
        stream, address = ok(cuda.cuStreamCreate(1)), ok(cuda.cuMemAlloc(4096))
        data = ok(cuda.cuMemHostAlloc(4096, 0))
        for _ in range(2):
            ok(cuda.cuMemcpyHtoDAsync(address, data, 4096, stream))
        assert name(cuda.cuStreamSynchronize(stream)) == "LAUNCH_FAILED"
        assert name(cuda.cuMemAlloc(100)) == "LAUNCH_FAILED", "for good"
    """)


def test_a_process_can_be_killed_at_a_call(gpu):
    gpu.set(faults="cuMemFree:KILL:2")
    process = gpu.start("""
        context()
        a, b = ok(cuda.cuMemAlloc(100 * MIB)), ok(cuda.cuMemAlloc(100 * MIB))
        ok(cuda.cuMemFree(a))
        say("once")
        cuda.cuMemFree(b)
        say("twice")
    """)
    assert process.communicate(timeout=60)[0] == "once\n"
    assert process.returncode == -signal.SIGKILL
    gpu.set(faults="")
    assert gpu.run("context(); say(free_bytes() // MIB)") == ["960"], "nothing is left on the GPU"


def test_a_foreign_process_takes_memory_between_two_calls(gpu):
    gpu.set(faults="cuMemCreate:TAKE=900MiB:2,cuMemRelease:TAKE=0:1")
    gpu.run("""
        import pynvml
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        context()
        handle = ok(cuda.cuMemCreate(100 * MIB, properties(), 0))
        assert free_bytes() == 860 * MIB
        assert name(cuda.cuMemCreate(2 * MIB, properties(), 0)) == "OUT_OF_MEMORY"
        assert free_bytes() == 0, "all that was free"
        assert pynvml.nvmlDeviceGetMemoryInfo(device).free == 0
        assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(device)) == 1, "no further process that could be seen"
        ok(cuda.cuMemRelease(handle))
        assert free_bytes() == 960 * MIB, "it has ended"
        ok(cuda.cuMemCreate(900 * MIB, properties(), 0))
    """)


def test_a_board_arms_faults_and_holds_calls_while_the_program_runs(gpu, tmp_path, wait_until):
    board = board_of(gpu, tmp_path)
    process = gpu.start("""
        context()
        for line in sys.stdin:
            say(name(cuda.cuMemAlloc(100)))
    """)

    def allocate() -> None:
        process.stdin.write("\n")
        process.stdin.flush()

    allocate()
    assert process.stdout.readline() == "SUCCESS\n"
    assert board.calls() == 4 and board.met() == 0
    board.arm("cuMemAlloc:OUT_OF_MEMORY:2")
    allocate()
    allocate()
    assert [process.stdout.readline() for _ in range(2)] == ["SUCCESS\n", "OUT_OF_MEMORY\n"]
    assert (board.calls(), board.met(), board.struck()) == (2, 1, ["cuMemAlloc"])
    board.arm("*:HOLD:1")
    allocate()
    wait_until(lambda: board.held() == 1)
    board.arm("")
    assert process.stdout.readline() == "SUCCESS\n"
    wait_until(lambda: board.held() == 0)


def test_the_board_counts_registered_host_memory(gpu, tmp_path):
    board = board_of(gpu, tmp_path)
    gpu.run("""
        import mmap
        context()
        memory = mmap.mmap(-1, 65536)
        where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ok(cuda.cuMemHostRegister(where, 16384, 0))
        ok(cuda.cuMemHostRegister(where + 16384, 4096, 0))
        ok(cuda.cuMemHostUnregister(where))
    """)
    assert board.registered_bytes() == 4096

"""One machine for all processes: capacity, accounting, fork, death, NVML, faults, and how the libraries are found."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

HOLD = 'context(); ok(cuda.cuMemAlloc(int(sys.argv[1]) * MIB)); say("holds"); sys.stdin.readline()'
NVML = """
    import pynvml
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
"""


def holder(gpu, mebibytes: int):
    process = gpu.start(HOLD, str(mebibytes))
    assert process.stdout.readline() == "holds\n"
    return process


def test_processes_share_the_capacity(gpu):
    holder(gpu, 500)
    assert gpu.run("context(); say(free_bytes() // MIB, name(cuda.cuMemAlloc(500 * MIB)))") == [
        "396 OUT_OF_MEMORY"
    ]


def test_the_memory_of_a_killed_process_is_free_at_once(gpu):
    process = holder(gpu, 900)
    process.send_signal(signal.SIGKILL)  # not reaped: it is a zombie now
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert gpu.run("context(); ok(cuda.cuMemAlloc(900 * MIB)); say(free_bytes() // MIB)") == ["60"]


def test_nvml_sees_real_pids_and_bytes_and_no_invented_numbers(gpu):
    process = holder(gpu, 100)
    gpu.run(
        NVML
        + """
    assert "Simulated GPU" in pynvml.nvmlDeviceGetName(device)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    assert (memory.total, memory.used, memory.free) == (1024 * MIB, 164 * MIB, 860 * MIB)
    (user,) = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert (user.pid, user.usedGpuMemory) == (int(sys.argv[1]), 164 * MIB)
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(device) == []
    for ask in (pynvml.nvmlDeviceGetMigMode, pynvml.nvmlDeviceGetPowerUsage,
                lambda d: pynvml.nvmlDeviceGetTemperature(d, 0)):
        try:
            ask(device)
        except pynvml.NVMLError_NotSupported:
            continue
        raise AssertionError("an answer")
    ok(cuda.cuInit(0))
    uuid = ok(cuda.cuDeviceGetUuid(0)).bytes.hex()
    assert pynvml.nvmlDeviceGetUUID(device).replace("-", "")[3:] == uuid
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device))) == 0
    assert pynvml.nvmlDeviceGetPciInfo(device).busId == "00000000:01:00.0"
    assert "simulated" in pynvml.nvmlSystemGetDriverVersion()
    assert b"Simulated GPU" in ok(cuda.cuDeviceGetName(100, 0))
    """,
        str(process.pid),
    )


def test_utilisation_is_the_time_that_kernels_ran(gpu, wait_until):
    process = gpu.start("""
        context()
        kernels = Kernels()
        say("idle")
        sys.stdin.readline()
        ok(kernels.launch("spin_ns", 60_000_000_000))
        say("busy")
        sys.stdin.readline()
    """)
    ask = gpu.start(
        NVML
        + """
    for line in sys.stdin:
        samples = pynvml.nvmlDeviceGetProcessUtilization(device, 0)
        say(pynvml.nvmlDeviceGetUtilizationRates(device).gpu, samples[0].pid, samples[0].smUtil)
    """
    )

    def utilisation() -> list[int]:
        ask.stdin.write("\n")
        ask.stdin.flush()
        return [int(word) for word in ask.stdout.readline().split()]

    assert process.stdout.readline() == "idle\n"
    assert utilisation() == [0, process.pid, 0]
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "busy\n"
    wait_until(lambda: utilisation()[0] >= 50, message="busy for half a second")
    assert utilisation()[2] >= 50


def test_after_fork_only_a_child_of_an_untouched_parent_can_use_the_gpu(gpu):
    gpu.run("""
        def child(code):
            pid = os.fork()
            if pid == 0:
                try:
                    code()
                    os._exit(0)
                except BaseException as error:
                    print(error, file=sys.stderr, flush=True)
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
        def fresh():
            context()
            ok(cuda.cuMemAlloc(MIB))
        child(fresh)
        context()
        block = ok(cuda.cuMemAlloc(MIB))
        def refused():
            for result in (cuda.cuInit(0), cuda.cuDeviceGetCount(), cuda.cuMemAlloc(100), cuda.cuCtxGetCurrent()):
                assert name(result) == "NOT_INITIALIZED", result
        child(refused)
        ok(cuda.cuMemsetD8(block, 1, MIB))
        used = free_bytes()
        assert used == (1024 - 64 - 2) * MIB, "the child's exit gave nothing of ours away"
    """)


def test_an_unused_machine_takes_new_settings(gpu):
    assert gpu.run("context(); say(ok(cuda.cuMemGetInfo())[1] // MIB)") == ["1024"]
    gpu.set(memory="512MiB", gpus="2")
    assert gpu.run("context(); say(ok(cuda.cuMemGetInfo())[1] // MIB, ok(cuda.cuDeviceGetCount()))") == [
        "512 2"
    ]


def test_cuda_visible_devices_renumbers(gpu):
    gpu.set(gpus="3")
    whole = gpu.run("context(); [say(ok(cuda.cuDeviceGetUuid(d)).bytes.hex()) for d in range(3)]")
    gpu.machine.environment["CUDA_VISIBLE_DEVICES"] = "2,0"
    part = gpu.run("""
        context()
        [say(ok(cuda.cuDeviceGetUuid(d)).bytes.hex()) for d in range(ok(cuda.cuDeviceGetCount()))]
    """)
    assert part == [whole[2], whole[0]]
    gpu.machine.environment["CUDA_VISIBLE_DEVICES"] = ""
    assert gpu.run("say(name(cuda.cuInit(0)))") == ["NO_DEVICE"]


def test_copies_are_as_slow_as_they_are_told_to_be(gpu):
    gpu.set(copy_rate="100MiB")
    (taken,) = gpu.run("""
        context()
        address = ok(cuda.cuMemAlloc(20 * MIB))
        data = bytes(20 * MIB)
        start = time.monotonic()
        ok(cuda.cuMemcpyHtoD(address, data, len(data)))
        say(time.monotonic() - start)
    """)
    assert float(taken) >= 0.19


def test_names_resolve_as_the_driver_resolves_them(gpu):
    gpu.run("""
        ok(cuda.cuInit(0))
        def ask(base, version=13000, flags=0):
            pointer, status = ok(cuda.cuGetProcAddress(base, version, flags))
            return int(pointer), int(status)
        assert ask(b"cuMemAlloc")[1] == 0 and ask(b"cuMemAlloc")[0]
        library = ctypes.CDLL("libcuda.so.1")
        address = lambda symbol: ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        assert ask(b"cuMemAlloc")[0] == address("cuMemAlloc_v2")
        assert ask(b"cuMemPrefetchAsync", 12000)[0] == address("cuMemPrefetchAsync")
        assert ask(b"cuMemPrefetchAsync", 13000)[0] == address("cuMemPrefetchAsync_v2")
        assert ask(b"cuLaunchKernel", 13000, 2)[0] == address("cuLaunchKernel_ptsz")
        assert ask(b"cuMemcpyHtoD", 13000, 2)[0] == address("cuMemcpyHtoD_v2_ptds")
        assert ask(b"cuNothing") == (0, 1) and ask(b"cuMemAlloc_v2") == (0, 1), "names without a version"
        assert ask(b"cuMemCreate", 9000) == (0, 2), "not yet"
        assert ok(cuda.cuDriverGetVersion()) == 13000
    """)


@pytest.mark.long
def test_a_crash_that_holds_the_machines_lock_does_not_stop_others(gpu):
    """A thousand short allocations, killed in the midst of it: the next process finds a consistent machine."""
    for _ in range(5):
        process = gpu.start("""
            context()
            say("busy")
            while True:
                ok(cuda.cuMemFree(ok(cuda.cuMemAlloc(2 * MIB))))
        """)
        assert process.stdout.readline() == "busy\n"
        process.kill()
        process.wait(60)
    assert gpu.run("context(); say(free_bytes() // MIB)") == ["960"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_program_linked_with_the_driver_runs_on_it(gpu, tmp_path):
    program = tmp_path / "linked"
    source = Path(__file__).resolve().parents[1] / "shim" / "processes" / "small.c"
    link = [f"-L{gpu.libraries}", "-l:libcuda.so.1"]
    subprocess.run(["cc", "-Wall", "-Werror", source, "-o", program, *link], check=True, timeout=60)
    needed = subprocess.run(
        ["readelf", "-d", str(program)], check=True, capture_output=True, text=True
    ).stdout
    assert "[libcuda.so.1]" in needed, "as if it had been linked with the real one"
    done = gpu.machine.start(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert done.communicate(timeout=60) == ("0 wrong\n", None)
    assert done.returncode == 0


def test_the_libraries_are_no_driver_by_themselves(native):
    for library in ("libaffinode-sim-cuda.so", "libaffinode-sim-nvml.so"):
        dynamic = subprocess.run(
            ["readelf", "-d", str(native / library)], check=True, capture_output=True, text=True
        )
        assert "SONAME" not in dynamic.stdout


def test_memory_is_shared_between_processes_by_handle(gpu):
    owner = gpu.start("""
        context()
        address = ok(cuda.cuMemAlloc(4 * MIB))
        ok(cuda.cuMemsetD32(address, 41, 10))
        handle = ok(cuda.cuIpcGetMemHandle(address))
        say(ctypes.string_at(int(handle.getPtr()), 64).hex())
        sys.stdin.readline()
        say(words(address, 1)[0])
    """)
    handle = owner.stdout.readline().strip()
    gpu.run(
        """
        context()
        handle = cuda.CUipcMemHandle()
        ctypes.memmove(int(handle.getPtr()), bytes.fromhex(sys.argv[1]), 64)
        address = ok(cuda.cuIpcOpenMemHandle(handle, 1))
        assert words(address, 1) == [41]
        ok(Kernels().launch("add_u32", address, 1, 1))
        ok(cuda.cuIpcCloseMemHandle(address))
        assert free_bytes() == (1024 - 2 * 64 - 4) * MIB, "the owner pays, once"
        """,
        handle,
    )
    assert owner.communicate("\n", timeout=60) == ("42\n", "")

"""cuCheckpointProcess*: the traps that were measured on a real GPU."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = pytest.mark.long  # the shim's C programs checkpoint at each run

STATE = """
def state(pid=None):
    return str(ok(cuda.cuCheckpointProcessGetState(pid or os.getpid())).name).split("_")[-1].lower()
def lock(timeout_ms=0, pid=None):
    arguments = cuda.CUcheckpointLockArgs()
    arguments.timeoutMs = timeout_ms
    return cuda.cuCheckpointProcessLock(pid or os.getpid(), arguments)
me = os.getpid()
"""

NVML = """
import subprocess
def nvml(expression):
    code = "import pynvml as n; n.nvmlInit(); gpu = n.nvmlDeviceGetHandleByIndex; print(repr(" + expression + "))"
    return eval(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
def elsewhere():
    return nvml("(n.nvmlDeviceGetMemoryInfo(gpu(0)).used, len(n.nvmlDeviceGetComputeRunningProcesses(gpu(0))))")
"""


def test_a_process_checkpoints_itself_and_its_memory_comes_back(gpu):
    gpu.run(
        STATE
        + NVML
        + """
made = context()
kernels = Kernels()
address = ok(cuda.cuMemAlloc(100 * MIB))
ok(kernels.launch("pattern_u32", address, 1000, 1))
assert state() == "running"
ok(lock())
assert state() == "locked"
assert name(lock()) == name(cuda.cuCheckpointProcessRestore(me, None)) == "ILLEGAL_STATE"
ok(cuda.cuCheckpointProcessCheckpoint(me, None))
assert state() == "checkpointed"
assert elsewhere() == (0, 0)
read = []
def call():
    ok(cuda.cuCtxSetCurrent(made))
    read.extend(words(address, 1000))
waiting = threading.Thread(target=call)
waiting.start()
waiting.join(0.05)
assert waiting.is_alive(), "calls wait while the process is checkpointed"
assert name(cuda.cuCheckpointProcessUnlock(me, None)) == "ILLEGAL_STATE"
ok(cuda.cuCheckpointProcessRestore(me, None))
assert state() == "locked" and waiting.is_alive()
ok(cuda.cuCheckpointProcessUnlock(me, None))
waiting.join()
assert read == pattern(1, 1000)
assert elsewhere() == (164 * MIB, 1)
"""
    )


def test_nvml_never_answers_a_process_that_is_checkpointed_until_it_is_restored(gpu):
    gpu.run(
        STATE
        + NVML
        + """
import pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
uuid = pynvml.nvmlDeviceGetUUID(device)
context()
ok(lock())
assert pynvml.nvmlDeviceGetMemoryInfo(device).used == 64 * MIB, "locked alone, NVML answers"
ok(cuda.cuCheckpointProcessCheckpoint(me, None))
answers = []
calls = [
    lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid),
    lambda: pynvml.nvmlDeviceGetMemoryInfo(device).used,
    pynvml.nvmlInit,
]
waiting = [threading.Thread(target=lambda call=call: answers.append(call())) for call in calls]
for thread in waiting:
    thread.start()
for thread in waiting:
    thread.join(0.05)
    assert thread.is_alive()
assert answers == [] and elsewhere() == (0, 0), "other processes are answered"
ok(cuda.cuCheckpointProcessRestore(me, None))
for thread in waiting:
    thread.join()
assert len(answers) == len(calls)
ok(cuda.cuCheckpointProcessUnlock(me, None))
"""
    )


def test_lock_waits_for_work_but_not_longer_than_it_was_told(gpu):
    gpu.run(
        STATE
        + """
context()
kernels = Kernels()
stream = ok(cuda.cuStreamCreate(1))
flag = (U32 * 1).from_address(ok(cuda.cuMemHostAlloc(4, 0)))
ok(kernels.launch("wait_flag", ctypes.addressof(flag), stream=stream))
assert name(lock(30)) == "NOT_READY"
assert state() == "running"
assert name(cuda.cuStreamQuery(stream)) == "NOT_READY", "calls pass again"
threading.Timer(0.05, lambda: flag.__setitem__(0, 1)).start()
ok(lock(5000))
assert state() == "locked" and flag[0] == 1
ok(cuda.cuCheckpointProcessUnlock(me, None))
ok(cuda.cuStreamSynchronize(stream))
"""
    )


def test_managed_memory_is_refused_and_unlock_brings_the_process_back(gpu):
    gpu.run(
        STATE
        + """
context()
address = ok(cuda.cuMemAllocManaged(2 * MIB, cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
ok(lock())
assert name(cuda.cuCheckpointProcessCheckpoint(me, None)) == "NOT_SUPPORTED"
assert state() == "locked"
ok(cuda.cuCheckpointProcessUnlock(me, None))
ok(cuda.cuMemFree(address))
"""
    )


def test_restore_on_a_full_gpu_loses_the_process(gpu):
    parked = gpu.start(
        STATE
        + """
context()
ok(cuda.cuMemAlloc(600 * MIB))
ok(lock())
ok(cuda.cuCheckpointProcessCheckpoint(me, None))
say("parked")
sys.stdin.readline()
assert name(cuda.cuCheckpointProcessRestore(me, None)) == "OUT_OF_MEMORY"
assert state() == "failed"
say("lost")
sys.stdin.readline()
assert name(cuda.cuCheckpointProcessRestore(me, None)) == "OPERATING_SYSTEM", "even with room"
assert name(cuda.cuCheckpointProcessUnlock(me, None)) == "ILLEGAL_STATE"
say("still lost")
"""
    )
    assert parked.stdout.readline() == "parked\n"
    other = gpu.start('context(); ok(cuda.cuMemAlloc(600 * MIB)); say("full"); sys.stdin.readline()')
    assert other.stdout.readline() == "full\n"
    parked.stdin.write("\n")
    parked.stdin.flush()
    assert parked.stdout.readline() == "lost\n"
    other.communicate("\n", timeout=60)
    assert parked.communicate("\n", timeout=60) == ("still lost\n", "")


def test_another_process_of_the_same_user_can_be_checkpointed(gpu):
    target = gpu.start("""
        context()
        address = ok(cuda.cuMemAlloc(100 * MIB))
        ok(cuda.cuMemsetD32(address, 5, 10))
        say("ready")
        sys.stdin.readline()
        say(words(address, 1)[0])
    """)
    assert target.stdout.readline() == "ready\n"
    gpu.run(
        STATE
        + """
ok(cuda.cuInit(0))
target = int(sys.argv[1])
assert state(target) == "running"
ok(lock(1000, target))
ok(cuda.cuCheckpointProcessCheckpoint(target, None))
assert state(target) == "checkpointed"
context()
assert free_bytes() == 960 * MIB
""",
        str(target.pid),
    )
    target.stdin.write("\n")
    target.stdin.flush()
    gpu.run(
        STATE
        + """
ok(cuda.cuInit(0))
target = int(sys.argv[1])
ok(cuda.cuCheckpointProcessRestore(target, None))
ok(cuda.cuCheckpointProcessUnlock(target, None))
""",
        str(target.pid),
    )
    assert target.communicate(timeout=60) == ("5\n", "")


def test_a_process_that_is_killed_while_checkpointed_leaves_nothing(gpu):
    target = gpu.start(
        STATE
        + """
context()
ok(cuda.cuMemAlloc(100 * MIB))
ok(lock())
ok(cuda.cuCheckpointProcessCheckpoint(me, None))
say("parked")
sys.stdin.readline()
"""
    )
    assert target.stdout.readline() == "parked\n"
    target.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)  # a zombie, not reaped
    assert gpu.run("context(); say(free_bytes() // MIB)") == ["960"]
    target.wait(60)


def test_pids_that_cannot_be_checkpointed(gpu):
    gpu.run(
        STATE
        + """
assert name(cuda.cuCheckpointProcessGetState(me)) == "NOT_INITIALIZED"
ok(cuda.cuInit(0))
assert state() == "running", "after cuInit alone"
assert name(cuda.cuCheckpointProcessGetState(os.getppid())) == "NOT_INITIALIZED"
assert name(cuda.cuCheckpointProcessGetState(2**22 + 1)) == "OPERATING_SYSTEM"
assert name(cuda.cuCheckpointProcessUnlock(me, None)) == "ILLEGAL_STATE"
"""
    )


ELSEWHERE = """
def used():
    return nvml("[n.nvmlDeviceGetMemoryInfo(gpu(i)).used >> 20 for i in range(3)]")
def uuids():
    said = nvml("[n.nvmlDeviceGetUUID(gpu(i)) for i in range(3)]")
    return [bytes.fromhex(uuid[4:].replace("-", "")) for uuid in said]
def restore(order):
    known, pairs = uuids(), []
    for old, new in enumerate(order):
        pair = cuda.CUcheckpointGpuPair()
        ctypes.memmove(pair.getPtr(), known[old] + known[new], 32)
        pairs.append(pair)
    arguments = cuda.CUcheckpointRestoreArgs()
    arguments.gpuPairs = pairs
    arguments.gpuPairsCount = len(pairs)
    return cuda.cuCheckpointProcessRestore(me, arguments)
"""


@pytest.mark.parametrize("visible", [None, "1"])
def test_a_process_comes_back_on_another_gpu(gpu, visible):
    """Every pair must be named, also of GPUs that the process does not see; its devices keep their numbers."""
    gpu.set(memory="1GiB", gpus="3")
    if visible:
        gpu.machine.environment["CUDA_VISIBLE_DEVICES"] = visible
    gpu.run(
        STATE
        + NVML
        + ELSEWHERE
        + f"device = {0 if visible else 1}"
        + """
known = uuids()
made = context(device)
kernels = Kernels()
address = ok(cuda.cuMemAlloc(100 * MIB))
ok(kernels.launch("pattern_u32", address, 1000, 1))
assert used() == [0, 164, 0]
ok(lock())
ok(cuda.cuCheckpointProcessCheckpoint(me, None))
assert name(restore([1, 0])) == name(restore([1, 1, 2])) == "INVALID_VALUE"
assert state() == "checkpointed"
ok(restore([0, 2, 1]))
ok(cuda.cuCheckpointProcessUnlock(me, None))
assert used() == [0, 0, 164]
assert words(address, 1000) == pattern(1, 1000)
assert ok(cuda.cuDeviceGetUuid(device)).bytes == known[2]
ok(cuda.cuMemAlloc(32 * MIB))
assert used() == [0, 0, 196]
ok(cuda.cuMemFree(address))
ok(lock())
ok(cuda.cuCheckpointProcessCheckpoint(me, None))
ok(restore([2, 1, 0]))
ok(cuda.cuCheckpointProcessUnlock(me, None))
assert used() == [96, 0, 0]
ok(cuda.cuDevicePrimaryCtxReset(device))
assert used() == [0, 0, 0]
"""
    )

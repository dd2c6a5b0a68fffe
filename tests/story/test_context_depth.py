"""With `depth` set to "context" an idle kernel leaves the GPU altogether, and comes back with every byte."""

from __future__ import annotations

import os
import signal

import pytest
from story_stage import LEAVES, PATIENT, end

DEEP = {"memory": "4GiB", "context": "64MiB", "depth": "context", "arguments": (PATIENT,)}


def on_gpu(machine) -> int:
    return machine.node()["gpus"][0]["used_bytes"]


def wait_until_used(s, size):
    s.until(lambda: on_gpu(s.machine) == size)  # NVML is sampled


def park_to(s, kernel, depth):
    """Park until it went that deep: a process that has just begun stays at memory depth."""

    def is_deep():
        s.park(kernel)
        if s.seen(kernel)["depth"] == depth:
            return True
        assert s.machine.ask("POST", f"/kernels/{kernel.id}/resume", {})[0] == 200
        return False

    s.until(is_deep)


def test_a_parked_kernel_leaves_nothing_on_the_gpu_and_is_right_when_it_is_back(stage):
    s = stage(**DEEP)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 24); gpu.allocate('small', 1); gpu.add('a', 3); x = 41")
    park_to(s, kernel, "context")
    assert s.seen(kernel)["text"].startswith("GPU freed completely, 24 MiB safe in RAM")
    assert s.seen(kernel)["unmovable"] == []
    wait_until_used(s, 0)

    assert s.ok(kernel, "x + 1") == "42"
    s.ok(
        kernel, "ok(cu.cuMemGetInfo()); ok(cu.cuCtxGetCurrent()); gpu.free('small'); import gc; gc.collect()"
    )
    assert s.ok(kernel, "int(ok(cu.cuDeviceGetCount()))") == "1"
    assert s.seen(kernel)["depth"] == "context", "keeping books does not wake it"

    assert s.ok(kernel, "gpu.add('a', 4); gpu.check('a')") == "True"
    assert s.seen(kernel)["depth"] == "none"


@pytest.mark.long
def test_a_kernel_at_context_depth_is_shut_down_without_the_gpu(stage):
    s = stage(**DEEP)
    kernel = s.kernel()
    s.ok(kernel, f"gpu.allocate('a', 96)\n{LEAVES}")
    park_to(s, kernel, "context")
    end(s, kernel, "shutdown")
    wait_until_used(s, 0)


HOLD_ALL = """
import time
from cuda.bindings import driver as cu
cu.cuInit(0)
error, context = cu.cuDevicePrimaryCtxRetain(0)
cu.cuCtxSetCurrent(context)
error, free, total = cu.cuMemGetInfo()
assert cu.cuMemAlloc(int(free) - (256 << 20))[0] == 0
print('full', flush=True)
time.sleep(600)
"""
# Without the shim, as an unmanaged program; until it is killed.
STRANGER = f"""
import os, subprocess, sys
unmanaged = {{name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}}
stranger = subprocess.Popen([sys.executable, '-c', {HOLD_ALL!r}], env=unmanaged, stdout=subprocess.PIPE, text=True)
print(stranger.stdout.readline().strip(), stranger.pid)
"""
REAP = "stranger.wait()"  # ipykernel waits 30 s for children that are zombies before it ends


@pytest.mark.long
def test_a_stranger_that_fills_the_gpu_meanwhile_keeps_the_kernel_parked_and_nothing_is_lost(stage):
    s = stage(**DEEP)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 96)")
    park_to(s, kernel, "context")
    full, pid = s.ok(kernel, STRANGER).split()
    before = s.seen(kernel)["resumes"]
    try:
        assert full == "full"
        cell = kernel.submit("gpu.add('a', 1); gpu.check('a')")
        s.until(lambda: (s.seen(kernel)["wait"] or {}).get("code") == "outside")
        assert (s.residency(kernel), s.seen(kernel)["depth"]) == ("queued", "context")
    finally:
        os.kill(int(pid), signal.SIGKILL)
    done = kernel.wait(cell)
    assert done.text.strip() == "True", done.traceback
    # It was brought back once, when there was room; a shim counts that after it lets calls go on.
    s.until(lambda: s.seen(kernel)["resumes"] == before + 1)
    s.ok(kernel, REAP)


@pytest.mark.long
def test_beside_a_stranger_the_context_stays_and_the_reason_is_told(stage):
    s = stage(**DEEP)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 96)")
    _, pid = s.ok(kernel, STRANGER).split()
    try:
        s.until(lambda: "has no shim" in (s.seen(kernel)["depth_refusal"] or ""))
        s.park(kernel)
        assert s.seen(kernel)["depth"] == "memory"
        shown = s.machine.affinode("status").stdout
        assert "its CUDA context stays on the GPU: process" in shown, shown
    finally:
        os.kill(int(pid), signal.SIGKILL)
    s.ok(kernel, REAP)
    assert s.ok(kernel, "gpu.add('a', 1); gpu.check('a')") == "True"


@pytest.mark.long
def test_with_its_gpu_full_of_busy_kernels_it_resumes_on_the_other_one(stage):
    """Its own GPU lacks the room that the driver must find to be sure."""
    s = stage(**{**DEEP, "memory": "3GiB"}, gpus=2)
    kernel, other = s.kernel(), s.kernel()
    s.ok(kernel, "gpu.allocate('a', 96); gpu.add('a', 3); x = 41")
    park_to(s, kernel, "context")
    s.ok(other, "full = ok(cu.cuMemAlloc(1536 << 20))")
    assert s.machine.ask("POST", f"/kernels/{other.id}/hold", {})[0] == 200
    home, away = (gpu["uuid"] for gpu in s.machine.node()["gpus"])

    assert s.ok(kernel, "gpu.add('a', 4); gpu.check('a')") == "True"
    s.until(lambda: s.seen(kernel)["moved_from"] == home)  # once the controller is told that it is there
    seen = s.seen(kernel)
    assert (seen["residency"], seen["depth"]) == ("resident", "none")
    assert [gpu["uuid"] for gpu in seen["gpus"] if gpu["resident_bytes"]] == [away]
    s.until(lambda: s.machine.node()["gpus"][1]["used_bytes"] >= (96 + 64) << 20)  # NVML is sampled
    assert "  1    96 MiB" in s.machine.affinode("status").stdout

    park_to(s, kernel, "context")
    assert s.ok(kernel, "gpu.add('a', 5); gpu.check('a') and x == 41") == "True"
    s.until(lambda: s.seen(kernel)["moved_from"] is None)  # the other one is its own now

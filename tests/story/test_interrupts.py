"""While a call waits for the GPU, the person is still in charge: interrupt, restart, shut down."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from story_cells import SETUP
from story_stage import LEAVES, PATIENT, SMALL, end

MAIN = "gpu.add('a', 1)"
WORKER = """
import threading
def work():
    try:
        gpu_in_thread()
    except RuntimeError as error:
        failed.append(str(error))
failed = []
def gpu_in_thread():
    ok(cu.cuCtxSetCurrent(gpu.context))
    gpu.add('a', 1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
GIL = """
import ctypes
library = ctypes.PyDLL("libcuda.so.1")  # PyDLL keeps the GIL during the call
code = library.cuMemsetD32_v2(ctypes.c_uint64(int(gpu.blocks['a'][0])), ctypes.c_uint32(1), ctypes.c_size_t(16))
print("returned", code)
"""


JOB = f"""{SETUP}
import pathlib
try:
    gpu.allocate('job', 25, 7)
    said = str(gpu.check('job'))
except RuntimeError as error:
    said = str(error)
pathlib.Path('new').write_text(said)
pathlib.Path('new').rename('said')
"""


@pytest.fixture
def crowded(stage):
    """(stage, a parked kernel that cannot come back because a held one has the GPU); the server is patient."""
    s = stage(**SMALL, idle_timeout_s=0.3, arguments=(PATIENT,))
    waiter, holder = s.kernel(), s.kernel()
    s.ok(waiter, "gpu.allocate('a', 30)")
    s.park(waiter)
    s.hold(holder)
    s.ok(holder, "gpu.allocate('a', 30)")
    return s, waiter, holder


def interrupt(s, kernel) -> None:
    status, answer = s.server.request("POST", f"{kernel.path}/interrupt")
    assert status == 204, answer


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(MAIN, id="main thread", marks=pytest.mark.long),
        pytest.param(WORKER, id="worker thread", marks=pytest.mark.long),
        pytest.param(GIL, id="holding the GIL"),
    ],
)
def test_an_interrupt_ends_the_wait_and_the_next_cell_works(crowded, code):
    s, waiter, holder = crowded
    cell = waiter.submit(code)
    s.wait(waiter, "queued")
    interrupt(s, waiter)
    done = waiter.wait(cell, 60)  # the GPU is held for much longer
    assert done.error == "KeyboardInterrupt", done
    s.until(lambda: not s.seen(waiter)["cell_open"])  # its server says so after this client was told
    cell = waiter.submit("gpu.check('a')")
    s.wait(waiter, "queued")  # what was cancelled is over with its cell
    s.machine.ask("POST", f"/kernels/{holder.id}/release", {})
    assert waiter.wait(cell).text == "True"


def is_pending(pid: int, number: int) -> bool:
    """Whether Linux has not delivered a signal to the process yet."""
    pending = Path(f"/proc/{pid}/status").read_text().partition("ShdPnd:")[2].split()[0]
    return bool(int(pending, 16) >> (number - 1) & 1)


@pytest.mark.long
def test_signals_that_are_not_interrupts_cancel_nothing(crowded):
    s, waiter, holder = crowded
    s.ok(
        waiter,
        "import signal, subprocess\n"
        "signal.signal(signal.SIGALRM, lambda *a: None); signal.siginterrupt(signal.SIGALRM, False)\n"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)",
    )
    pid, child = waiter.pid, int(s.ok(waiter, "child.pid"))
    cell = waiter.submit("gpu.add('a', 1); print(gpu.check('a'), child.poll())")
    s.wait(waiter, "queued")
    os.kill(child, signal.SIGKILL)  # which its parent has a signal of, too
    for _ in range(30):
        os.kill(pid, signal.SIGALRM)
        s.until(lambda: not is_pending(pid, signal.SIGALRM))
        assert s.residency(waiter) == "queued"
    s.machine.ask("POST", f"/kernels/{holder.id}/release", {})
    done = waiter.wait(cell, 60)
    assert (done.status, done.text) == ("ok", "True -9\n"), done


@pytest.mark.long
@pytest.mark.parametrize("action", ["restart", pytest.param("shutdown", marks=pytest.mark.long)])
def test_a_waiting_kernel_is_restarted_and_shut_down_without_the_gpu_that_it_waits_for(crowded, action):
    s, waiter, holder = crowded
    s.ok(waiter, LEAVES)
    waiter.submit(MAIN)
    s.wait(waiter, "queued")
    end(s, waiter, action)
    assert f"resumed {waiter.id}" not in s.machine.controller_log()
    assert (s.residency(holder), s.seen(holder)["parks"]) == ("resident", 0)
    if action == "restart":
        waiter.wait_for_ready()
        assert s.ok(waiter, "1 + 1") == "2"


@pytest.mark.long
def test_a_job_in_a_session_of_its_own_outlives_interrupt_and_restart_of_its_notebook(crowded, wait_until):
    """No signal to the kernel's process group reaches it: it goes on waiting for the GPU."""
    s, waiter, holder = crowded
    s.ok(
        waiter,
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {JOB!r}], start_new_session=True)",
    )
    wait_until(lambda: s.seen(waiter)["residency"] == "queued")
    interrupt(s, waiter)
    wait_until(lambda: f"cancel {waiter.id}" in s.machine.controller_log())
    status, answer = s.server.request("POST", f"{waiter.path}/restart")
    assert status == 200, answer
    wait_until(lambda: f"{waiter.id} is being shut down" in s.machine.controller_log())
    s.machine.ask("POST", f"/kernels/{holder.id}/release", {})
    said = s.machine.work / "said"
    wait_until(said.exists)
    assert said.read_text() == "True"


def test_a_parked_kernel_is_shut_down_without_the_gpu(stage):
    s = stage(**SMALL, idle_timeout_s=0.3, arguments=(PATIENT,))
    kernel = s.kernel()
    s.ok(kernel, f"gpu.allocate('a', 20)\n{LEAVES}")
    s.park(kernel)
    end(s, kernel, "shutdown")
    assert f"resumed {kernel.id}" not in s.machine.controller_log()

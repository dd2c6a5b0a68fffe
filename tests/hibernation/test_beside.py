"""Programs that a cell left beside its kernel: they have numbers that the kernel needs, or talk with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_machine import Machine
from lone_kernel import LoneKernel, Refused
from waiting import until, wait_until

from jupyter_affinode.hibernation import tree
from jupyter_affinode.hibernation.checks import objection_to_writing
from jupyter_affinode.hibernation.seen import Seen, everything

PRINTS_ELSEWHERE = "</dev/null >/dev/null 2>&1"
# How a cell leaves `sleep` beside its kernel; each writes its process id into the file `left`.
FROM_A_SHELL = 'os.system("sleep 7611 & echo $! >left")'
FROM_POPEN = f'subprocess.Popen("sleep 7611 {PRINTS_ELSEWHERE} & echo $! >left", shell=True).wait()'
FORKED_TWICE = """
if not os.fork():
    if not os.fork():
        open("left", "w").write(str(os.getpid()))
        os.execvp("sleep", ["sleep", "7611"])
    os._exit(0)
os.wait()
"""
PRINTS_HERE = 'os.system("setsid sleep 7611 & echo $! >left")'  # into a pipe of the kernel
ON_ITS_OWN = f'os.system("setsid sleep 7611 {PRINTS_ELSEWHERE} & echo $! >left")'
LEFT = {
    "os.system": FROM_A_SHELL,
    "Popen": FROM_POPEN,
    "forked twice": FORKED_TWICE,
    "prints here": PRINTS_HERE,
}
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
ADVICE = r"a cell started `sleep 7611` \(process (\d+)\), which goes on beside the kernel.*: end it"


@contextlib.contextmanager
def left_by(lone: LoneKernel, code: str) -> Iterator[int]:
    """Run a cell that leaves a program beside the kernel, and yield the program's process id."""
    lone.run(f"import os, subprocess\n{code}")
    pid = int((lone.machine.work / "left").read_text())
    try:
        wait_until(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def small(gpu_machine_with_criu: Machine) -> Iterator[LoneKernel]:
    """A kernel that uses no GPU."""
    kernel = LoneKernel(gpu_machine_with_criu, uses_gpu=False)
    kernel.environment.pop("PYTEST_CURRENT_TEST", None)  # by which ipykernel leaves its output where it is
    with kernel:
        yield kernel


@pytest.mark.long
@pytest.mark.parametrize("how", LEFT)
def test_a_program_that_a_cell_left_is_named_before_the_kernel_leaves(small, how):
    with left_by(small, LEFT[how]) as pid:
        with pytest.raises(Refused, match=ADVICE) as refused:
            small.hibernate()
        assert f"(process {pid})" in str(refused.value)
        small.check()
    small.hibernate()
    small.wake()
    small.check()


def test_a_program_of_its_own_session_goes_on_beside_an_image(small):
    with left_by(small, ON_ITS_OWN) as pid:
        small.hibernate()
        small.wake()
        small.check()
        os.kill(pid, 0)


def test_a_program_that_is_left_while_the_kernel_is_written_stops_it(small):
    """A shell's program is below the kernel until the shell has ended."""
    small.run(
        "import os, subprocess\n"
        "shell = subprocess.Popen(['sh', '-c', 'sleep 7611 & echo $! >left; exec cat'], stdin=subprocess.PIPE,"
        " stdout=subprocess.DEVNULL)"
    )
    wait_until((small.machine.work / "left").exists)
    small.stop_at("hibernate: dump")
    hibernated = small.in_background(small.hibernate)
    wait_until(small.is_stopped)
    (child,) = map(int, Path(f"/proc/{small.pid}/task/{small.pid}/children").read_text().split())
    pid = int((small.machine.work / "left").read_text())
    try:
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: _parent(pid) != child)
        small.let_go()
        with pytest.raises(Refused, match=ADVICE):
            hibernated()
        small.check()
    finally:
        os.kill(pid, signal.SIGKILL)


LEADS_AND_ENDS = """
import os, time
os.setsid()
if not os.fork():
    os.execvp("sleep", ["sleep", "7611"])
print(os.getpid(), flush=True)
"""


async def test_a_number_that_anothers_session_has_is_told_at_the_wake():
    with subprocess.Popen(
        [sys.executable, "-c", LEADS_AND_ENDS], stdout=subprocess.PIPE, text=True
    ) as leader:
        assert leader.stdout is not None
        number = int(leader.stdout.readline())
        leader.wait()
        (left,) = (each for each in everything() if each.session == number)
        try:
            said = await tree.free([number]) or ""
            assert f"`sleep 7611` (process {left.pid}) is in the process group or session {number}" in said
            assert f"end it (`kill {left.pid}`)" in said
        finally:
            os.kill(left.pid, signal.SIGKILL)
        await until(lambda: not [each for each in everything() if each.session == number])  # it is reaped
        assert await tree.free([number]) is None


async def test_a_program_that_nothing_reaps_is_told_before(monkeypatch):
    """As in a container whose first process is no init."""
    monkeypatch.setattr(tree, "REAPED_S", 0.1)
    libc = ctypes.CDLL(None)
    code = "import os, sys, time\nif not os.fork():\n os.fork() or os._exit(0)\n os._exit(0)\n"
    code += "os.wait(); print(flush=True); time.sleep(600)"
    libc.prctl(SUBREAPER, 1)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as kernel:
        try:
            assert kernel.stdout is not None and kernel.stdout.readline()
            wait_until(lambda: bool(found := tree.beside({kernel.pid})) and found[0].is_dead)
            (left,) = tree.beside({kernel.pid})
            await tree.until_reaped({kernel.pid})
            said = objection_to_writing([kernel.pid]) or ""
            assert (
                f"process {left.pid} (python" in said
                and f"its parent, process {os.getpid()}, has not noted" in said
            )
            os.waitpid(left.pid, 0)
            assert objection_to_writing([kernel.pid]) is None
        finally:
            libc.prctl(SUBREAPER, 0)
            kernel.kill()


def _parent(pid: int) -> int:
    return Seen(pid).parent

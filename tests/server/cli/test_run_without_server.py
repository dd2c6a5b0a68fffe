"""`jupyter affinode run` alone: no server is there to look after the controller."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from gpu_cells import KEEPER, contents

from jupyter_affinode import environment
from jupyter_affinode.client import supervisor

SUPERVISORS = "jupyter_affinode.client.supervisor"


@pytest.fixture
def programs(native, machine):
    """`start(id)`: a program on a GPU that has room for one."""
    machine.simulate(memory="256MiB")
    machine.environment["AFFINODE_SIM_CONTEXT"] = "8MiB"
    run = (sys.executable, "-m", "jupyter_affinode.cli", "run", "--", sys.executable, "-c", KEEPER, "150")

    def start(kernel_id):
        errors = (machine.folder / f"{kernel_id}.log").open("wb")
        program = machine.start(
            *run,
            env={**machine.environment, "AFFINODE_KERNEL_ID": kernel_id},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        errors.close()
        return program

    return start


def test_a_killed_controller_is_started_again_and_the_waiting_program_gets_the_gpu(
    programs, machine, wait_until
):
    first, second = programs("first"), programs("second")  # at once
    ready = [program.stdout.readline() for program in (first, second)]
    logs = [(machine.folder / f"{name}.log").read_text() for name in ("first", "second")]
    assert ready == ["ready\n"] * 2, (first.poll(), second.poll(), logs, machine.controller_log()[-3000:])
    # On a slow machine the second may start one too: that one loses the election, and ends.
    wait_until(lambda: len(machine.pids_with(SUPERVISORS)) == 1)
    machine.kill_controller()
    assert machine.ask("PATCH", "/policy", {"contended_idle_timeout_s": 1})[0] == 200
    assert contents(first) == contents(second) == "same"
    assert len(machine.pids_with(SUPERVISORS)) == 1


@pytest.mark.long
def test_a_waiting_program_says_that_no_controller_answers(programs, machine, wait_until):
    """Killed together with what would start it again."""
    first = programs("first")
    assert first.stdout.readline() == "ready\n"
    wait_until(lambda: machine.kernel("first"))
    wait_until(lambda: machine.ask("POST", "/kernels/first/park", {})[0] == 200)
    second = programs("second")
    assert second.stdout.readline() == "ready\n"
    assert machine.ask("POST", "/kernels/second/hold", {"duration_s": 600})[0] == 200
    first.stdin.write("\n")
    first.stdin.flush()
    wait_until(lambda: "in line" in (machine.folder / "first.log").read_text())
    for pid in [*machine.pids_with(SUPERVISORS), machine.controller_pid()]:
        os.kill(pid, signal.SIGKILL)
    words = "Waiting for the GPU: no controller answers."
    wait_until(lambda: words in (machine.folder / "first.log").read_text(), 60)
    second.stdin.close()  # it ends, and the first takes its GPU back by itself
    assert first.stdout.readline() == "same\n"


def test_a_controller_that_is_told_to_end_ends(programs, machine, wait_until):
    first = programs("first")
    assert first.stdout.readline() == "ready\n"
    wait_until(machine.node)
    os.kill(machine.controller_pid(), signal.SIGTERM)
    wait_until(lambda: machine.node() is None)
    wait_until(lambda: not machine.pids_with(SUPERVISORS))


@pytest.mark.long
def test_the_supervisor_passes_a_request_to_end_on(programs, machine, wait_until):
    first = programs("first")
    assert first.stdout.readline() == "ready\n"
    wait_until(machine.node)
    (pid,) = machine.pids_with(SUPERVISORS)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: machine.node() is None)
    wait_until(lambda: not machine.pids_with(SUPERVISORS))


def test_until_a_killed_controller_is_there_again_processes_that_come_are_told_that_one_starts(
    tmp_path, monkeypatch
):
    """Else they were out of memory on a full GPU, since they have met no controller."""
    statuses, pauses = [-signal.SIGKILL] * 3 + [0], []

    def is_announced():
        with (tmp_path / environment.START_LOCK_NAME).open("rb+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def child(*arguments, **options):
        status = statuses.pop(0)
        return SimpleNamespace(poll=lambda: status, wait=lambda: status)

    def pause(seconds):
        pauses.append(seconds)
        assert is_announced()

    monkeypatch.setattr(supervisor, "subprocess", SimpleNamespace(Popen=child))
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(sleep=pause, monotonic=lambda: 0.0))
    monkeypatch.setattr(supervisor, "signal", SimpleNamespace(signal=lambda *_: None, SIG_DFL=None))
    assert supervisor.supervise("a.module", [], tmp_path / "node.sock") == 0
    assert pauses == [0.0, 0.4, 0.8, 1.6]

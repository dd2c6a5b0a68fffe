"""Anything of ours may be killed at any moment: kernels live as they would without us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from live_server import JupyterServer
from story_cells import SETUP
from story_stage import Stage


def another_controller(machine, old: int, timeout: float = 5) -> int:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        pid = machine.controller_pid()
        if pid not in (None, old):
            return pid
        time.sleep(0.05)
    raise AssertionError(
        f"no controller {timeout} s after the old one was killed\n{machine.controller_log()}"
    )


@pytest.mark.parametrize("residency", ["none", "resident", "parked", "queued"])
def test_a_killed_controller_is_back_within_5_s_and_knows_every_kernel(stage, residency):
    s = stage(memory="256MiB", idle_timeout_s=0.3)
    kernel, other = (s.server.start_kernel(path=p) for p in ("kernel.ipynb", "other.ipynb"))
    cell = None
    if residency != "none":
        for k in (kernel, other):
            s.ok(k, SETUP)
        s.ok(kernel, "gpu.allocate('a', 122)")
    if residency in ("parked", "queued"):
        s.park(kernel)
    if residency == "queued":
        s.ok(other, "gpu.allocate('a', 122)")
        s.machine.ask("POST", f"/kernels/{other.id}/hold", {"duration_s": 600})
        cell = kernel.submit("gpu.check('a')")
    s.wait(kernel, residency)
    old = s.machine.controller_pid()
    os.kill(old, signal.SIGKILL)
    another_controller(s.machine, old)
    if residency != "queued":
        s.wait(kernel, residency, timeout=5)
    deadline = time.monotonic() + 5
    while s.seen(kernel).get("path") != "kernel.ipynb" or not s.seen(other):
        assert time.monotonic() < deadline, s.machine.kernels()
        time.sleep(0.05)
    if residency == "queued":  # the hold is remembered, until it is released
        assert s.machine.kernel(other.id)["held_for_s"] > 0
        s.machine.ask("POST", f"/kernels/{other.id}/release")
        assert kernel.wait(cell, 30).text == "True"
    elif residency != "none":
        assert s.ok(kernel, "gpu.check('a')") == "True"


@pytest.mark.parametrize("residency", ["parking", "resuming"])
def test_a_controller_killed_in_the_middle_of_a_move_loses_nothing(stage, residency):
    s = stage(memory="256MiB", copy_rate="50MiB")  # so that a move lasts two seconds
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 100)")
    cell = None
    if residency == "parking":
        status, _ = s.machine.ask("POST", f"/kernels/{kernel.id}/park", {"wait": False})
        assert status == 202
    else:
        s.park(kernel)
        cell = kernel.submit("gpu.check('a')")
    s.wait(kernel, residency)
    old = s.machine.controller_pid()
    os.kill(old, signal.SIGKILL)
    another_controller(s.machine, old)
    if cell is None:
        s.wait(kernel, "parked")
        cell = kernel.submit("gpu.check('a')")
    assert kernel.wait(cell, 60).text == "True"
    assert s.residency(kernel) == "resident"


def test_without_any_controller_a_parked_kernel_comes_back_by_itself(gpu_machine):
    """The controller is stopped for good, so that none can be started in its place."""
    server = JupyterServer(gpu_machine).start()
    s = Stage(gpu_machine, server)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 100)")
    s.park(kernel)
    pid = gpu_machine.controller_pid()
    os.kill(pid, signal.SIGSTOP)  # it holds its lock and answers nobody
    try:
        began = time.monotonic()
        assert s.ok(kernel, "gpu.check('a')", 40) == "True"
        assert time.monotonic() - began < 20
    finally:
        os.kill(pid, signal.SIGCONT)
        kernel.close()


def test_two_servers_of_one_person_share_a_controller_and_either_may_die(stage):
    s = stage(memory="256MiB", idle_timeout_s=0.3)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 122)")
    second = JupyterServer(s.machine).start()
    theirs = second.start_kernel()
    s.ok(theirs, SETUP)
    s.ok(theirs, "gpu.allocate('a', 122)")  # makes the first kernel yield
    s.wait(kernel, "parked")
    s.server.kill()
    deadline = time.monotonic() + 15  # its kernels end with it, as ipykernel does when its parent dies
    while s.machine.kernel(kernel.id):
        assert time.monotonic() < deadline, s.seen(kernel)
        time.sleep(0.1)
    assert s.ok(theirs, "gpu.check('a')") == "True"
    assert s.machine.controller_pid()
    theirs.close()


@pytest.mark.parametrize("residency", ["resident", "parking", "parked", "queued", "resuming"])
def test_a_killed_server_takes_its_kernel_along_and_nobody_elses(stage, residency):
    """As without us: ipykernel ends with its parent, at every residency, and what it held is free for others."""
    is_moving = residency in ("parking", "resuming")
    s = stage(
        memory="256MiB", copy_rate="75MiB" if is_moving else None
    )  # so that a move lasts more than a second
    survivor = JupyterServer(s.machine).start()
    theirs = survivor.start_kernel()
    s.ok(theirs, SETUP)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 122)")
    if residency in ("parked", "queued", "resuming"):
        s.park(kernel)
    if residency == "queued":
        s.ok(theirs, "gpu.allocate('b', 122)")
        s.machine.ask("POST", f"/kernels/{theirs.id}/hold", {"duration_s": 600})
    if residency == "parking":
        s.machine.ask("POST", f"/kernels/{kernel.id}/park", {"wait": False})
    if residency in ("queued", "resuming"):
        kernel.submit("gpu.check('a')")
    s.wait(kernel, residency)
    s.server.kill()
    deadline = time.monotonic() + 30
    while s.seen(kernel).get("processes"):
        assert time.monotonic() < deadline, s.seen(kernel)
        time.sleep(0.1)
    if residency == "queued":
        s.ok(theirs, "gpu.free('b')")
    size = 140 if is_moving else 200  # more than was left beside the other's 122
    assert s.ok(theirs, f"gpu.allocate('a', {size}); gpu.check('a')") == "True"
    theirs.close()


def test_two_controllers_never_serve_one_gpu_set(stage):
    s = stage()
    s.kernel()
    environment = dict(s.machine.environment, AFFINODE_SOCKET=str(s.machine.folder / "second" / "node.sock"))
    (s.machine.folder / "second").mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_affinode.node"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert "two controllers must not share a GPU" in done.stdout + done.stderr, done

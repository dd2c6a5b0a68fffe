"""Anything of ours may be killed at any moment: kernels live as they would without us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from live_server import JupyterServer
from story_cells import SETUP
from story_stage import MORE, SMALL, Stage

long = pytest.mark.long


@pytest.fixture
def crashing(stage) -> Stage:
    """A small machine whose controller may be killed: its server starts another."""
    return stage(**SMALL, idle_timeout_s=0.3)


def kill_controller(s: Stage) -> None:
    """Kill it, and wait for the next one."""
    old = s.machine.controller_pid()
    os.kill(old, signal.SIGKILL)
    s.until(lambda: s.machine.controller_pid() not in (None, old))


@pytest.mark.parametrize(
    "residency", [pytest.param(name, marks=long) for name in ("none", "resident", "parked", "queued")]
)
def test_after_a_controllers_death_the_next_one_knows_every_kernel(crashing, residency):
    s = crashing
    kernel, other = (s.server.start_kernel(path=p) for p in ("kernel.ipynb", "other.ipynb"))
    cell = None
    if residency != "none":
        for k in (kernel, other):
            s.ok(k, SETUP)
        s.ok(kernel, "gpu.allocate('a', 30)")
    if residency in ("parked", "queued"):
        s.park(kernel)
    if residency == "queued":
        s.hold(other)
        s.ok(other, "gpu.allocate('a', 30)")
        cell = kernel.submit("gpu.check('a')")
    s.wait(kernel, residency)
    kill_controller(s)
    if residency != "queued":
        s.wait(kernel, residency)
    s.until(lambda: s.seen(kernel).get("path") == "kernel.ipynb" and s.seen(other))
    if residency == "queued":  # the hold is remembered, until it is released
        assert s.machine.kernel(other.id)["held_for_s"] > 0
        s.machine.ask("POST", f"/kernels/{other.id}/release")
        assert kernel.wait(cell).text == "True"
    elif residency != "none":
        assert s.ok(kernel, "gpu.check('a')") == "True"


@pytest.mark.parametrize("residency", ["resuming", pytest.param("parking", marks=long)])
def test_a_controller_killed_in_the_middle_of_a_move_loses_nothing(stage, residency):
    s = stage(**SMALL, copy_rate="5MiB")  # so that a move lasts five seconds
    kernel = s.kernel()
    s.ok(kernel, f"gpu.allocate('a', 2)\n{MORE.format(mib=23)}")
    cell = None
    if residency == "parking":
        status, _ = s.machine.ask("POST", f"/kernels/{kernel.id}/park", {"wait": False})
        assert status == 202
    else:
        s.park(kernel)
        cell = kernel.submit("gpu.check('a')")
    s.wait(kernel, residency)
    kill_controller(s)
    if cell is None:
        s.wait(kernel, "parked")
        cell = kernel.submit("gpu.check('a')")
    assert kernel.wait(cell).text == "True"
    s.wait(kernel, "resident")  # once the shim has found the new controller


def test_without_any_controller_a_parked_kernel_comes_back_by_itself(stage):
    """The controller is stopped for good, so that none can be started in its place."""
    s = stage(**SMALL, copy_rate="5MiB")
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 2)")
    s.park(kernel)
    pid = s.machine.controller_pid()
    os.kill(pid, signal.SIGSTOP)  # it holds its lock and does not answer
    try:
        assert s.ok(kernel, "gpu.check('a')") == "True"
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def doomed(crashing) -> Iterator[JupyterServer]:
    """A second server of the same person on the same machine, to be killed."""
    made = JupyterServer(crashing.machine)
    yield made
    crashing.machine.environment.pop("AFFINODE_SIM_COPY_RATE", None)
    for kernel in made.kernels:
        kernel.close()


@pytest.mark.parametrize(
    "residency",
    [pytest.param(name, marks=long) for name in ("queued", "resident", "parking", "parked", "resuming")],
)
def test_a_killed_server_takes_only_its_own_kernels_along(crashing, doomed, residency):
    """As without us: ipykernel ends with its parent, at every residency, and what it held is free for others."""
    s = crashing
    theirs = s.kernel()
    is_moving = residency in ("parking", "resuming")
    if is_moving:
        s.machine.environment["AFFINODE_SIM_COPY_RATE"] = "6MiB"  # a move lasts five seconds
    kernel = Stage(s.machine, doomed.start(), s.board).kernel()
    s.ok(kernel, f"gpu.allocate('a', 2)\n{MORE.format(mib=28)}")
    if residency in ("parked", "queued", "resuming"):
        s.park(kernel)
    if residency == "queued":
        s.hold(theirs)
        s.ok(theirs, "gpu.allocate('b', 30)")
    if residency == "parking":
        s.machine.ask("POST", f"/kernels/{kernel.id}/park", {"wait": False})
    if residency in ("queued", "resuming"):
        kernel.submit("gpu.check('a')")
    s.wait(kernel, residency)
    doomed.kill()
    s.until(lambda: not s.seen(kernel).get("processes"))
    if residency == "queued":
        s.ok(theirs, "gpu.free('b')")
    size = 35 if is_moving else 45  # more than was left beside the other's 30
    assert s.ok(theirs, f"gpu.allocate('a', {size}); gpu.check('a')") == "True"


@pytest.mark.long
def test_two_controllers_never_serve_one_gpu_set(crashing):
    s = crashing
    s.kernel()
    second = s.machine.folder / "second"
    second.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_affinode.node"],
        env=dict(s.machine.environment, AFFINODE_SOCKET=str(second / "node.sock")),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "two controllers must not share a GPU" in done.stdout + done.stderr, done

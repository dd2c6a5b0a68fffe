"""A kill at each step of taking a warm kernel: one notebook has it or none, no other gets it, and nothing is left.

A real server takes it, and stops where a file says.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
from live_server import JupyterKernel, JupyterServer, exists
from waiting import wait_until
from warm_stage import WarmStage

KEEP = "--AffinodeExtension.keep_kernels=all"
STEPS = ("offered", "sent", "answered", "told")
VICTIMS = ("server", "keeper", "controller", "kernel")
CONFIG = """
import time
from pathlib import Path
from jupyter_affinode.provisioning import taking

def stop_at(step, folder=Path(FOLDER)):
    told = folder / "stop"
    if told.exists() and told.read_text() == step:
        told.unlink()
        (folder / "stopped").touch()
        while not (folder / "go").exists():
            time.sleep(0.002)

class Session(taking.Session):
    def send(self, *arguments, **options):
        sent = super().send(*arguments, **options)
        stop_at("sent")
        return sent

def stopping(offer, launch, hand_over=taking.hand_over):
    stop_at("offered")
    hand_over(offer, launch)
    stop_at("answered")

async def has_warm(self, *arguments, has_warm=taking.Keeper.has_warm, **options):
    await has_warm(self, *arguments, **options)
    stop_at("told")

taking.Session, taking.hand_over, taking.Keeper.has_warm = Session, stopping, has_warm
"""


@pytest.fixture
def stage(native, keeping_machine):
    """A machine with a controller, one warm kernel, and a server that stops where a file says."""
    keeping_machine.simulate(memory="256MiB")
    config = Path(keeping_machine.environment["JUPYTER_CONFIG_DIR"], "jupyter_server_config.py")
    config.write_text(CONFIG.replace("FOLDER", repr(str(keeping_machine.folder))))
    made = WarmStage(keeping_machine)
    made.write("warm", "prepared = 42")
    return made


def kill(stage: WarmStage, server: JupyterServer, victim: str, pid: int) -> None:
    """Kill it at once."""
    if victim == "server":
        server.kill()
    elif victim == "keeper":
        stage.kill_keeper()
    elif victim == "controller":
        os.kill(wait_until(stage.machine.controller_pid), signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)


def living(stage: WarmStage) -> set[int]:
    """The processes that were started as warm kernels, and live."""
    mark, found = f"AFFINODE_WARM={stage.folder}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes() and exists(int(path.parent.name)):
                found.add(int(path.parent.name))
    return found


@pytest.mark.long
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("step", STEPS)
def test_one_notebook_has_the_kernel_or_none_and_nothing_is_left(stage, server, step, victim):
    server.start(KEEP)
    warm_id = stage.until("warm", "ready")["kernels"][0]["id"]
    (pid,) = stage.pids()
    (stage.machine.folder / "stop").write_text(step)
    answers: list[tuple[int, dict]] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            answers.append(server.request("POST", "/api/kernels", {"name": "warm"}))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    wait_until((stage.machine.folder / "stopped").exists, 60, server.log)
    kill(stage, server, victim, pid)
    (stage.machine.folder / "go").touch()
    asking.join(timeout=120)

    def settled() -> bool:
        """Whether the kernel is a warm one no more for any part, and another is ready."""
        pool = stage.pool("warm")
        is_replaced = pool is not None and [each["id"] != warm_id for each in pool["kernels"]] == [True]
        is_gone = not (stage.folder / "warm" / warm_id).exists() and stage.machine.kernel(warm_id) is None
        return is_replaced and is_gone and living(stage) - {*stage.pids()} <= owned

    owned = {pid}

    words = lambda: f"{living(stage)} {stage.pids()} {stage.pool('warm')} {stage.log()} {server.log()}"  # noqa: E731
    if victim == "server":
        wait_until(lambda: not exists(pid), 60, words)
        server.start(KEEP, port=server.port)
        wait_until(settled, 120, words)
        assert server.request("GET", "/api/kernels")[1] == []
        return
    assert answers and answers[0][0] == 201, words()
    kernel = JupyterKernel(server, answers[0][1]["id"])
    server.kernels.append(kernel)
    assert kernel.run("mine = 7; prepared").text == "42"
    own = kernel.pid
    owned.add(own)  # where it was restarted, that may be the next warm kernel
    assert (own == pid) is (victim != "kernel"), words()
    wait_until(settled, 120, words)
    server.process.send_signal(signal.SIGTERM)  # the kernel is kept
    server.process.wait(timeout=60)
    server.start(KEEP, port=server.port)
    assert kernel.run("mine").text == "7" and kernel.pid == own
    kernel.shutdown()
    wait_until(lambda: not exists(own), 60, words)

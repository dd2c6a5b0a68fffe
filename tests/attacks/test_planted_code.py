"""Code in another user's folder is not run by a program of ours that is started there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from live_machine import UnixConnection, ask
from people import command_of
from scene import HONEST, PATIENCE_S

from jupyter_affinode import environment

SCRIPT = str(Path(sys.executable).with_name("jupyter-affinode"))


@pytest.mark.long
def test_nothing_that_is_started_in_another_users_folder_runs_its_code(scene, wait_until):
    """Neither as the honest user nor as root, whose controller starts itself again for the simulated GPU."""
    machine = scene.machine
    with scene.attack("planting") as said:
        folder, trace = said["folder"], Path(said["trace"])

        def run(*command, **variables):
            """The honest user runs a program there."""
            return subprocess.run(
                command_of(HONEST, *command, starts_others=True), cwd=folder,
                env=scene.environment_of(HONEST) | variables,
                capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip

        run(sys.executable, "-m", "timeit", "pass")
        assert trace.read_text().startswith(f"{HONEST} "), "the trap is not one"
        trace.write_text("")

        done = run(SCRIPT, "run", "--", "true", AFFINODE_KERNEL_ID="thesis")
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: trace.read_text() or "thesis" in scene.honest.kernels())
        done = run(SCRIPT, "status")
        assert (done.returncode, done.stderr) == (0, "")
        data = Path(scene.environment_of(HONEST)["HOME"], "data")
        done = run(SCRIPT, "kernelspec", "wrap", "python3", JUPYTER_DATA_DIR=str(data))
        assert done.returncode == 0, done.stderr
        argv = json.loads((data / "kernels" / "python3-affinode" / "kernel.json").read_text())["argv"]
        done = run(*argv[: argv.index("--") + 1], "true", AFFINODE_KERNEL_ID="wrapped")
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: trace.read_text() or "wrapped" in scene.honest.kernels())

        second = machine.folder / "second" / "node.sock"
        second.parent.mkdir()
        root = machine.start(
            SCRIPT, "node", "--system", cwd=folder, env=machine.environment | {"AFFINODE_SOCKET": str(second)},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(lambda: trace.read_text() or gpus(second))
        assert trace.read_text() == ""
        assert [gpu["name"] for gpu in gpus(second)] == [gpu["name"] for gpu in machine.node()["gpus"]]
        root.terminate()
        assert root.wait(timeout=PATIENCE_S) == 0
        scene.bystander.wait_for(10)
        assert trace.read_text() == ""
    assert not (environment.TEMPORARY / f"affinode-{HONEST}").exists(), "left behind"


def gpus(socket):
    """What the controller there knows; nothing while it does not answer."""
    with contextlib.closing(UnixConnection(socket)) as connection, contextlib.suppress(OSError):
        return ask(connection, "GET", "/api/v1/node")[1]["gpus"]
    return []

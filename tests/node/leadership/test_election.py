"""One controller serves a socket, and one a GPU, whatever happens to it; with real processes."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_shim import MIB

from jupyter_affinode.node.app import NodeController
from jupyter_affinode.node.leadership import election as election_module
from jupyter_affinode.node.leadership.election import AlreadyServed, Election, GpuServed

CONTROLLER = (sys.executable, "-m", "jupyter_affinode.node", "--settle=0.1")


def test_of_two_started_at_once_one_serves_and_the_other_names_it(machine, wait_until):
    pair = [
        machine.start(*CONTROLLER, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    wait_until(lambda: machine.node() is not None)
    serving = machine.controller_pid()
    assert serving in {process.pid for process in pair}
    (other,) = [process for process in pair if process.pid != serving]
    assert other.wait(timeout=60) == 0
    assert f"process {serving}" in other.stderr.read()
    assert machine.controller_pid() == serving
    for process in pair:
        process.kill()
        process.stderr.close()


def test_after_sigkill_the_next_one_takes_over_the_old_sockets(machine):
    first = machine.start_controller()
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=60)
    assert machine.socket.exists()
    second = machine.start_controller()
    assert machine.controller_pid() == second.pid


def test_sigterm_ends_it_cleanly(machine):
    process = machine.start_controller()
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert not machine.socket.exists()
    assert not machine.socket.with_name("link.sock").exists()
    assert "SIGTERM" in machine.controller_log()


def test_it_ends_when_it_is_no_longer_needed(machine):
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = machine.start(
        *CONTROLLER, "--keep-alive=0.5", **quiet
    )  # on a busy machine it ends before it can be asked
    assert process.wait(timeout=60) == 0
    assert "no kernel has needed this controller" in machine.controller_log()


def test_it_ends_when_its_files_are_removed_and_another_can_serve(machine):
    process = machine.start_controller()
    for file in machine.socket.parent.iterdir():
        if not file.name.endswith(".log"):
            file.unlink(missing_ok=True)  # a database comes and goes with its journal
    assert process.wait(timeout=60) == 4
    assert machine.start_controller().pid == machine.controller_pid()


def test_where_no_file_can_be_written_it_serves_all_the_same(machine, shim, wait_until):
    """The limit on a file's size stands in for a full disk."""
    limited = ("sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *CONTROLLER)
    machine.start(*limited, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: machine.node() is not None)
    shim("k", resident=300 * MIB)
    assert machine.ask("POST", "/kernels/k/hold", {})[0] == 200
    assert machine.ask("POST", "/kernels/k/park", {})[0] == 200
    assert machine.kernel("k")["residency"] == "parked"


def test_bad_settings_are_refused_at_the_start(machine):
    process = machine.start(*CONTROLLER, "--low-watermark=1.5", stderr=subprocess.PIPE, text=True)
    assert process.wait(timeout=60) == 1
    assert "low_watermark must be a number from 0 to 1" in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize(
    "words",
    [
        "c.NodeController.require_grants = True and",
        "c.NodeController.require_grant = True",
        None,
    ],
)
def test_a_system_controller_refuses_to_start_on_an_invalid_configuration(tmp_path, capsys, words):
    """It would let every user in as any user they name."""
    config = tmp_path / "settings.py"
    if words is not None:
        config.write_text(words)
    with pytest.raises(SystemExit) as ended:
        NodeController().initialize(["--system", f"--config={config}"])
    assert ended.value.code == 1
    assert "its settings cannot be read" in capsys.readouterr().err


def test_a_socket_that_cannot_be_is_refused_in_words(tmp_path, capsys):
    controller = NodeController()
    controller.initialize([f"--socket={tmp_path / ('a' * 100) / 'node.sock'}"])
    with pytest.raises(SystemExit) as ended:
        controller.start()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "is too long" in told and "Traceback" not in told


def test_two_controllers_of_different_sockets_never_serve_one_gpu(tmp_path):
    first = Election(tmp_path / "a.sock", tmp_path / "gpus")
    (tmp_path / "other").mkdir()
    second = Election(tmp_path / "other" / "b.sock", tmp_path / "gpus")
    first.win()
    second.win()
    first.serve_gpu("GPU-1")
    first.serve_gpu("GPU-1")
    second.serve_gpu("GPU-2")
    with pytest.raises(GpuServed, match=r"GPU-1 is served by process \d+ \(.*a\.sock\)"):
        second.serve_gpu("GPU-1")
    first.close()
    second.serve_gpu("GPU-1")
    with pytest.raises(AlreadyServed):
        Election(tmp_path / "other" / "c.sock", tmp_path / "gpus").win()
    second.close()


def locks_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("serves-*.lock")}


def test_a_controller_that_ends_takes_its_gpus_locks_with_it(tmp_path):
    election = Election(tmp_path / "node.sock", tmp_path / "gpus")
    election.win()
    election.serve_gpu("GPU-1")
    assert locks_in(tmp_path / "gpus") == {"serves-GPU-1.lock"}
    election.close()
    assert locks_in(tmp_path / "gpus") == set()


def test_the_locks_of_controllers_that_were_killed_go_with_the_next_start(tmp_path):
    """Each simulated machine has GPUs of its own; nothing else would ever remove their files."""
    gpus = tmp_path / "gpus"
    program = (
        "import sys, time; from pathlib import Path; from jupyter_affinode.node.leadership.election import Election;"
        "election = Election(Path(sys.argv[1]), Path(sys.argv[2])); election.serve_gpu(sys.argv[3]);"
        "print('serves', flush=True); time.sleep(60)"
    )

    def serving(uuid: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, tmp_path / f"{uuid}.sock", gpus, uuid]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "serves\n"
        return process

    killed, living = serving("GPU-killed"), serving("GPU-living")
    killed.kill()
    killed.wait()
    assert locks_in(gpus) == {"serves-GPU-killed.lock", "serves-GPU-living.lock"}
    election = Election(tmp_path / "node.sock", gpus)
    election.serve_gpu("GPU-new")
    assert locks_in(gpus) == {"serves-GPU-living.lock", "serves-GPU-new.lock"}
    assert election.is_intact()
    election.close()
    for process in (killed, living):
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_look_at_a_gpus_lock_refuses_that_gpu_to_no_controller(tmp_path, monkeypatch):
    """The machine's controller looks whether a user's serves, by taking the lock for a moment."""
    monkeypatch.setattr(election_module, "LOOK_S", 30.0)  # the timer may come late
    (tmp_path / "gpus").mkdir(mode=0o700)
    with (tmp_path / "gpus" / "serves-GPU-1.lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.02, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        election = Election(tmp_path / "node.sock", tmp_path / "gpus")
        election.serve_gpu("GPU-1")
        election.close()

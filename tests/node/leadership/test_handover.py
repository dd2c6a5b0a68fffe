"""A user's controller gives way to the machine's, with its kernels as they are; and the unit that starts that one."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_nvml import UUID, FakeNvml
from fake_shim import PARK
from namespaces import run_story
from people import command_of, needs_root
from waiting import wait_until

from jupyter_affinode import environment
from jupyter_affinode.cli.machine.systemd_unit import unit_text
from jupyter_affinode.client.errors import ControllerUnavailable
from jupyter_affinode.client.starting import ensure_controller
from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.leadership import handover
from jupyter_affinode.node.leadership.handover import Standby, machine_answers, users_controllers
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.system.peers import user_of
from jupyter_affinode.settings.policy import GIB

STORY = Path(__file__).with_name("handover_story.py")


def test_kernels_move_over_to_the_machines_controller_as_they_are(gpu_machine):
    """With real kernels on the simulated GPU, /run as it is on a machine without a controller yet."""
    # Where a controller of ours may be serving other programs just now.
    usual = f"/tmp/affinode-{os.getuid()}"
    mounts = f"mount -t tmpfs run /run && mkdir -pm 700 {usual} && mount -t tmpfs -o mode=700 usual {usual}"
    environ = {name: value for name, value in gpu_machine.environment.items() if name != "AFFINODE_SOCKET"}
    environ["AFFINODE_FOLDER"] = str(gpu_machine.folder / "users")
    run_story(STORY, mounts, env=environ, cwd=gpu_machine.work)


def gpus(*uuids, pids=None):
    """GPUs with these processes, as NVML shows them."""
    pids = None if pids is None else frozenset(pids)
    return {uuid: NvmlGpu(uuid, 0, "A GPU", GIB, 0, GIB, None, pids) for uuid in uuids}


def test_the_lock_of_a_user_who_has_nothing_on_the_gpu_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "USERS_FOLDERS", tmp_path)
    needs_root()
    folder = tmp_path / "affinode-61001"
    folder.mkdir()
    os.chown(folder, 61001, 61001)
    lock = folder / "serves-GPU-1.lock"
    with lock.open("w") as file, as_process(61001) as theirs, as_process(61002) as others:
        fcntl.flock(file, fcntl.LOCK_EX)
        shown = f"{folder.name}, "  # it says nothing
        for pids, holders in (
            ([], []),
            ([others, os.getpid()], []),
            ([others, theirs], [shown]),
            (None, [shown]),  # NVML does not tell
            ([others, 0], [shown]),  # a process that we do not see
            ([1 << 22], [shown]),  # likewise
        ):
            assert users_controllers(gpus("GPU-1", pids=pids)) == holders, pids
        assert users_controllers(gpus("GPU-2", pids=[theirs])) == []
        waiting = Standby(logging.getLogger("standby"))
        assert waiting.check(waiting._began + 1, gpus("GPU-1", pids=[others]))


@contextlib.contextmanager
def as_process(uid):
    """A process of that user."""
    with subprocess.Popen(command_of(uid, "sleep", "60")) as process:
        wait_until(lambda: user_of(process.pid) == uid)
        try:
            yield process.pid
        finally:
            process.kill()


def test_the_holder_of_a_users_lock_is_waited_for_but_not_for_ever(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(handover, "USERS_FOLDERS", tmp_path)
    folder = tmp_path / f"affinode-{os.getuid()}"
    folder.mkdir()
    (tmp_path / "affinode-999999").mkdir()  # not that user's
    (tmp_path / "affinode-x").symlink_to(folder)
    lock = folder / "serves-GPU-1.lock"
    with lock.open("w") as file:
        file.write("process 5 (/a/b)\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert users_controllers(gpus("GPU-1", "GPU-2")) == [f"{folder.name}, process 5 (/a/b)"]
        assert users_controllers(gpus("GPU-2")) == []
        waiting = Standby(logging.getLogger("standby"))
        began = waiting._began
        assert not waiting.check(began + 1, gpus("GPU-1"))
        assert not waiting.check(began + 2, gpus("GPU-1"))
        assert waiting.check(began + handover.PATIENCE_S + 1, gpus("GPU-1"))
        assert "not given way" in caplog.text
    free = Standby(logging.getLogger("standby"))
    assert not free.check(began + 1, None)
    assert free.check(began + 2, gpus("GPU-1"))


@contextlib.contextmanager
def locked(path):
    """Hold a lock on whatever is there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def make_fifo(path):
    """One that says what a controller's lock says."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    os.write(descriptor, b"process 1 (/a/node.sock)\n")
    return descriptor


@pytest.mark.parametrize("make", [os.mkdir, make_fifo], ids=["directory", "fifo"])
def test_a_users_lock_that_is_no_regular_file_ends_no_pass(
    node, shim, tmp_path, monkeypatch, wait_until, make
):
    monkeypatch.setattr(handover, "USERS_FOLDERS", tmp_path)
    folder = tmp_path / f"affinode-{os.getuid()}"
    folder.mkdir()
    lock = folder / f"serves-{UUID}.lock"
    writer = make(lock)
    with locked(lock):
        assert users_controllers(gpus(UUID)) == []
        node(
            nvml=FakeNvml(15 * GIB, 16 * GIB), access=EveryUserAccess(), park_when="idle", idle_timeout_s=0.1
        )
        idle = shim("k", resident=300 << 20)
        wait_until(lambda: idle.heard.of(PARK), message="a pass decides")
    if writer is not None:
        os.close(writer)


def test_a_users_folder_that_never_answers_is_waited_for_but_stops_nothing(monkeypatch):
    goes_on = threading.Event()

    def never_answers(_):
        goes_on.wait(60)
        return []

    monkeypatch.setattr(handover, "users_controllers", never_answers)
    waiting = Standby(logging.getLogger("standby"))
    began = waiting._began
    for second in (1, 2, 3):
        assert not waiting.check(began + second, gpus("GPU-1"))
    assert waiting.check(began + handover.PATIENCE_S + 1, gpus("GPU-1"))
    goes_on.set()


def test_where_users_locks_cannot_be_seen_no_controller_is_waited_for(tmp_path, monkeypatch):
    """As where the unit was given a /tmp that is not there; else nothing would ever be decided."""
    monkeypatch.setattr(handover, "USERS_FOLDERS", tmp_path / "nowhere")
    assert users_controllers(gpus("GPU-1")) == []
    assert Standby(logging.getLogger("test")).check(1.0, gpus("GPU-1"))


def test_only_an_administrator_starts_the_machines_controller(tmp_path, monkeypatch):

    path = tmp_path / "node.sock"
    monkeypatch.setattr(environment, "NODE_SOCKET", path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert not machine_answers()
    with pytest.raises(ControllerUnavailable, match="this machine's controller does not answer"):
        ensure_controller(path, timeout_s=20)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen(0)
        assert machine_answers()
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(3)]
        for client in clients:
            client.connect_ex(str(path))
        assert machine_answers(), "a full line is an answer, too"
        for client in clients:
            client.close()


def test_a_service_manager_hears_that_the_controller_is_ready_and_that_its_loop_turns(machine):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = machine.folder / "notify"
        manager.bind(str(path))
        manager.settimeout(60)
        machine.environment |= {
            "NOTIFY_SOCKET": str(path),
            "WATCHDOG_USEC": "1000000",
        }  # few enough for the line
        controller = machine.start_controller()
        assert [manager.recv(64) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        controller.terminate()
        while (heard := manager.recv(64)) == b"WATCHDOG=1":
            pass
        assert heard == b"STOPPING=1"


def test_the_unit_is_one_that_systemd_takes_and_little_is_left_to_it(tmp_path):
    unit = tmp_path / "affinode.service"
    unit.write_text(unit_text(sys.executable))
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0 and str(unit) not in checked.stderr, checked.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=35", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Unknown" in rated.stderr or "unrecognized" in rated.stderr:
        pytest.skip("this systemd cannot rate a unit that is not installed")
    assert rated.returncode == 0, rated.stdout
    assert 'ExecStart="/a b/python" -m' in unit_text("/a b/python")

"""Starting a controller when one is needed, and where its files are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from namespaces import NAMESPACES, needs_namespaces, run_story

from jupyter_affinode import environment
from jupyter_affinode.client import starting as client
from jupyter_affinode.environment import FolderRefused, SimulationRefused
from jupyter_affinode.node.system.peer_socket import ListeningSocket

STORY = Path(__file__).with_name("folders_story.py")


@pytest.fixture
def own(machine, monkeypatch):
    """This process in the machine's environment."""
    for name in list(os.environ):
        if name.startswith("AFFINODE_"):
            monkeypatch.delenv(name)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    return machine


def test_a_controller_is_started_once_and_answers(own):
    with ThreadPoolExecutor(4) as threads:
        paths = list(threads.map(lambda _: client.ensure_controller(timeout_s=60), range(4)))
    assert paths == [own.socket] * 4
    assert own.node() is not None


def test_it_survives_the_process_that_started_it_and_keeps_nothing_of_a_kernel(own):
    program = (
        "import jupyter_affinode.client.starting as client, os;"
        "client.ensure_controller(extra_args=['--park-when=idle'], timeout_s=60);"
        "os.kill(os.getpid(), 9)"
    )
    env = {**own.environment, "AFFINODE_KERNEL_ID": "a-kernel", "AFFINODE_DISABLE": "1"}
    starter = subprocess.run([sys.executable, "-c", program], env=env, cwd=own.work, check=False)
    assert starter.returncode == -9
    pid = own.controller_pid()
    assert own.node()["settings"]["park_when"] == "idle"
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"AFFINODE_KERNEL_ID" not in environ
    assert b"AFFINODE_DISABLE" not in environ
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_one_that_cannot_start_says_why(own):
    with pytest.raises(client.ControllerUnavailable, match="low_watermark"):
        client.ensure_controller(extra_args=["--low-watermark=1.5"], timeout_s=60)


def test_a_path_too_long_for_a_socket_says_so(own, monkeypatch):
    folder = own.folder / ("d" * 100)
    monkeypatch.setenv("AFFINODE_SOCKET", str(folder / "node.sock"))
    with pytest.raises(client.ControllerUnavailable):
        client.ensure_controller(timeout_s=60)


@pytest.fixture
def places(monkeypatch, machine):
    """A folder that stands for /tmp, with no controller of the machine's and a home folder beside it."""
    folder = machine.folder / "places"  # a short path, for sockets
    folder.mkdir()
    for name in (environment.SOCKET, environment.FOLDER, "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "NODE_SOCKET", folder / "run" / "node.sock")
    monkeypatch.setattr(environment, "TEMPORARY", folder / "t")
    monkeypatch.setenv("HOME", str(folder / "home"))
    for name in ("run", "t", "home"):
        (folder / name).mkdir()
    return folder


def listening(path):
    """A socket that is listened at; the caller closes it."""
    made = socket.socket(socket.AF_UNIX)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name("new")
    made.bind(str(new))
    made.listen(1)
    new.replace(path)
    return made


def own_folder(places):
    return places / "t" / f"affinode-{os.getuid()}"


def test_the_socket_is_in_a_folder_that_outlives_a_log_out_whatever_the_environment_says(places):
    session = {"XDG_RUNTIME_DIR": str(places / "run"), "TMPDIR": str(places / "home")}
    assert environment.socket_path(session) == own_folder(places) / "node.sock"
    assert environment.socket_path({}) == own_folder(places) / "node.sock"
    named = {"AFFINODE_FOLDER": str(places / "named")}
    assert environment.socket_path(named) == places / "named" / "node.sock"
    assert environment.socket_path({"AFFINODE_SOCKET": "/a/b.sock", **named}) == Path("/a/b.sock")


def test_the_machines_controller_comes_before_ones_own_while_it_listens(places):
    with listening(environment.NODE_SOCKET):
        assert environment.socket_path() == environment.NODE_SOCKET
    assert environment.NODE_SOCKET.exists(), "left behind"
    assert environment.socket_path() == own_folder(places) / "node.sock"


def test_a_socket_at_which_another_user_listens_is_not_the_machines_controller(places):
    if os.getuid() != 0:
        pytest.skip("only root gives files away")
    with listening(environment.NODE_SOCKET):
        os.chown(environment.NODE_SOCKET, 12345, 12345)
        assert environment.socket_path() == own_folder(places) / "node.sock"


def test_the_machines_controller_is_waited_for_while_it_starts_again(places):
    listening(environment.NODE_SOCKET).close()
    with ThreadPoolExecutor(1) as threads:
        path = threads.submit(client.ensure_controller, timeout_s=60)
        with listening(environment.NODE_SOCKET):
            assert path.result(timeout=60) == environment.NODE_SOCKET
    assert not own_folder(places).exists()


@pytest.mark.parametrize("controllers_own", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_an_old_socket_is_there_until_the_new_one_listens(places, controllers_own):
    """Else a client that waits for the machine's controller would take it for removed, and start another."""
    listening(environment.NODE_SOCKET).close()
    old, seen = environment.NODE_SOCKET.stat().st_ino, []

    def inode():
        return environment.NODE_SOCKET.stat().st_ino

    class Watched(ListeningSocket):
        def listen(self, backlog):
            seen.append(inode())
            super().listen(backlog)

    with Watched(controllers_own, None, takes_descriptors=False) as made:
        made.listen_at(environment.NODE_SOCKET, 0o600, 1)
        assert seen == [old] and inode() != old
        assert environment.NODE_SOCKET.stat().st_mode & 0o777 == 0o600
        assert [path.name for path in environment.NODE_SOCKET.parent.iterdir()] == ["node.sock"]


@pytest.mark.parametrize("taken", [0o755, 0o777, "file", "link"])
def test_where_the_usual_folder_is_not_ours_alone_another_is_used(places, taken):
    folder = own_folder(places)
    if taken == "file":
        folder.touch()
    elif taken == "link":
        folder.symlink_to(places)
    else:
        folder.mkdir()
        folder.chmod(taken)
    other = environment.user_folder()
    assert other.parent == places / "home" / ".local" / "state" / "affinode"
    environment.make_folder(other)
    assert other.stat().st_mode & 0o077 == 0
    assert environment.gpu_lock_folder(Path("/a/b.sock")) == other


@pytest.mark.long
def test_another_user_and_what_an_earlier_controller_left_keep_no_kernel_unmanaged(gpu_machine):
    """With a real kernel on the simulated GPU, in namespaces with /run and /tmp of their own; see the story."""
    mounts = "mount -t tmpfs run /run && mount -t tmpfs -o mode=1777 tmp /tmp"
    chown = "mkdir /tmp/other && chown 12345 /tmp/other"
    needs_namespaces(*NAMESPACES, "sh", "-c", f"{mounts} && {chown}")
    if STORY.is_relative_to("/tmp") or sys.prefix.startswith("/tmp"):
        pytest.skip("this checkout would not be seen in a namespace with a /tmp of its own")
    environ = {name: value for name, value in gpu_machine.environment.items() if name != "AFFINODE_SOCKET"}
    run_story(STORY, mounts, env=environ, cwd="/")


def test_a_controller_in_the_other_folder_is_found_when_the_usual_one_is_free_again(places):
    own_folder(places).touch()
    other = environment.user_folder()
    with listening(other / "node.sock"):
        own_folder(places).unlink()
        assert environment.user_folder() == other
    assert environment.user_folder() == own_folder(places)


def test_a_folder_whose_sockets_would_have_too_long_a_path_is_passed_over(places, monkeypatch):
    own_folder(places).touch()
    monkeypatch.setenv("HOME", str(places / ("h" * 90)))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(places / "run"))
    assert environment.user_folder() == places / "run" / "affinode"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with pytest.raises(FolderRefused, match="AFFINODE_SOCKET"):
        environment.user_folder()
    assert environment.gpu_lock_folder(places / "chosen" / "node.sock") == places / "chosen"


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(FolderRefused):
        environment.make_folder(tmp_path / "link")


def test_folders_above_are_made_for_us_alone_too(tmp_path):
    """The ledger lies in one of them, and is not written where others may write."""
    before = os.umask(0o002)
    try:
        environment.make_folder(tmp_path / "state" / "affinode" / "run")
    finally:
        os.umask(before)
    assert [folder.stat().st_mode & 0o777 for folder in (tmp_path / "state").rglob("**")] == [0o700] * 3


def test_the_simulated_gpu_is_refused_beside_a_real_driver(monkeypatch, tmp_path):
    (tmp_path / "libcuda.so.1").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(environment, "DRIVER_DEVICES", (tmp_path / "nvidiactl",))
    with pytest.raises(SimulationRefused, match="real GPU driver"):
        environment.simulation_folder()
    monkeypatch.setattr(environment, "DRIVER_DEVICES", (tmp_path / "no-device",))
    assert environment.real_driver() is None


def test_the_simulated_gpu_has_the_drivers_names(native, own):
    folder = environment.simulation_folder()
    assert sorted(path.name for path in folder.iterdir()) == [
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
    ]
    assert all(path.resolve().is_file() for path in folder.iterdir())
    assert folder.stat().st_mode & 0o077 == 0


def test_the_shim_is_not_preloaded_into_the_controller():
    environ = environment.controller_environment(
        {"LD_PRELOAD": "/x/libaffinode.so:/y/libother.so", "AFFINODE_SERVER": "1", "PATH": "/bin"}
    )
    assert environ == {"LD_PRELOAD": "/y/libother.so", "PATH": "/bin", environment.STAYS: "1"}


def test_the_machines_controller_refuses_context_depth(machine):
    """A shim could take no lock on a GPU there that other users heed."""
    command = [sys.executable, "-m", "jupyter_affinode.node", "--system", "--depth=context"]
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "depth must be memory with --system" in done.stderr
    assert not machine.socket.exists()


ONE_OF_MANY = """
import os, sys, threading
from pathlib import Path
from jupyter_affinode.client.starting import ensure_controller
threads = [threading.Thread(target=ensure_controller, kwargs={"timeout_s": 60}) for _ in range(4)]
sys.stdin.readline()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
def parent(stat):
    try:
        return int(stat.read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None
print([parent(stat) for stat in Path("/proc").glob("[0-9]*/stat")].count(os.getpid()))
"""


def test_many_at_once_start_one_controller_and_leave_no_zombie(machine):
    """As a server's watch and its first kernels do: in threads of one process, and in several processes."""
    processes = [
        machine.start(
            sys.executable, "-c", ONE_OF_MANY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    children = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sorted(children) == [0, 1]

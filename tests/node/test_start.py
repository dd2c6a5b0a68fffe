"""Starting a controller when one is needed, and where its files are."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_affinode import client, environment
from jupyter_affinode.environment import FolderRefused, SimulationRefused


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
        paths = list(threads.map(lambda _: client.ensure_controller(timeout_s=20), range(4)))
    assert paths == [own.socket] * 4
    assert own.node() is not None


def test_it_survives_who_started_it_and_takes_nothing_of_a_kernel_with_it(own, monkeypatch):
    program = (
        "import jupyter_affinode.client as client, os;"
        "client.ensure_controller(extra_args=['--park-when=idle'], timeout_s=20);"
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
        client.ensure_controller(extra_args=["--low-watermark=0.9"], timeout_s=20)


def test_a_path_too_long_for_a_socket_says_so(own, monkeypatch):
    folder = own.folder / ("d" * 100)
    monkeypatch.setenv("AFFINODE_SOCKET", str(folder / "node.sock"))
    with pytest.raises(client.ControllerUnavailable):
        client.ensure_controller(timeout_s=20)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"AFFINODE_SOCKET": "/a/b.sock", "XDG_RUNTIME_DIR": "/run/user/1"}, "/a/b.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/1", "TMPDIR": "/t"}, "/run/user/1/affinode/node.sock"),
        ({"XDG_RUNTIME_DIR": "relative", "TMPDIR": "/t"}, f"/t/affinode-{os.getuid()}/node.sock"),
        ({}, f"/tmp/affinode-{os.getuid()}/node.sock"),
    ],
)
def test_the_socket_is_where_the_shim_looks_for_it(environ, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "NODE_SOCKET", tmp_path / "none")
    assert environment.socket_path(environ) == Path(expected)


def test_an_administrators_controller_comes_before_ones_own(monkeypatch, tmp_path):
    (tmp_path / "node.sock").touch()
    monkeypatch.setattr(environment, "NODE_SOCKET", tmp_path / "node.sock")
    assert environment.socket_path({"XDG_RUNTIME_DIR": "/run/user/1"}) == tmp_path / "node.sock"


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o770])
def test_a_temporary_folder_that_others_can_enter_is_refused(monkeypatch, tmp_path, mode):
    monkeypatch.setattr(environment, "NODE_SOCKET", tmp_path / "none")
    folder = tmp_path / f"affinode-{os.getuid()}"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(FolderRefused, match="must be"):
        environment.socket_path({"TMPDIR": str(tmp_path)})


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(FolderRefused):
        environment.make_folder(tmp_path / "link")


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
    assert environ == {"LD_PRELOAD": "/y/libother.so", "PATH": "/bin"}


def test_the_machines_controller_refuses_context_depth(machine):
    """A shim could take no lock on a GPU there that other users heed."""
    command = [sys.executable, "-m", "jupyter_affinode.node", "--system", "--depth=context"]
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "depth must be memory with --system" in done.stderr
    assert not machine.socket.exists()

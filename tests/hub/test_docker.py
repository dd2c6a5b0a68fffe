"""Containers that DockerSpawner makes: a Hub with the documentation's configuration, and Docker's API by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_docker import FakeDocker
from live_hub import HERE, Hub, user_python
from live_machine import new_machine
from live_server import free_port
from people import make_hub_keys
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from hub_spawner.enabling import derived
from jupyter_affinode.environment import shim_path

PAGE = Path(__file__).parents[2] / "docs" / "hub" / "docker.md"
SHIM = "/opt/affinode/libaffinode.so"
RUN = {"bind": "/run/affinode", "mode": "ro"}


class User:
    """A user of the Hub's, as spawners see one."""

    name, groups, url = "ana", (), "/user/ana/"


@pytest.fixture(autouse=True)
def no_container(monkeypatch):
    """This machine may be a container itself."""
    monkeypatch.setattr("hub_spawner.docker.CONTAINER_MARKS", ())


def binds(spawner, **traits):
    """Return what containers of such a spawner have mounted, and the environment that the policy adds."""
    made = derived(import_item(f"dockerspawner.{spawner}"))(user=User(), config=Config(), **traits)
    return {place: bind["bind"] for place, bind in made.volume_binds.items()}, made.gpu_environment()


@pytest.fixture
def engine():
    """A machine, Docker's API there, and a Hub's options for it."""
    with new_machine() as machine:
        machine.folder.chmod(0o755)
        made = Hub(machine, spawner={})  # for its packages
        docker = FakeDocker(
            machine.folder / "docker.sock", [user_python(), str(HERE / "quick_server.py")], made.packages
        )
        machine.environment["DOCKER_HOST"] = f"unix://{machine.folder}/docker.sock"
        yield machine, docker
        docker.close()


@pytest.mark.long
def test_a_container_gets_gpu_socket_shim_and_grant(native, engine, wait_until):
    machine, docker = engine
    key, _ = make_hub_keys(machine.folder)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    snippet = snippet.replace("/etc/affinode/hub-1.key", str(key))
    here = f"""
c.DockerSpawner.use_internal_ip = False
c.DockerSpawner.port = {free_port()}
c.DockerSpawner.cmd = ["jupyterhub-singleuser"]
c.DockerSpawner.gpu_library = {str(shim_path({}))!r}  # its default, but where the tests run in a container
"""
    hub = Hub(machine, spawner={}, later=snippet + here).start()
    hub.add("ana")
    hub.spawn("ana")
    wait_until(lambda: hub.server("ana").get("ready"), timeout=120)
    (asked,) = docker.created.values()
    assert asked["HostConfig"]["DeviceRequests"] == [
        {"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}
    ]
    assert set(asked["HostConfig"]["Binds"]) == {
        "/run/affinode:/run/affinode:ro",
        f"{shim_path({})}:{SHIM}:ro",
    }
    environment = hub.ask("GET", "/user/ana/api", api=False)[1]
    assert environment["AFFINODE_LIBRARY"] == SHIM
    assert environment["AFFINODE_GRANT"].count(".") == 2
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "gives it no GPU" not in hub.log() and "without the GPU policy's environment" not in hub.log()
    hub.ask("DELETE", "/users/ana/server")
    wait_until(lambda: docker.created == {}, timeout=60)
    hub.stop()


@pytest.mark.parametrize("spawner", ["DockerSpawner", "SystemUserSpawner"])
def test_binds_go_with_gpu_memory_and_before_none_of_the_sites(native, spawner):
    home = {"host_homedir_format_string": "/home/{username}"} if spawner == "SystemUserSpawner" else {}
    own = {"/home/ana": "/home/ana"} if home else {}
    shim = str(shim_path({}))
    assert binds(spawner, **home)[0] == own
    found, env = binds(spawner, gpu_memory="1GiB", **home)
    assert found == {**own, "/run/affinode": "/run/affinode", shim: SHIM}
    assert env["AFFINODE_LIBRARY"] == SHIM
    found, env = binds(spawner, gpu_memory="1GiB", gpu_socket="/run/gpu/site.sock", gpu_library="", **home)
    assert found == {**own, "/run/gpu": "/run/gpu"}
    assert env["AFFINODE_SOCKET"] == "/run/gpu/site.sock" and "AFFINODE_LIBRARY" not in env
    site = {"read_only_volumes": {"/srv/run": "/run/affinode/", "/srv/shim": SHIM}}
    assert binds(spawner, gpu_memory="1GiB", **site, **home)[0] == {
        **own,
        "/srv/run": "/run/affinode/",
        "/srv/shim": SHIM,
    }


def test_machines_that_are_not_the_hubs_get_no_binds_of_its_paths(native, monkeypatch):
    assert binds("SwarmSpawner", gpu_memory="1GiB")[0] == {}
    assert "AFFINODE_LIBRARY" not in binds("SwarmSpawner", gpu_memory="1GiB")[1]
    monkeypatch.setenv("DOCKER_HOST", "tcp://gpu1:2376")
    assert binds("DockerSpawner", gpu_memory="1GiB")[0] == {}


def test_a_hub_in_a_container_binds_no_shim_of_its_own(native, monkeypatch, tmp_path):
    (tmp_path / ".dockerenv").touch()
    monkeypatch.setattr("hub_spawner.docker.CONTAINER_MARKS", (str(tmp_path / ".dockerenv"),))
    found, env = binds("DockerSpawner", gpu_memory="1GiB")
    assert found == {"/run/affinode": "/run/affinode"} and "AFFINODE_LIBRARY" not in env
    found, env = binds("DockerSpawner", gpu_memory="1GiB", gpu_library="/srv/libaffinode.so")
    assert found["/srv/libaffinode.so"] == SHIM and env["AFFINODE_LIBRARY"] == SHIM

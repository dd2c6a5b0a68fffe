"""Where room is asked for: on the Hub's machine, on another one, or nowhere, by the class that starts servers."""

from __future__ import annotations

import asyncio
import os

import pytest
from batchspawner import CondorSpawner, SlurmSpawner
from dockerspawner import DockerSpawner, SwarmSpawner, SystemUserSpawner
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner, Spawner
from live_machine import new_machine
from live_server import free_port
from people import make_hub_keys
from traitlets.config import Config

from hub_spawner.enabling import derived


class User:
    """A user of the Hub's, as spawners see one."""

    name, groups, url = "ana", (), "/user/ana/"


class SudoSpawner(LocalProcessSpawner):
    """As sudospawner's."""


class SystemdSpawner(Spawner):
    """As systemdspawner's."""

    def start(self): ...
    def stop(self, now=False): ...
    def poll(self): ...


class UserCreatingSpawner(SystemdSpawner):
    """As The Littlest JupyterHub's."""


class YarnSpawner(Spawner):
    """One of a class that is not known."""

    def start(self): ...
    def stop(self, now=False): ...
    def poll(self): ...


HERE = [
    LocalProcessSpawner,
    SimpleLocalProcessSpawner,
    SudoSpawner,
    SystemdSpawner,
    UserCreatingSpawner,
    DockerSpawner,
    SystemUserSpawner,
]
ELSEWHERE = [SlurmSpawner, CondorSpawner, SwarmSpawner, YarnSpawner]
REMOTE_DOCKER = ["tcp://gpu1.example.org:2376", "ssh://root@gpu1", "gpu1:2375", "https://10.0.0.7:2376"]
LOCAL_DOCKER = ["unix:///var/run/docker.sock", "tcp://127.0.0.1:2375", "tcp://localhost:2375", ""]


@pytest.fixture(scope="module")
def far():
    """Another machine, whose controller has a port, and this one, which has none: (address, the Hub's key)."""
    with new_machine() as machine:
        machine.simulate(memory="1GiB")
        key, keys = make_hub_keys(machine.folder)
        port = free_port()
        machine.start_controller("--system", f"--grant-keys={keys}", f"--api-port={port}")
        yield machine, f"http://localhost:{port}", str(key)


def made(spawner, **traits):
    """Return a spawner of the class with the policy."""
    return derived(spawner)(user=User(), config=Config(), **traits)


def places(spawner):
    """Return where a spawner asks."""
    return list(spawner.gpu_nodes()._places.values())


@pytest.mark.parametrize("spawner", HERE)
def test_classes_that_start_servers_here_ask_here(spawner):
    assert places(made(spawner)) == [""]
    assert places(made(spawner, gpu_socket="/run/site.sock")) == ["/run/site.sock"]
    assert places(made(spawner, gpu_room_at="nowhere")) == []


@pytest.mark.parametrize("spawner", ELSEWHERE)
def test_other_classes_ask_nowhere_unless_the_site_says_where(spawner):
    assert places(made(spawner, gpu_socket="/run/site.sock")) == []
    assert places(made(spawner, gpu_room_at="here")) == [""]
    for place in ("/run/other.sock", "http://gpu1:9714"):
        assert places(made(spawner, gpu_room_at=place)) == [place]


@pytest.mark.parametrize(
    ("address", "is_here"),
    [*((each, False) for each in REMOTE_DOCKER), *((each, True) for each in LOCAL_DOCKER)],
)
def test_containers_of_another_machines_docker_ask_nowhere(monkeypatch, address, is_here):
    monkeypatch.setenv("DOCKER_HOST", address)
    for spawner in (DockerSpawner, SystemUserSpawner):
        assert places(made(spawner)) == ([""] if is_here else [])
    monkeypatch.delenv("DOCKER_HOST")
    assert places(made(DockerSpawner, client_kwargs={"base_url": address})) == ([""] if is_here else [])


@pytest.mark.parametrize("place", ["gpu1:9714", "there", "https://gpu1:9714", "run/node.sock"])
def test_a_place_that_is_none_is_refused_in_words(place):
    with pytest.raises(Exception, match="gpu_room_at"):
        made(SlurmSpawner, gpu_room_at=place)


def told(spawner):
    """Ask as at a spawn, and return what the page is told."""
    asyncio.run(spawner.gpu_make_room())
    return [event["message"] for event in spawner.gpu_story]


def test_room_is_asked_for_on_another_machine(far):
    machine, address, key = far
    spawner = made(SlurmSpawner, gpu_memory="100MiB", gpu_room_at=address, grant_key=key)
    assert told(spawner)[-1] == "There is room for 100 MiB (simulated GPU)"
    assert "hub:ana asks for room for 100 MiB" in machine.controller_log()
    spawner = made(SlurmSpawner, gpu_memory="90GiB", gpu_room_at=address, grant_key=key, on_gpu_full="refuse")
    with pytest.raises(Exception, match="No GPU has room for 90 GiB"):
        told(spawner)


def test_a_server_elsewhere_is_refused_for_no_gpu_of_the_hubs_machine(far, monkeypatch):
    machine, _, _ = far
    monkeypatch.setenv("AFFINODE_SOCKET", str(machine.socket))
    settings = {"gpu_memory": "91GiB", "on_gpu_full": "refuse"}
    for spawner in ELSEWHERE:
        assert told(made(spawner, **settings)) == []
    assert "91 GiB" not in machine.controller_log()
    with pytest.raises(Exception, match="No GPU has room for 91 GiB"):
        told(made(LocalProcessSpawner, **settings))


def test_a_machine_that_does_not_answer_keeps_no_server_from_starting(far):
    _, address, key = far
    for place in ("http://nowhere.invalid:1", f"http://localhost:{free_port()}", "/run/none.sock", address):
        grant_key = "" if place == address else key  # without a key it refuses
        settings = {"gpu_memory": "92GiB", "on_gpu_full": "refuse", "grant_key": grant_key}
        assert told(made(SlurmSpawner, gpu_room_at=place, **settings)) == []


def test_a_request_that_cannot_be_signed_leaves_no_connection(far):
    _, address, _ = far
    before = len(os.listdir("/proc/self/fd"))
    settings = {"gpu_memory": "93GiB", "on_gpu_full": "refuse", "grant_key": ""}
    assert told(made(SlurmSpawner, gpu_room_at=address, **settings)) == []
    assert len(os.listdir("/proc/self/fd")) == before

"""Machines that are reached over the network: what is seen of them, and what is said where that does not work."""

from __future__ import annotations

import asyncio

import pytest
from live_machine import new_machine
from live_server import free_port
from people import make_hub_keys

from hub_spawner.nodes import Nodes
from jupyter_affinode.client.grant_signing import make_keys


@pytest.fixture(scope="module")
def node():
    """A controller with a port: (its address, the file of the Hub's key)."""
    with new_machine() as machine:
        key, keys = make_hub_keys(machine.folder)
        port = free_port()
        machine.start_controller(
            "--system", f"--grant-keys={keys}", f"--api-port={port}", "--machine-name=gpu-node-7"
        )
        yield f"http://localhost:{port}", key


def look(address, key=""):
    """Pictures of the machines at an address."""
    return asyncio.run(Nodes({"gpus": address}, str(key)).read(60.0))


def test_a_machine_is_called_as_it_calls_itself(node):
    seen = {picture.name: picture for picture in look(*node)}
    picture = seen["gpus 127.0.0.1"]
    assert (picture.title, picture.problem, picture.kernels) == ("gpu-node-7", "", [])


def test_an_administrators_client_changes_the_policy_of_the_machine_that_is_named(node, monkeypatch):
    monkeypatch.setattr("hub_spawner.nodes.ANSWER_WITHIN_S", 60.0)

    async def change(name):
        client = await Nodes({"gpus": node[0]}, str(node[1])).client(name, "root")
        return client and await client.set_policy(idle_timeout_s=77)

    assert asyncio.run(change("gpus 127.0.0.1"))["idle_timeout_s"] == 77
    for unknown in ("gpus", "gpus 127.0.0.2", "127.0.0.1", "others 127.0.0.1", ""):
        assert asyncio.run(change(unknown)) is None


def test_what_does_not_work_is_said_in_words(node, tmp_path):
    address, _ = node
    other = tmp_path / "hub-1.key"
    other.write_bytes(make_keys()[0])
    broken = tmp_path / "broken.key"
    broken.write_text("no key")
    for where, key, words in (
        (address, other, "its grant is not valid: Signature verification failed"),
        (address, "", "no key signs requests to 127.0.0.1:"),
        (address, broken, "that is no Ed25519 private key"),
        (address, tmp_path / "none.key", "No such file or directory"),
        (f"http://127.0.0.1:{free_port()}", other, "Connection refused"),
        ("http://nowhere.invalid:1", other, "http://nowhere.invalid:1 is not known: "),
        ("http://127.0.0.1:port", other, "is not known: "),
    ):
        problems = [picture.problem for picture in look(where, key)]
        assert any(words in problem for problem in problems), problems

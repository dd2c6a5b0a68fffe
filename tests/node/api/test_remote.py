"""Administrators' part of the API over TCP: by a grant for each request, and nothing that kernels or users need."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest
from live_machine import ask, new_machine
from live_server import free_port
from people import Person, make_hub_keys

from jupyter_affinode.client.grant_signing import make_keys, sign_grant
from jupyter_affinode.settings.policy import MIB

IP = "127.0.0.1"


class Remote:
    """A controller of all users with the API on a port, and the key of its Hub."""

    def __init__(self, machine):
        self.machine, self.port = machine, free_port()
        key, keys = make_hub_keys(machine.folder)
        self.key = key.read_bytes()
        machine.start_controller(
            *("--system", f"--grant-keys={keys}", "--NodeController.grant_audiences=tests"),
            *("--require-grants", f"--api-port={self.port}", "--machine-name=gpu-node-7"),
        )

    def grant(self, audience=None, **options):
        """Sign as the Hub's service does."""
        options = {"user": "root", "lifetime_s": 60, "is_administrator": True, **options}
        return sign_grant(self.key, "hub-1", audience=audience or f"affinode:{IP}:{self.port}", **options)

    def ask(self, method, path, body=None, grant=None):
        """One request over TCP: (status, JSON)."""
        headers = {} if grant is None else {"Authorization": f"Bearer {grant}"}
        with contextlib.closing(HTTPConnection(IP, self.port, timeout=60)) as connection:
            return ask(connection, method, f"/api/v1{path}", body, **headers)


@pytest.fixture(scope="module")
def remote():
    with new_machine() as machine:
        yield Remote(machine)


def test_an_administrator_elsewhere_sees_and_moves_all_users_kernels(remote, wait_until):
    ana = Person(remote.machine, None, grant=remote.grant("tests", user="ana", is_administrator=False))
    ana.shim("k", resident=16 * MIB)
    wait_until(lambda: ana.kernels().get("k", {}).get("residency") == "resident")
    status, node = remote.ask("GET", "/node", grant=remote.grant())
    assert (status, node["name"]) == (200, "gpu-node-7")
    kernels = remote.ask("GET", "/kernels", grant=remote.grant())[1]["kernels"]
    assert [(each["id"], each["user"]) for each in kernels] == [("user-ana/k", "hub:ana")]
    for action, held in (("hold", True), ("release", False)):
        status, kernel = remote.ask("POST", f"/kernels/user-ana%2Fk/{action}", {}, remote.grant())
        assert (status, kernel["held_for_s"] is not None) == (200, held)
    assert remote.ask("PATCH", "/policy", {"idle_timeout_s": 77}, remote.grant())[1]["idle_timeout_s"] == 77
    wait_until(lambda: remote.ask("GET", "/report", grant=remote.grant())[0] == 200)

    def audit():
        return remote.ask("GET", "/audit", grant=remote.grant())[1]["audit"]

    wait_until(lambda: len(audit()) == 3)
    assert {(row["actor"], row["outcome"]) for row in audit()} == {("hub:root", "ok")}
    ana.close()


def test_a_hub_elsewhere_asks_for_room_in_a_users_name(remote):
    body = {"bytes": 16 * MIB, "timeout_s": 0.1, "user": "hub:ben"}
    assert remote.ask("POST", "/room", body, remote.grant())[0] == 200
    assert "hub:ben asks for room for 16 MiB" in remote.machine.controller_log()
    assert remote.ask("POST", "/room", body, remote.grant(is_administrator=False))[0] == 401
    assert remote.ask("POST", "/room", body)[0] == 401


def test_each_request_shows_an_administrators_grant_for_this_very_address(remote):
    other, _ = make_keys()
    here = f"affinode:{IP}:{remote.port}"
    refused = {
        "this asks for a grant of an administrator": None,
        "its grant is no signed token": "nonsense",
        "its grant is no administrator's": remote.grant(is_administrator=False),
        "its grant is for another controller": remote.grant(f"affinode:127.0.0.2:{remote.port}"),
        "its grant has expired": remote.grant(lifetime_s=-60),
        "its grant is good for more than 120 s": remote.grant(lifetime_s=3600),
        "its grant is not valid: Signature verification failed": sign_grant(
            other, "hub-1", user="root", audience=here, lifetime_s=60, is_administrator=True
        ),
    }
    with ThreadPoolExecutor(len(refused)) as asking:  # a refusal takes a second
        answers = list(asking.map(lambda grant: remote.ask("GET", "/kernels", grant=grant), refused.values()))
    assert [(status, answer["message"]) for status, answer in answers] == [(401, words) for words in refused]
    assert remote.ask("GET", "/kernels", grant=remote.grant("tests"))[0] == 401, (
        "a name that users' grants have"
    )


def test_an_administrators_grant_lets_no_process_in(remote):
    for audience in ("tests", f"affinode:{IP}:{remote.port}"):
        status, answer = Person(remote.machine, None, grant=remote.grant(audience)).ask("GET", "/kernels")
        assert (status, answer["error"]) == (401, "bad-grant")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/events"),
        ("PUT", "/kernels/k"),
        ("DELETE", "/kernels/k"),
        ("POST", "/kernels/k/cell"),
        ("POST", "/kernels/k/end"),
        ("GET", "/metrics"),
    ],
)
def test_what_kernels_and_servers_say_is_for_the_unix_socket_alone(remote, method, path):
    assert remote.ask(method, path, None if method == "GET" else {}, remote.grant())[0] == 404


def test_a_removed_key_ends_it_at_once(remote, wait_until):
    key = remote.machine.folder / "keys" / "hub-1.pem"
    public = key.read_bytes()
    key.unlink()
    try:
        wait_until(lambda: remote.ask("GET", "/node", grant=remote.grant())[0] == 401)
    finally:
        key.write_bytes(public)
        wait_until(lambda: remote.ask("GET", "/node", grant=remote.grant())[0] == 200)


@pytest.mark.parametrize("arguments", [["--system"], []])
def test_without_keys_or_administrators_there_is_no_port(machine, arguments):
    command = [sys.executable, "-m", "jupyter_affinode.node", f"--api-port={free_port()}", *arguments]
    ended = subprocess.run(command, env=machine.environment, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1 and "the controller cannot start: api_port" in ended.stderr

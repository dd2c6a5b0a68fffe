"""What a user's kernels, servers and shims say in words is shown to no other user, wherever it was said."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from pathlib import Path

import pytest
from live_machine import UnixConnection
from scene import ATTACKER, scene_on

from jupyter_affinode.node import api

MARK = "forged"  # programs/talking.py
LARGEST = 1 << 20
PATHS = json.loads((Path(api.__file__).parent / "openapi.json").read_text())["paths"]
READ = sorted(path for path, methods in PATHS.items() if "get" in methods and not path.endswith("/events"))


@pytest.fixture
def talking_scene(gpu_machine, tmp_path):
    """A scene in which a controller has something to ask of every kernel."""
    options = ("--park-when=idle", "--idle-timeout=0.1", "--low-watermark=0", f"--share-dir={tmp_path}")
    with scene_on(gpu_machine, *options, f"--NodeController.ledger={tmp_path / 'ledger.sqlite'}") as made:
        yield made


def asked(person, path):
    """Have a user ask; the connection and its answer."""
    connection = UnixConnection(person.machine.socket, timeout=60)
    with person.being():
        connection.connect()
    connection.request("GET", path.replace("{kernel_id}", "mine"))
    answer = connection.getresponse()
    assert answer.status == (403 if path.endswith("/audit") else 200), path
    return connection, answer


class Followed:
    """What a user's stream of events says, by a thread."""

    def __init__(self, person):
        self.lines = []
        self._connection, self._answer = asked(person, "/api/v1/events")
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            while line := self._answer.readline():
                self.lines.append(line.decode())

    def close(self):
        """End it."""
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._answer.close()
        self._connection.close()


@pytest.mark.long
def test_no_answer_and_no_event_has_another_users_words(talking_scene, wait_until):
    scene, log = talking_scene, talking_scene.machine.controller_log
    with contextlib.closing(Followed(scene.honest)) as events:
        with scene.attack("talking") as said:
            assert set(said["statuses"]) <= {200, 202, 204, 409}, said
            wait_until(lambda: f"shares no host memory: {MARK}" in log(), 60, log)
            assert f"{MARK}-on stays on the GPU: {MARK}" in log()
            assert f"does not hibernate: {MARK}" in log()
            assert MARK in scene.machine.affinode("status").stdout, "an administrator sees the kernels"
            for path in READ:
                connection, answer = asked(scene.honest, path)
                told = answer.read(LARGEST + 1).decode()
                connection.close()
                assert len(told) <= LARGEST, path
                assert MARK not in told, f"{path}: {told}"
            before = len(events.lines)
            wait_until(lambda: len(events.lines) > before)
        seen = "".join(events.lines)
        assert MARK not in seen
        assert f"uid-{ATTACKER}" not in seen

"""Connections to the controller's TCP ports, and slow ones to its socket, keep no other client from an answer."""

from __future__ import annotations

import contextlib
import http.client
import time

import pytest
from live_machine import ask
from live_server import free_port
from people import make_hub_keys
from scene import PATIENCE_S, Scene, scene_on

from jupyter_affinode.client.grant_signing import sign_grant

IP, ASKED = "127.0.0.1", 40
WAYS = ["silent", "headers", "body", "idle", "unread", "forged"]


class Ports:
    """A scene whose controller serves metrics and the administrators' API over TCP."""

    def __init__(self, scene: Scene, metrics: int, api: int, key: bytes):
        self.scene, self.metrics, self.api, self._key = scene, metrics, api, key

    def answers(self, port: int) -> list[int]:
        """The statuses of requests one after the other, each on a connection of its own; 0 for none."""
        return [self._status(port) for _ in range(ASKED)]

    def _status(self, port: int) -> int:
        grant = sign_grant(
            self._key,
            "hub-1",
            user="root",
            audience=f"affinode:{IP}:{self.api}",
            lifetime_s=60,
            is_administrator=True,
        )
        path = "/metrics" if port == self.metrics else "/api/v1/node"
        connection = http.client.HTTPConnection(IP, port, timeout=5)
        with contextlib.closing(connection):
            return ask(connection, "GET", path, Authorization=f"Bearer {grant}")[0]
        return 0


@pytest.fixture
def ports(gpu_machine):
    key, keys = make_hub_keys(gpu_machine.folder)
    metrics, api = free_port(), free_port()
    options = (f"--grant-keys={keys}", "--NodeController.grant_audiences=tests")
    with scene_on(gpu_machine, *options, f"--metrics-port={metrics}", f"--api-port={api}") as scene:
        yield Ports(scene, metrics, api, key.read_bytes())


@pytest.mark.long
@pytest.mark.parametrize("sources", [1, 200])
@pytest.mark.parametrize("way", WAYS)
def test_connections_without_credentials_keep_no_client_from_either_port(ports, way, sources):
    assert ports.answers(ports.metrics) == ports.answers(ports.api) == [200] * ASKED
    with ports.scene.attack("holding_ports", way, str(sources), str(ports.metrics), str(ports.api)):
        began = time.monotonic()
        assert ports.answers(ports.metrics) == [200] * ASKED
        assert ports.answers(ports.api) == [200] * ASKED
        print(f"{way} from {sources}: {2 * ASKED} answers in {time.monotonic() - began:.1f} s")
        ports.scene.bystander.wait_for(20, PATIENCE_S)

"""A controller that answers and will not serve: users are told why, and what to do about it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading

import pytest
from waiting import until

from jupyter_affinode.cli import main
from jupyter_affinode.client.api import ControllerClient, ControllerRefused
from jupyter_affinode.doctor import checks as doctor
from jupyter_affinode.environment import SOCKET
from jupyter_affinode.server.controller_watch import UNKNOWN, NodeWatch

WHY = "its grant has expired"


@pytest.fixture
def refusing(tmp_path, monkeypatch):
    """The path of a controller's socket that answers 401 to everything."""
    path = tmp_path / "node.sock"
    body = json.dumps({"error": "bad-grant", "message": WHY}).encode()
    head = (
        f"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve():
            while True:
                try:
                    accepted, _ = listening.accept()
                except OSError:
                    return
                with accepted:
                    if accepted.recv(65536):
                        accepted.sendall(head.encode() + body)

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv(SOCKET, str(path))
        try:
            yield path
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_the_stream_of_events_says_why_there_is_none(refusing):
    async def listen():
        async for _ in ControllerClient(refusing).events():
            pass

    with pytest.raises(ControllerRefused, match=WHY) as refused:
        asyncio.run(listen())
    assert (refused.value.status, refused.value.slug) == (401, "bad-grant")


def test_the_status_is_one_line_and_no_traceback(refusing, capsys):
    assert main(["status"]) == 1
    said = capsys.readouterr()
    assert WHY in said.err and "start it again" in said.err and not said.out
    assert main(["status", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["available"] and WHY in answer["message"]


def test_the_doctor_calls_it_no_absence(refusing):
    check, _ = doctor._controller(doctor._node())
    assert check.level == "fail" and WHY in check.text and "start it again" in (check.advice or "")


def test_a_server_tells_its_people(refusing):
    async def follow():
        watch = NodeWatch(policy={}, log=logging.getLogger("test"))
        watch.start()
        await until(lambda: watch.message != UNKNOWN)
        await watch.stop()
        return watch.message

    message = asyncio.run(follow())
    assert WHY in message and "start it again" in message

"""Following the controller, and starting one again."""

from __future__ import annotations

import asyncio
import logging

from waiting import until

from jupyter_affinode import environment
from jupyter_affinode.server import controller_watch
from jupyter_affinode.server.controller_watch import NodeWatch, pause_s


def test_a_controller_is_never_started_again_at_once_and_ever_later_if_it_fails_at_its_start():
    pauses = [pause_s(failures) for failures in range(6)]
    assert min(pauses) > 0
    assert pauses == sorted(pauses) and pauses[0] < pauses[-1]


def test_a_server_pauses_before_it_starts_another_controller(tmp_path, monkeypatch):
    monkeypatch.setenv(
        environment.SOCKET, str(tmp_path / ("d" * 100) / "node.sock")
    )  # no socket has such a path
    monkeypatch.setattr(controller_watch, "BACK_OFF_S", (3600.0,))
    start, tries = controller_watch.ensure_controller_async, []

    async def counted():
        tries.append(None)
        return await start()

    monkeypatch.setattr(controller_watch, "ensure_controller_async", counted)

    async def watch_until_it_failed():
        watch = NodeWatch(policy={}, log=logging.getLogger(__name__))
        watch.start()
        await until(lambda: watch.code == "unreachable")
        for _ in range(100):
            await asyncio.sleep(0)
        await watch.stop()

    asyncio.run(watch_until_it_failed())
    assert len(tries) == 1

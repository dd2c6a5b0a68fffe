"""What a controller tells its clients without being asked."""

from __future__ import annotations

import asyncio
import threading

from jupyter_affinode.client.api import ControllerClient


class Listening:
    """Follows a controller's notices on a thread."""

    def __init__(self, socket):
        self.heard = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow(socket)))
        self._thread.start()
        assert self._ready.wait(60)

    def of(self, kind):
        return [notice for notice in self.heard if notice["kind"] == kind]

    def close(self):
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=60)

    async def _follow(self, socket):
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        client = ControllerClient(socket)
        try:
            async for event in client.events():
                self._ready.set()
                if event["event"] == "notice":
                    self.heard.append(event["notice"])
        except asyncio.CancelledError:
            await client.close()

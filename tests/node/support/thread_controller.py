"""The real controller on a thread of the test's process: the same code and sockets, started at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_affinode.node.api.server import serve
from jupyter_affinode.node.controller import Controller
from jupyter_affinode.node.identity.access import Access
from jupyter_affinode.node.leadership.election import Election
from jupyter_affinode.node.metrics.history_options import HistoryOptions
from jupyter_affinode.node.system.nvml import NvmlMissing, NvmlSample
from jupyter_affinode.settings.policy import GIB, Settings


class NoNvml:
    """A machine without NVML."""

    def read(self) -> NvmlSample:
        """As pynvml says it."""
        raise NvmlMissing("no NVML in this test")


class ThreadController:
    """Serves from the moment it is made until `stop()`."""

    def __init__(
        self,
        socket: Path,
        nvml: Any = None,
        history: HistoryOptions | None = None,
        access: Access | None = None,
        **settings: Any,
    ):
        self._socket = socket
        self._nvml = nvml or NoNvml()
        self._history = history
        self._access = access
        # Of what fake shims claim nothing is set aside: to touch it takes half of such a test's processor time.
        usual = Settings(settle_s=0.05, host_reserve_bytes=GIB // 4, lot_bytes=0)
        self._settings = usual.changed(**settings)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="controller")
        self._thread.start()
        assert self._ready.wait(60)

    def stop(self) -> None:
        """End it as SIGTERM would."""
        self._loop.call_soon_threadsafe(self._controller.finished.set)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Have its loop do nothing meanwhile."""
        goes_on = threading.Event()
        self._loop.call_soon_threadsafe(goes_on.wait)
        try:
            yield
        finally:
            goes_on.set()

    async def _serve(self) -> None:
        log = logging.Logger(f"controller of {self._socket}")
        with contextlib.closing(logging.FileHandler(self._socket.with_name("node.log"))) as file:
            file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            log.addHandler(file)
            try:
                await self._serve_with(log)
            finally:
                log.removeHandler(file)  # else a word from what still ends would open the file again

    async def _serve_with(self, log: logging.Logger) -> None:
        election = Election(self._socket, self._socket.parent)
        election.win()
        self._loop = asyncio.get_running_loop()
        self._controller = Controller(
            self._socket,
            self._settings,
            version="test",
            log=log,
            election=election,
            nvml=self._nvml,
            history=self._history,
            access=self._access,
        )
        server = serve(self._controller)
        self._controller.start()
        self._ready.set()
        await self._controller.finished.wait()
        server.stop()
        self._controller.close()
        await server.close_all_connections()
        self._controller.closing.stop()
        election.close()

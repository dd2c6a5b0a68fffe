"""What a spawn page tells, kept so that each browser tab that opens the page is told all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

Event = dict[str, Any]
PROGRESS = 10  # of 100, while the server waits for room


class Story:
    """The events of one spawn until the server starts."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._is_over = False
        self._news = asyncio.Event()

    def begin(self) -> None:
        """Forget what an earlier spawn told."""
        self.events.clear()
        self._is_over = False

    def tell(self, text: str) -> None:
        """Add a sentence, unless it was the last one too."""
        if not self.events or self.events[-1]["message"] != text:
            self.events.append({"progress": PROGRESS, "message": text})
            self._wake()

    def end(self) -> None:
        """The server starts: what follows is the spawner's own progress."""
        self._is_over = True
        self._wake()

    async def follow(self) -> AsyncIterator[Event]:
        """Yield each event, those of before included, until the server starts."""
        told = 0
        while True:
            news = self._news
            while told < len(self.events):
                yield self.events[told]
                told += 1
            if self._is_over:
                return
            await news.wait()
            told = min(told, len(self.events))

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class Closable:
    """Events of an async generator that may be closed while its next event is awaited.

    A Hub that ends closes what its handlers read, and Python refuses to close a generator that is running.
    """

    def __init__(self, events: AsyncGenerator[Event, None]):
        self._events = events
        self._next: asyncio.Future[Event] | None = None

    def __aiter__(self) -> Closable:
        return self

    async def __anext__(self) -> Event:
        self._next = asyncio.ensure_future(self._events.__anext__())
        return await self._next

    async def aclose(self) -> None:
        """End the generator, wherever it waits."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        await self._events.aclose()

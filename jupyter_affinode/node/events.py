"""The stream of changes: who listens, and what each has yet to be told.

A listener that does not read is not waited for: its unread events are replaced by one fresh snapshot.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from .describe import node_without_volatile, without_volatile

UNREAD_MAX = 256
NODE_EVENT_EVERY_S = 1.0


class Subscriber:
    """One open stream."""

    def __init__(self, snapshot: Callable[[], dict[str, Any]]):
        self._snapshot = snapshot
        self._unread: deque[dict[str, Any]] = deque([snapshot()])
        self._news = asyncio.Event()
        self._news.set()

    def put(self, event: dict[str, Any]) -> None:
        """Have an event sent."""
        if len(self._unread) >= UNREAD_MAX:
            self._unread.clear()
            event = self._snapshot()
        self._unread.append(event)
        self._news.set()

    async def lines(self, timeout_s: float) -> bytes:
        """What is unread, one JSON object a line; a ping if nothing came within `timeout_s`."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except asyncio.TimeoutError:
            return b'{"event": "ping"}\n'
        self._news.clear()
        unread, self._unread = self._unread, deque()
        return b"".join(json.dumps(event).encode() + b"\n" for event in unread)


class EventHub:
    """Compares what is with what was told, and tells every subscriber the difference."""

    def __init__(self, node: Callable[[], dict[str, Any]], kernels: Callable[[], list[dict[str, Any]]]):
        self.subscribers: set[Subscriber] = set()
        self._node = node
        self._kernels = kernels
        self._told_kernels: dict[str, dict[str, Any]] = {}
        self._told_node: dict[str, Any] = {}
        self._node_told_at = 0.0

    def subscribe(self) -> Subscriber:
        """A new stream, beginning with a snapshot."""
        self.publish()
        subscriber = Subscriber(self._snapshot)
        self.subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """The stream ended."""
        self.subscribers.discard(subscriber)

    def publish(self) -> None:
        """Tell what changed since the last call."""
        if not self.subscribers:
            self._told_kernels.clear()
            return
        kernels = self._kernels()
        for kernel in kernels:
            lasting = without_volatile(kernel)
            if self._told_kernels.get(kernel["id"]) != lasting:
                self._told_kernels[kernel["id"]] = lasting
                self._tell({"event": "kernel", "kernel": kernel})
        for kernel_id in self._told_kernels.keys() - {kernel["id"] for kernel in kernels}:
            del self._told_kernels[kernel_id]
            self._tell({"event": "removed", "kernel_id": kernel_id})
        self._publish_node()

    def _publish_node(self) -> None:
        now = time.monotonic()
        if now - self._node_told_at < NODE_EVENT_EVERY_S:
            return
        node = self._node()
        lasting = node_without_volatile(node)
        if lasting != self._told_node:
            self._told_node, self._node_told_at = lasting, now
            self._tell({"event": "node", "node": node})

    def _snapshot(self) -> dict[str, Any]:
        kernels = self._kernels()
        self._remember(kernels)
        return {"event": "snapshot", "node": self._node(), "kernels": kernels}

    def _remember(self, kernels: Iterable[dict[str, Any]]) -> None:
        if len(self.subscribers) == 0:
            self._told_kernels = {kernel["id"]: without_volatile(kernel) for kernel in kernels}

    def _tell(self, event: dict[str, Any]) -> None:
        for subscriber in self.subscribers:
            subscriber.put(event)

"""The stream of changes: who listens, and what each has yet to be told.

A listener that does not read is not waited for: its unread events are replaced by one fresh snapshot.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .describe import node_without_volatile, without_volatile
from .identity import OWN_USER, Identity
from .notices import Notice
from .views import kernel_view

UNREAD_MAX = 256
NODE_EVENT_EVERY_S = 1.0


Json = dict[str, Any]


class Source(Protocol):
    """Where the events come from: the controller."""

    def kernels_json(self, identity: Identity = OWN_USER) -> list[Json]:
        """Every kernel that somebody may see."""

    def node_json(self, identity: Identity = OWN_USER) -> Json:
        """The machine, as somebody may see it."""

    def owner_of(self, kernel_id: str) -> str | None:
        """Whose a known kernel is."""


class Subscriber:
    """One open stream, of one person."""

    def __init__(self, identity: Identity, snapshot: Callable[[Identity], Json]):
        self.identity = identity
        self._snapshot = snapshot
        self._unread: deque[Json] = deque([snapshot(identity)])
        self._news = asyncio.Event()
        self._news.set()

    def put(self, event: Json) -> None:
        """Have an event sent."""
        if len(self._unread) >= UNREAD_MAX:
            self._unread.clear()
            event = self._snapshot(self.identity)
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

    def __init__(self, source: Source):
        self.subscribers: set[Subscriber] = set()
        self._source = source
        self._told_kernels: dict[str, Json] = {}
        self._owners: dict[str, str | None] = {}  # of those
        self._told_node: Json = {}
        self._node_told_at = 0.0

    def subscribe(self, identity: Identity = OWN_USER) -> Subscriber:
        """A new stream, beginning with a snapshot."""
        self.publish()
        subscriber = Subscriber(identity, self._snapshot)
        self.subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """The stream ended."""
        self.subscribers.discard(subscriber)

    def places(self) -> set[str]:
        """From where streams are open (`Identity.place`)."""
        return {subscriber.identity.place for subscriber in self.subscribers}

    def publish(self) -> None:
        """Tell what changed since the last call."""
        if not self.subscribers:
            self._told_kernels.clear()
            self._owners.clear()
            return
        kernels = self._source.kernels_json()
        for kernel in kernels:
            lasting = without_volatile(kernel)
            if self._told_kernels.get(kernel["id"]) != lasting:
                self._remember(kernel["id"], lasting)
                self._tell_kernel(kernel)
        for kernel_id in self._told_kernels.keys() - {kernel["id"] for kernel in kernels}:
            del self._told_kernels[kernel_id]
            self._tell_removed(kernel_id)
        self._publish_node()

    def tell_notice(self, notice: Notice) -> None:
        """Tell whom it concerns."""
        owner = None if notice.kernel_id is None else self._source.owner_of(notice.kernel_id)
        for subscriber in self.subscribers:
            told = notice.as_dict()
            if notice.kernel_id is not None:
                if not subscriber.identity.sees(owner):
                    continue
                told["kernel_id"] = subscriber.identity.shown_id(notice.kernel_id, owner)
            subscriber.put({"event": "notice", "notice": told})

    def _publish_node(self) -> None:
        now = time.monotonic()
        if now - self._node_told_at < NODE_EVENT_EVERY_S:
            return
        lasting = node_without_volatile(self._source.node_json())
        if lasting == self._told_node:
            return
        self._told_node, self._node_told_at = lasting, now
        views: dict[tuple[str | None, bool], Json] = {}
        for subscriber in self.subscribers:
            identity = subscriber.identity
            seen_as = (identity.owner, identity.is_admin)
            if seen_as not in views:
                views[seen_as] = {"event": "node", "node": self._source.node_json(identity)}
            subscriber.put(views[seen_as])

    def _snapshot(self, identity: Identity) -> Json:
        if not self.subscribers:
            for kernel in self._source.kernels_json():
                self._remember(kernel["id"], without_volatile(kernel))
        kernels = self._source.kernels_json(identity)
        seen = [kernel_view(identity, kernel, self._source.owner_of(kernel["id"])) for kernel in kernels]
        return {"event": "snapshot", "node": self._source.node_json(identity), "kernels": seen}

    def _remember(self, kernel_id: str, lasting: Json) -> None:
        self._told_kernels[kernel_id] = lasting
        self._owners[kernel_id] = self._source.owner_of(kernel_id)

    def _tell_kernel(self, kernel: Json) -> None:
        owner = self._owners[kernel["id"]]
        for subscriber in self.subscribers:
            if subscriber.identity.sees(owner):
                subscriber.put({"event": "kernel", "kernel": kernel_view(subscriber.identity, kernel, owner)})

    def _tell_removed(self, kernel_id: str) -> None:
        owner = self._owners.pop(kernel_id)
        for subscriber in self.subscribers:
            if subscriber.identity.sees(owner):
                shown = subscriber.identity.shown_id(kernel_id, owner)
                subscriber.put({"event": "removed", "kernel_id": shown})

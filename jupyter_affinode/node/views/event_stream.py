"""The stream of changes: its listeners, and the events that each has yet to get.

The controller does not wait for a slow listener: its unread events are replaced by one fresh snapshot.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..execution.notices import Notice
from ..identity.identity import OWN_USER, Identity
from .serializers import node_without_volatile, without_volatile
from .visibility import kernel_view

UNREAD_MAX = 256
NODE_EVENT_EVERY_S = 1.0


Json = dict[str, Any]


class Source(Protocol):
    """The source of the events: the controller."""

    def kernels_json(self) -> list[Json]:
        """Return every kernel that a subscriber may see."""

    def node_json(self, identity: Identity = OWN_USER) -> Json:
        """Return the machine, as a user may see it."""

    def owner_of(self, kernel_id: str) -> str | None:
        """Return the owner of a known kernel."""


class Subscriber:
    """One open stream, of one user. It begins with a snapshot, which is made when it is sent."""

    def __init__(self, identity: Identity):
        self.identity = identity
        self._is_behind = True  # a snapshot is due before anything else
        self._unread: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._news.set()

    def put(self, line: bytes, *, is_in_snapshot: bool = True) -> None:
        """Queue an event, unless the snapshot that is due will contain it."""
        if len(self._unread) >= UNREAD_MAX:
            self._unread.clear()
            self._is_behind = True
        if not (self._is_behind and is_in_snapshot):
            self._unread.append(line)
        self._news.set()

    async def lines(self, timeout_s: float) -> bytes | None:
        """Return what is unread, one JSON object a line, or a ping if nothing came within `timeout_s`; None when a
        snapshot is due.
        """
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except asyncio.TimeoutError:
            return b'{"event": "ping"}\n'
        if self._is_behind:
            self._is_behind = False
            if not self._unread:
                self._news.clear()
            return None
        self._news.clear()
        unread, self._unread = self._unread, deque()
        return b"".join(unread)


class EventHub:
    """Compares the present state with what was sent, and sends every subscriber the difference."""

    def __init__(self, source: Source):
        self.subscribers: set[Subscriber] = set()
        self._source = source
        self._told_kernels: dict[str, Json] = {}
        self._owners: dict[str, str | None] = {}  # of those
        self._told_node: Json = {}
        self._node_told_at = 0.0

    def subscribe(self, identity: Identity = OWN_USER) -> Subscriber:
        """Return a new stream, beginning with a snapshot."""
        self.publish()
        subscriber = Subscriber(identity)
        self.subscribers.add(subscriber)
        for kernel in self._source.kernels_json():
            if kernel["id"] not in self._told_kernels:  # no other subscriber sees it
                self._remember(kernel["id"], without_volatile(kernel))
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a stream that ended."""
        self.subscribers.discard(subscriber)

    def origins(self) -> set[str]:
        """Return from where streams are open (`Identity.origin`)."""
        return {subscriber.identity.origin for subscriber in self.subscribers}

    def publish(self) -> None:
        """Send what changed since the last call."""
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
        """Send a notice to the users that it concerns."""
        owner = None if notice.kernel_id is None else self._source.owner_of(notice.kernel_id)
        for subscriber in self.subscribers:
            told = notice.as_dict()
            if notice.kernel_id is not None:
                if not subscriber.identity.sees(owner):
                    continue
                told["kernel_id"] = subscriber.identity.shown_id(notice.kernel_id, owner)
            subscriber.put(_line({"event": "notice", "notice": told}), is_in_snapshot=False)

    def _publish_node(self) -> None:
        now = time.monotonic()
        if now - self._node_told_at < NODE_EVENT_EVERY_S:
            return
        lasting = node_without_volatile(self._source.node_json())
        if lasting == self._told_node:
            return
        self._told_node, self._node_told_at = lasting, now
        self._tell(
            self.subscribers, lambda identity: {"event": "node", "node": self._source.node_json(identity)}
        )

    def _remember(self, kernel_id: str, lasting: Json) -> None:
        self._told_kernels[kernel_id] = lasting
        self._owners[kernel_id] = self._source.owner_of(kernel_id)

    def _tell_kernel(self, kernel: Json) -> None:
        owner = self._owners[kernel["id"]]
        self._tell(
            [each for each in self.subscribers if each.identity.sees(owner)],
            lambda identity: {"event": "kernel", "kernel": kernel_view(identity, kernel, owner)},
        )

    def _tell_removed(self, kernel_id: str) -> None:
        owner = self._owners.pop(kernel_id)
        self._tell(
            [each for each in self.subscribers if each.identity.sees(owner)],
            lambda identity: {"event": "removed", "kernel_id": identity.shown_id(kernel_id, owner)},
        )

    @staticmethod
    def _tell(subscribers: Iterable[Subscriber], event: Callable[[Identity], Json]) -> None:
        """Send an event, which is serialised once for all listeners that see the same."""
        lines: dict[tuple[str | None, bool], bytes] = {}
        for subscriber in subscribers:
            identity = subscriber.identity
            seen_as = (identity.owner, identity.is_admin)
            if seen_as not in lines:
                lines[seen_as] = _line(event(identity))
            subscriber.put(lines[seen_as])


def _line(event: Json) -> bytes:
    return json.dumps(event).encode() + b"\n"

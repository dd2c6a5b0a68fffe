"""Follows the machine's controller for as long as a server lives, and keeps one alive.

Handlers, events, metrics and the activity marks ask it for the controller's last state, or listen to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from ..client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ..client.errors import refusal_advice
from ..client.starting import ensure_controller_async

Kernel = dict[str, Any]
Node = dict[str, Any]
Notice = dict[str, Any]

SILENCE_S = 15.0  # the stream carries a ping every 5 s
BACK_OFF_S = (0.2, 0.5, 1.0, 2.0)
STEADY_S = 10.0  # a controller that was followed for that long did not fail at its start
# Why a server has no controller; the last two: it looks for none.
CODES = ("starting", "refused", "unreachable", "ended", "disabled", "remote")
UNKNOWN = "The GPU controller has not answered yet."


class NodeListener:
    """A listener to changes; it has methods for those that it needs.

    Methods are called on the event loop, in the order of registration.
    """

    def controller_found(self) -> None:
        """A controller answers (at the start, and whenever a new one took over): `kernels` is complete."""

    def controller_lost(self) -> None:
        """No controller answers any more; `message` says why."""

    def kernel_changed(self, previous: Kernel | None, kernel: Kernel) -> None:
        """A kernel is new, or anything about it changed."""

    def kernel_removed(self, kernel_id: str) -> None:
        """The controller forgot a kernel."""

    def noticed(self, notice: Notice) -> None:
        """The controller has a notice for users: `kernel_id` (or None), `kind`, `level`, `text`."""


class NodeWatch:
    """The controller's state as of now: `available`, `message` and its `code`, `node`, `kernels` by id."""

    def __init__(self, *, policy: dict[str, Any], log: logging.Logger):
        self.available = False
        self.message: str | None = UNKNOWN
        self.code: str | None = "starting"  # the message for programs; one of CODES
        self.node: Node | None = None
        self.kernels: dict[str, Kernel] = {}
        self._policy = policy
        self._began = time.monotonic()
        self._log = log
        self._listeners: list[NodeListener] = []
        self._client: ControllerClient | None = None
        self._task: asyncio.Task[None] | None = None

    def listen(self, listener: NodeListener) -> None:
        """Tell `listener` of every change from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begin to follow; called with the event loop running."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="affinode-node-watch")

    async def stop(self) -> None:
        """Stop following; the controller ends by itself when no kernel needs it."""
        if self._task is not None:
            await cancelled(self._task)
            self._task = None

    @property
    def client(self) -> ControllerClient:
        """Return the client of the controller that answers. Raises ControllerUnavailable, with `message`."""
        if self._client is None or not self.available:
            raise ControllerUnavailable(self.message or UNKNOWN)
        return self._client

    async def _follow(self) -> None:
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                socket = await ensure_controller_async()
                client = ControllerClient(socket)
                try:
                    await self._follow_one(client)
                finally:
                    await client.close()
                code, reason = "ended", "The GPU controller ended; another is being started."
            except ControllerRefused as refused:
                advice = refusal_advice(refused.slug)
                code = "refused"
                reason = f"The GPU controller does not answer this server: {refused}. {advice}".rstrip()
            except (ControllerUnavailable, OSError, asyncio.TimeoutError) as error:
                code, reason = "unreachable", str(error) or "The GPU controller does not answer."
            except Exception:
                # the watch must outlive any surprise, or nothing would be managed until a restart
                self._log.exception("Following the GPU controller failed")
                code = "unreachable"
                reason = "Following the GPU controller failed; the server's log has the error."
            self._lost(code, reason)
            lasted_s = asyncio.get_running_loop().time() - began
            failures = 0 if lasted_s >= STEADY_S else failures + 1
            await asyncio.sleep(pause_s(failures))

    async def _follow_one(self, client: ControllerClient) -> None:
        """Follow one controller until its stream ends or falls silent."""
        events = client.events()
        try:
            while True:
                try:
                    event = await asyncio.wait_for(anext(events), SILENCE_S)
                except StopAsyncIteration:
                    return
                if event["event"] == "snapshot":
                    await self._found(client, event)
                else:
                    self._take(event)
        finally:
            aclose = getattr(events, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _found(self, client: ControllerClient, event: dict[str, Any]) -> None:
        if self._policy:
            await self._configure(client, event["node"])
        before, self.kernels = self.kernels, {kernel["id"]: kernel for kernel in event["kernels"]}
        self.node, self._client, self.available = event["node"], client, True
        self.message = self.code = None
        self._log.info("Following the GPU controller (pid %s).", event["node"]["controller"]["pid"])
        for listener in self._listeners:
            listener.controller_found()
        for kernel_id in before.keys() - self.kernels.keys():
            self._tell_removed(kernel_id)
        for kernel_id, kernel in self.kernels.items():
            self._tell_changed(before.get(kernel_id), kernel)

    async def _configure(self, client: ControllerClient, node: Node) -> None:
        """Tell the user's own controller this server's policy. Only administrators configure a machine's
        controller, and not by a server's settings, even if the server runs as root.
        """
        if node["others"] is not None:
            self._log.warning(
                "This machine's GPU controller has its own policy: AffinodeExtension.%s has no effect here.",
                ", ".join(self._policy),
            )
            return
        try:
            await client.set_policy(configured_at=self._began, **self._policy)
        except ControllerRefused as refused:
            self._log.warning("The GPU controller did not take the configured policy: %s", refused)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "kernel":
            kernel = event["kernel"]
            previous = self.kernels.get(kernel["id"])
            self.kernels[kernel["id"]] = kernel
            self._tell_changed(previous, kernel)
        elif kind == "removed" and self.kernels.pop(event["kernel_id"], None) is not None:
            self._tell_removed(event["kernel_id"])
        elif kind == "node":
            self.node = event["node"]
        elif kind == "notice":
            for listener in self._listeners:
                listener.noticed(event["notice"])

    def _lost(self, code: str, reason: str) -> None:
        was_available, self.available, self._client = self.available, False, None
        self.code, self.message = code, reason
        self.node = None
        if was_available:
            self._log.warning("Lost the GPU controller: %s", reason)
            for listener in self._listeners:
                listener.controller_lost()

    def _tell_changed(self, previous: Kernel | None, kernel: Kernel) -> None:
        for listener in self._listeners:
            listener.kernel_changed(previous, kernel)

    def _tell_removed(self, kernel_id: str) -> None:
        for listener in self._listeners:
            listener.kernel_removed(kernel_id)


def pause_s(failures: int) -> float:
    """Return how long to wait before a controller is looked for again, after that many controllers failed at their
    start."""
    return BACK_OFF_S[min(max(failures - 1, 0), len(BACK_OFF_S) - 1)]


async def cancelled(task: asyncio.Task[None]) -> None:
    """End a task for certain.

    Before Python 3.12 `asyncio.wait_for` swallows a cancellation that comes together with what it waits for.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)

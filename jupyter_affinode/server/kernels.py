"""This server's kernels: a tracker for each, their notebooks' paths, and what the server tells the controller about
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager
from jupyter_server.services.sessions.sessionmanager import SessionManager

from ..client.api import ControllerRefused, ControllerUnavailable
from ..provisioning.kernelspec import scheduling_fields
from .controller_watch import Kernel, NodeListener, NodeWatch, cancelled
from .execution_tracker import ExecutionTracker

KERNEL_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"
RECONCILE_S = 2.0
INTERRUPT_ONCE_S = 1.0
HIBERNATED_AGAIN_S = 30.0
SAY_AGAIN_S = 1.0  # what a controller of many users refused, since cells came too fast


class KernelMessages:
    """The messages about one kernel that still go to the controller, in order; of cell states only the newest.

    No message is kept while there is no controller: a new one is told everything.
    """

    def __init__(self, kernel_id: str, watch: NodeWatch, log: logging.Logger):
        self.kernel_id = kernel_id
        self.description: dict[str, Any] = {}
        self._cell: tuple[bool, str | None, float | None] = (False, None, None)
        self._watch = watch
        self._log = log
        self._pending: list[tuple[str, Any]] = []
        self._task: asyncio.Task[None] | None = None
        self._last_cancel = self._described_at = float("-inf")

    def cell(self, is_open: bool, cell_id: str | None, began_at: float | None = None) -> None:
        """Tell that a cell opened (at that moment, in monotonic seconds) or closed. A close before an open is kept,
        since it ends an interrupt.
        """
        self._cell = (is_open, cell_id, began_at)
        cells = [(kind, value) for kind, value in self._pending if kind == "cell"][-1:]
        others = [(kind, value) for kind, value in self._pending if kind != "cell"]
        self._pending = others + cells
        self._queue("cell", self._cell)

    def interrupted(self, process_group: int | None) -> None:
        """Tell that the kernel was interrupted in another way than by a signal through our provisioner; at most
        once a second."""
        now = asyncio.get_running_loop().time()
        if now - self._last_cancel >= INTERRUPT_ONCE_S:
            self._last_cancel = now
            self._queue("cancel", process_group)

    def describe(self, **description: Any) -> None:
        """Tell name, path, language and server, if they have changed; of a hibernated kernel again and again.

        The controller forgets an image of which it is told nothing: it may be another machine's by now.
        """
        now = asyncio.get_running_loop().time()
        is_due = (
            description.get("hibernated_bytes") is not None and now - self._described_at > HIBERNATED_AGAIN_S
        )
        if description != self.description or is_due:
            self.description, self._described_at = description, now
            self._queue("describe", None)

    def tell_everything(self) -> None:
        """Tell a new controller everything about the kernel."""
        self._pending.clear()
        self._queue("describe", None)
        self._queue("cell", self._cell)

    def end(self, *, gone: bool) -> None:
        """Tell nothing more; if the kernel has been shut down, have the controller forget it."""
        self._pending.clear()
        if gone:
            self._queue("forget", None)
        elif self._task is not None:
            self._task.cancel()

    def _queue(self, kind: str, value: Any) -> None:
        if not self._watch.available:
            return
        self._pending.append((kind, value))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send(), name="affinode-kernel-messages")

    async def _send(self) -> None:
        while self._pending:
            kind, value = self._pending.pop(0)
            try:
                client = self._watch.client
                if kind == "cell":
                    is_open, cell_id, began_at = value
                    await client.cell(self.kernel_id, is_open, cell_id=cell_id, began_at=began_at)
                elif kind == "cancel":
                    await client.cancel(self.kernel_id, value)
                elif kind == "forget":
                    await client.forget(self.kernel_id)
                else:
                    await client.register(self.kernel_id, **self.description)
            except ControllerUnavailable:
                self._pending.clear()
            except ControllerRefused as refused:
                if kind == "cell" and refused.slug == "too-many-requests":
                    await asyncio.sleep(SAY_AGAIN_S)
                    if all(other != "cell" for other, _ in self._pending):
                        self._pending.append((kind, value))  # else a cell would seem to run that has ended
                    continue
                # unknown there: a kernel without the shim, or not yet registered
                self._log.debug("Kernel %s, %s: %s", self.kernel_id, kind, refused)


class ServerKernels(NodeListener):
    """Follows every kernel of the server, whatever starts, restarts, interrupts or ends it."""

    def __init__(
        self,
        manager: MappingKernelManager,
        sessions: SessionManager,
        watch: NodeWatch,
        *,
        server_label: str,
        log: logging.Logger,
    ):
        self.paths: dict[str, list[str]] = {}
        self._manager = manager
        self._sessions = sessions
        self._watch = watch
        self._server_label = server_label
        self._log = log
        self.is_away: Callable[[str], bool] = lambda kernel_id: False  # a hibernated kernel says nothing
        self.hibernation: Callable[[str], dict[str, Any]] = (
            lambda kernel_id: {}
        )  # what the controller is told of that
        self.on_hibernate: Callable[[str], None] = lambda kernel_id: None  # a kernel's cell asks for it
        self._trackers: dict[str, ExecutionTracker] = {}
        self._messages: dict[str, KernelMessages] = {}
        self._task: asyncio.Task[None] | None = None

    def owns(self, kernel_id: str) -> bool:
        """Return whether the kernel is this server's."""
        return kernel_id in self._manager

    def start(self) -> None:
        """Begin to follow; called with the event loop running."""
        self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="affinode-server-kernels")

    async def stop(self) -> None:
        """Stop following all kernels."""
        if self._task is not None:
            await cancelled(self._task)
        for kernel_id in list(self._messages):
            self._forget(kernel_id)

    async def on_kernel_action(self, logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        """Follow what the server's `kernel_actions` events tell."""
        kernel_id = data.get("kernel_id")
        if not kernel_id or data.get("status") != "success":
            return
        if data["action"] == "shutdown":
            self._forget(kernel_id, gone=True)
        elif data["action"] == "restart" and kernel_id in self._trackers:
            self._trackers[kernel_id].restarted()
        elif data["action"] == "interrupt" and kernel_id in self._messages and not self._signalled(kernel_id):
            self._messages[kernel_id].interrupted(self._process_group(kernel_id))
        elif data["action"] == "start":
            self._follow(kernel_id)

    async def refresh_paths(self) -> None:
        """Ask the session manager which notebooks each kernel belongs to; they get renamed and moved."""
        paths: dict[str, list[str]] = {}
        sessions: list[dict[str, Any]] = await ensure_async(self._sessions.list_sessions())
        for session in sessions:
            kernel = session.get("kernel") or {}
            if kernel.get("id") and session.get("path"):
                paths.setdefault(kernel["id"], []).append(session["path"])
        self.paths = paths
        for kernel_id, messages in self._messages.items():
            self._describe(kernel_id, messages)

    def controller_found(self) -> None:
        """Tell a new controller about every kernel."""
        for messages in self._messages.values():
            messages.tell_everything()

    def kernel_changed(self, previous: Kernel | None, kernel: Kernel) -> None:
        """Describe a kernel again that the controller did not know when it was described."""
        if previous is None and kernel["id"] in self._messages:
            self._messages[kernel["id"]].tell_everything()
        self._look_for_lost_ends(kernel)

    async def _keep_up(self) -> None:
        while True:
            try:
                current = set(self._manager.list_kernel_ids())
                for kernel_id in current - self._trackers.keys():
                    self._follow(kernel_id)
                for kernel_id in self._messages.keys() - current:
                    self._forget(kernel_id, gone=True)
                for tracker in self._trackers.values():
                    tracker.keep_following()
                await self.refresh_paths()
                for kernel in list(self._watch.kernels.values()):
                    self._look_for_lost_ends(kernel)
            except Exception:
                # the next round may work; otherwise kernels would stay unfollowed without a word
                self._log.exception("Following the server's kernels failed")
            await asyncio.sleep(RECONCILE_S)

    def _look_for_lost_ends(self, kernel: Kernel) -> None:
        tracker = self._trackers.get(kernel["id"])
        if tracker is not None:
            tracker.gpu_idle(kernel.get("idle_s"))

    def _follow(self, kernel_id: str) -> None:
        if kernel_id in self._trackers or kernel_id not in self._manager:
            return
        manager = self._manager.get_kernel(kernel_id)
        if not getattr(manager, "shell_port", 0) or not manager.has_kernel:
            return  # still starting, or a gateway's: it has no channels on this machine
        messages = self._messages.setdefault(kernel_id, KernelMessages(kernel_id, self._watch, self._log))
        self._describe(kernel_id, messages)
        if self.is_away(kernel_id):
            return
        tracker = ExecutionTracker(
            manager,
            on_cells=messages.cell,
            on_interrupt=lambda: messages.interrupted(self._process_group(kernel_id)),
            on_hibernate=lambda: self.on_hibernate(kernel_id),
            log=self._log,
        )
        tracker.start()
        self._trackers[kernel_id] = tracker

    def open_cells(self, kernel_id: str) -> list[str]:
        """Return the requests that a kernel executes."""
        tracker = self._trackers.get(kernel_id)
        return [] if tracker is None else sorted(frozenset().union(*tracker.cells.subshells().values()))

    def describe(self, kernel_id: str) -> None:
        """Tell the controller what has changed of a kernel."""
        if kernel_id in self._messages:
            self._describe(kernel_id, self._messages[kernel_id])

    def _describe(self, kernel_id: str, messages: KernelMessages) -> None:
        spec = self._manager.get_kernel(kernel_id).kernel_spec if kernel_id in self._manager else None
        if spec is not None:
            path = next(iter(self.paths.get(kernel_id, [])), None)
            messages.describe(
                name=spec.display_name,
                language=spec.language,
                path=path,
                server=self._server_label,
                **self.hibernation(kernel_id),
                **scheduling_fields(spec),
            )

    def _signalled(self, kernel_id: str) -> bool:
        """Return whether an interrupt of this kernel went through our provisioner, which told the controller itself."""
        manager = self._manager.get_kernel(kernel_id)
        spec = manager.kernel_spec
        return bool(
            getattr(manager.provisioner, "managed", False) and spec and spec.interrupt_mode == "signal"
        )

    def _process_group(self, kernel_id: str) -> int | None:
        """Return the process group that a signal to the kernel goes to; None if its provisioner has none."""
        if kernel_id not in self._manager:
            return None
        group = getattr(self._manager.get_kernel(kernel_id).provisioner, "pgid", None)
        return group if isinstance(group, int) else None

    def _forget(self, kernel_id: str, *, gone: bool = False) -> None:
        tracker = self._trackers.pop(kernel_id, None)
        if tracker is not None:
            tracker.close()
        messages = self._messages.pop(kernel_id, None)
        if messages is not None:
            messages.end(gone=gone)
        self.paths.pop(kernel_id, None)

"""A fake shim that knows prepared moves, as "Prepared moves" in protocol.h says; and can be slow, or say nothing."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_shim import (
    ABORT,
    COMMIT,
    OK,
    PARK,
    PARKED,
    PARKING,
    PREPARE,
    PREPARED,
    PREPARES,
    RESIDENT,
    RESUME,
    RESUMING,
    REVOKED,
    WANT,
    Command,
    FakeShim,
    connect,
    hello,
    notify,
    reply,
    send,
)

PREPARED_S, PREPARED_CALL_S = 10.0, 0.1  # AFFINODE_PREPARED_MS, AFFINODE_PREPARED_CALL_MS


@dataclass
class Waiting:
    """A move that waits for COMMIT or ABORT, or still copies."""

    command: Command
    before: int  # the state
    is_prepared: bool = False
    since: float = 0.0
    called_at: float | None = None


class PreparingShim(FakeShim):
    """`park_status` and `resume_status` say how preparing goes, `end_status` how a committed move ends."""

    def __init__(self, folder: Path, kernel_id: str = "", *, flags: int = 0, **options: Any):
        self.folder, self.kernel_id, self.flags = folder, kernel_id, flags | PREPARES
        self.is_slow = False  # says PREPARED when it is told to, by `ready()`
        self.is_closed = False
        self.hears_decisions = self.says_ends = True
        self.end_status = OK
        self.lacks = 0  # host memory that it says it lacks yet when it is prepared
        self.waiting: Waiting | None = None
        super().__init__(folder, kernel_id, flags=self.flags, **options)

    def touch(self) -> None:
        """Use CUDA: a call at the gate of a prepared park waits, and one while it copies revokes it."""
        with self._lock:
            waiting = self.waiting
            parks = waiting is not None and waiting.command.kind == PARK
            if waiting is not None and parks and waiting.is_prepared and waiting.called_at is None:
                waiting.called_at = time.monotonic()
                self.page.want = 1
                self.page.write()
        if not parks:
            return super().touch()
        if self.waiting is not None and self.waiting.is_prepared:
            return self.send(notify(WANT))
        return self._end(REVOKED)

    def ready(self) -> None:
        """Say PREPARED."""
        waiting = self.waiting
        assert waiting is not None
        waiting.is_prepared, waiting.since = True, time.monotonic()
        self.send(reply(waiting.command.kind, waiting.command.epoch, PREPARED, self.lacks))

    def reconnect(self) -> None:
        """Say HELLO again, as after the controller's death."""
        self._thread.join(timeout=60)
        self._socket.close()
        self.heard.ended = False
        self._socket = connect(self.folder / "link.sock")
        send(self._socket, hello(self.kernel_id, flags=self.flags), self.page.descriptor)
        self._thread = type(self._thread)(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up, once."""
        if not self.is_closed:
            self.is_closed = True
            super().close()

    def _carry_out(self, command: Command) -> None:
        waiting = self.waiting
        if command.kind in (PARK, RESUME) and command.argument & PREPARE:
            self._prepare(command)
        elif command.kind in (COMMIT, ABORT):
            is_ours = waiting is not None and waiting.command.epoch == command.request
            if is_ours and waiting is not None and self.hears_decisions:
                if command.kind == ABORT:
                    self._end(REVOKED)
                elif waiting.is_prepared:
                    self._end(self.end_status)
        else:
            super()._carry_out(command)

    def _prepare(self, command: Command) -> None:
        status = self.park_status if command.kind == PARK else self.resume_status
        if status != OK:
            self.send(reply(command.kind, command.epoch, status, text=f"status {status}"))
            return
        self.waiting = Waiting(command, before=self.state)
        self.become(PARKING if command.kind == PARK else RESUMING)
        if not self.is_slow:
            self.ready()

    def _end(self, status: int) -> None:
        """The move's end, and the word of it."""
        with self._lock:
            waiting, self.waiting = self.waiting, None
            self.page.want = 0
        if waiting is None:
            return
        parks = waiting.command.kind == PARK
        if status == OK:
            for gpu, (resident, parked, fixed) in self.page.memory.items():
                everything = resident + parked
                self.page.memory[gpu] = [0, everything, fixed] if parks else [everything, 0, fixed]
            self.page.parks += parks
            self.page.resumes += not parks
        after = waiting.before if status != OK else PARKED if parks else RESIDENT
        with contextlib.suppress(OSError):  # the link may be down: the page is right all the same
            self.become(after)
            if self.says_ends:
                moved = sum(sum(memory[:2]) for memory in self.page.memory.values())
                self.send(
                    reply(waiting.command.kind, waiting.command.epoch, status, moved, f"status {status}")
                )

    def _follow(self) -> None:
        super()._follow()
        self._without_decision(link_is_down=True)

    def _idle(self) -> None:
        self._without_decision(link_is_down=False)

    def _without_decision(self, *, link_is_down: bool) -> None:
        """What protocol.h says when neither COMMIT nor ABORT comes."""
        waiting, now = self.waiting, time.monotonic()
        if waiting is None:
            return
        if waiting.command.kind == RESUME:
            if waiting.is_prepared and (link_is_down or now - waiting.since > PREPARED_S):
                self._end(OK)
            elif link_is_down:
                self._end(OK)  # begun: it goes on by itself
        elif link_is_down or (waiting.called_at is not None and now - waiting.called_at > PREPARED_CALL_S):
            self._end(REVOKED)

"""The bench's end of one of its child processes: sends requests, and listens to the shim meanwhile."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import environment
from ..provisioning import preload as launch_environment
from ..python_command import module_command
from .shim_peer import Listener, ShimPeer

ANSWER_WITHIN_S = 600.0
NONE: Mapping[str, str] = {}


class ChildFailed(RuntimeError):
    """A child could not do what it was asked; the message is its own."""


class BenchProcess:
    """A child process, with the shim if it is given a socket, for as long as the context lasts."""

    def __init__(
        self,
        *,
        socket: Path | None = None,
        kernel_id: str | None = None,
        variables: Mapping[str, str] = NONE,
        through: Sequence[str] = (),
    ):
        """Start it. `variables` go to its environment; `through`: a command that runs it, as another user say."""
        self.peer: ShimPeer | None = None
        env = environment.controller_environment()
        if socket is not None:
            env[environment.SOCKET] = str(socket)
            kernel_id = kernel_id or str(uuid.uuid4())
            launch_environment.manage(env, kernel_id, [sys.executable], python=False)
        env.update(variables)
        self._unread = b""
        self._said = os.memfd_create("bench-stderr")  # what it writes there, for the message if it fails
        self._process = subprocess.Popen(
            [*through, *module_command("jupyter_affinode.bench.child")],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        try:
            self.description = self.answer()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> BenchProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something; return the answer. Raises ChildFailed."""
        self.begin(name, **arguments)
        return self.answer()

    def begin(self, name: str, **arguments: Any) -> None:
        """Have it do something; `answer` waits for it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": name, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildFailed(self._last_words()) from None

    def answer(self, timeout_s: float = ANSWER_WITHIN_S) -> dict[str, Any]:
        """Return the next answer. Raises ChildFailed."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if time.monotonic() > deadline:
                raise ChildFailed(f"no answer within {timeout_s:.0f} s")
            watched: list[Any] = [self._process.stdout, *([self.peer] if self.peer else [])]
            ready = select.select(watched, [], [], 5.0)[0]
            if self.peer is not None:
                self.peer.take()
            if self._process.stdout in ready:
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise ChildFailed(self._last_words())
                self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise ChildFailed(said["error"])
        return said

    def end(self) -> None:
        """Kill it and wait."""
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        os.close(self._said)
        if self.peer is not None:
            self.peer.close()
            self.peer = None

    def _last_words(self) -> str:
        status = self._process.wait()
        lines = os.pread(self._said, 1 << 20, 0).decode(errors="replace").strip().splitlines()
        return f"a process of the bench ended with status {status}: {lines[-1] if lines else 'no words'}"


def with_shim(listener: Listener, **variables: str) -> BenchProcess:
    """Return a child whose shim is connected to the bench itself; `variables` go to its environment."""
    child = BenchProcess(socket=listener.socket_path, variables=variables)
    try:
        child.peer = listener.accept()
    except BaseException:
        child.end()
        raise
    return child

"""A program whose shim is commanded by the script itself: no controller, any depth."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from waiting import wait_until

from jupyter_affinode import environment
from jupyter_affinode.bench.shim_peer import Listener, Move, ShimPeer
from jupyter_affinode.node.protocol.page import Depth
from jupyter_affinode.provisioning import preload as launch_environment

CONNECTS_WITHIN_S = 180.0
ANSWERS_WITHIN_S = 120.0
CONTEXT_WITHIN_S = 15.0


class LinkedProgram:
    """Python code that answers each line with a line, under the shim, for as long as the context lasts.

    Answers nothing before its first use of CUDA, which is when its shim connects.
    """

    def __init__(self, code: str, *arguments: str, env: Mapping[str, str] | None = None, stderr: Any = None):
        self._folder = Path(tempfile.mkdtemp(prefix="affinode-link-", dir="/tmp"))
        self._listener = Listener(self._folder)
        environ = environment.controller_environment()
        environ[environment.SOCKET] = str(self._listener.socket_path)
        launch_environment.manage(environ, "linked-program", [sys.executable], python=False)
        environ.update(env or {})
        self.peer: ShimPeer | None = None
        self.resumes: list[Move] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def __enter__(self) -> LinkedProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.peer is not None:
            self.peer.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def connect(self) -> ShimPeer:
        """The shim's end, once it is there. Raises TimeoutError."""
        if self.peer is None:
            self.peer = self._listener.accept(CONNECTS_WITHIN_S)
        return self.peer

    def ask(self, word: str) -> str:
        """Send a line and return the answer; resume the program if it wants the GPU. Raises NotInTime."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        wait_until(self._has_answered, ANSWERS_WITHIN_S, f"an answer to {word}", 0)
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the program ended with status {self.process.wait()}")
        return line

    def _has_answered(self) -> bool:
        peer, watched = self.connect(), self.process.stdout
        both: list[Any] = [watched, peer]
        if watched in select.select(both, [], [], 1.0)[0]:
            return True
        peer.take()
        if peer.wants:
            peer.wants = False
            self.resumes.append(peer.resume())
        return False


def park(peer: ShimPeer, depth: str) -> Move:
    """Park it; where the context is to go too, as often as a young process needs before that is allowed."""
    deadline = time.monotonic() + CONTEXT_WITHIN_S
    while True:
        move = peer.park(context=depth == "context")
        if depth == "memory" or move.depth == Depth.CONTEXT or time.monotonic() > deadline:
            return move
        peer.resume()
        time.sleep(0.2)

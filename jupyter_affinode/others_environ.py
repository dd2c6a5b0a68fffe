"""Environments of other users' processes, read by a process of its own.

`/proc/PID/environ` and `/proc/PID/cmdline` are read out of the process's memory. Its user can have that memory be of a
file system of their own (FUSE) that never answers. Whoever reads then waits for ever, and cannot be killed. So root's
programs have a child read, wait for it for a while, and leave it alone where it does not come back.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterable

WITHIN_S = 5.0
KILLED_WITHIN_S = 1.0
ENVIRON_BYTES_MAX = 8 << 20  # Linux allows 6 MiB
HEAD = struct.Struct("<II")
CODE = f"""
import struct, sys
for pid in map(int, sys.stdin.read().split()):
    try:
        with open(f"/proc/{{pid}}/environ", "rb") as file:
            told = file.read({ENVIRON_BYTES_MAX})
    except OSError:
        continue
    sys.stdout.buffer.write(struct.pack("{HEAD.format}", pid, len(told)) + told)
    sys.stdout.buffer.flush()
"""
_left: list[subprocess.Popen[bytes]] = []  # that did not come back; looked after at the next call


def environs_of(pids: Iterable[int], within_s: float = WITHIN_S) -> dict[int, list[bytes]]:
    """Return the variables that processes were started with, by pid; without those that cannot be read in time."""
    _left[:] = [child for child in _left if child.poll() is None]
    asked = " ".join(map(str, pids)).encode()
    if not asked:
        return {}
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    assert child.stdin is not None and child.stdout is not None
    with child.stdin, child.stdout:
        child.stdin.write(asked)
        child.stdin.close()
        said, has_ended = _read_until(child.stdout.fileno(), time.monotonic() + within_s)
    child.kill()
    try:
        child.wait(None if has_ended else KILLED_WITHIN_S)
    except subprocess.TimeoutExpired:
        _left.append(child)
    return dict(_parsed(said))


def _read_until(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """Return what is said until then, and whether that is all."""
    said = bytearray()
    while (left := deadline - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return bytes(said), True
        said += piece
    return bytes(said), False


def _parsed(said: bytes) -> Iterable[tuple[int, list[bytes]]]:
    at = 0
    while at + HEAD.size <= len(said):
        pid, size = HEAD.unpack_from(said, at)
        at += HEAD.size + size
        if at <= len(said):
            yield pid, said[at - size : at].split(b"\0")

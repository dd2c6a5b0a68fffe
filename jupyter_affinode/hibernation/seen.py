"""One process as /proc shows it. What has ended by then, or may not be looked at, has nothing."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# From here on a descriptor is the shim's (shim/src/host/disk_file.c): it has closed them when the process is written.
SHIMS_DESCRIPTORS = 512
# Mapped or open, and written with the process: they are in no file system that another program sees.
NOT_ON_A_DISK = ("/memfd:", "/dev/zero", "/affinode-lot", "/anon_hugepage")
DELETED = " (deleted)"
MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+) +(/.*)$", re.M)
SOCKET = re.compile(r"socket:\[(\d+)\]")
ESTABLISHED = "01"  # in /proc/net/tcp


class Mapping(NamedTuple):
    """A file that a process has in memory."""

    size: int
    permissions: str
    inode: int
    path: str


class Seen:
    """One process. Each thing is looked at when it is first asked for, and not again."""

    def __init__(self, pid: int):
        """Look at nothing yet."""
        self.pid = pid

    def __str__(self) -> str:
        """Return what it is called in a sentence."""
        return f"its process {self.pid} ({self.name})"

    @property
    def name(self) -> str:
        """Its program's name, or what it calls itself."""
        return self.status.get("Name", "?")

    @cached_property
    def status(self) -> dict[str, str]:
        """The lines of its status."""
        lines = self._read("status").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @cached_property
    def opened(self) -> dict[int, str]:
        """What its descriptors lead to."""
        numbers = map(int, self._look(os.listdir, "fd") or ())
        targets = ((number, self._look(os.readlink, f"fd/{number}")) for number in numbers)
        return {number: target for number, target in targets if target is not None}

    @cached_property
    def sockets(self) -> list[int]:
        """The inodes of its sockets."""
        return [int(found[1]) for found in map(SOCKET.fullmatch, self.opened.values()) if found]

    @cached_property
    def mapped(self) -> list[Mapping]:
        """The files that it has in memory."""
        return [
            Mapping(int(end, 16) - int(begin, 16), permissions, int(inode), path)
            for begin, end, permissions, inode, path in MAPPED.findall(self._read("maps"))
        ]

    @cached_property
    def established(self) -> list[tuple[str, str, int]]:
        """The TCP connections of its network namespace: both addresses, and the socket's inode."""
        rows = [
            line.split() for name in ("net/tcp", "net/tcp6") for line in self._read(name).splitlines()[1:]
        ]
        return [(row[1], row[2], int(row[9])) for row in rows if len(row) > 9 and row[3] == ESTABLISHED]

    @cached_property
    def mounts(self) -> set[str]:
        """The ids of the mounts that it sees."""
        return {line.split(" ", 1)[0] for line in self._read("mountinfo").splitlines()}

    def stat_of(self, number: int) -> os.stat_result | None:
        """Return the status of what a descriptor leads to."""
        return self._look(os.stat, f"fd/{number}")

    def told_of(self, number: int, name: str) -> str | None:
        """Return what Linux says of a descriptor under that name, as "mnt_id"."""
        found = re.search(rf"^{name}:\s*(\S+)", self._read(f"fdinfo/{number}"), re.M)
        return found[1] if found else None

    def protocol_of(self, number: int) -> str:
        """Return the protocol of a socket, as "TCPv6"; "" if that is not to be seen."""
        name = self._look(lambda path: os.getxattr(path, "system.sockprotoname"), f"fd/{number}") or b""
        return name.rstrip(b"\0").decode()

    def namespace(self, kind: str) -> str | None:
        """Return which namespace it is in."""
        return self._look(os.readlink, f"ns/{kind}")

    def _read(self, name: str) -> str:
        return self._look(lambda path: Path(path).read_text(errors="replace"), name) or ""

    def _look(self, look: Callable[[str], T], name: str) -> T | None:
        with contextlib.suppress(OSError):
            return look(f"/proc/{self.pid}/{name}")
        return None

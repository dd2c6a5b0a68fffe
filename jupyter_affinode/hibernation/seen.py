"""One process as /proc shows it. What has ended by then, or may not be looked at, has nothing."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..keeping.processes import SESSION_FIELD, START_FIELD
from ..printable import printable

T = TypeVar("T")

# From here on a descriptor is the shim's (shim/src/host/disk_file.c): it has closed them when the process is written.
SHIMS_DESCRIPTORS = 512
# Mapped or open, and written with the process: they are in no file system that another program sees.
NOT_ON_A_DISK = ("/memfd:", "/dev/zero", "/affinode-lot", "/anon_hugepage")
SHIMS_PAGE = "/memfd:affinode-page"  # shim/src/state/status_page.c
SYSTEM_V = "/SYSV"  # shared memory, in a list of what is mapped
DELETED = " (deleted)"
MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+) +(/.*)$", re.M)
SOCKET = re.compile(r"socket:\[(\d+)\]")
ESTABLISHED, LISTENING = "01", "0A"  # in /proc/net/tcp
LOCK = re.compile(r"^lock:\s*\d+: (\w+)\s+\w+\s+(READ|WRITE) \S+ \S+ (\d+) (\d+|EOF)", re.M)
STATE, PARENT, GROUP = 0, 1, 2  # of /proc/PID/stat, counted from behind the program's name
COMMAND_MAX = 60  # characters of a command in a sentence


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
    def command(self) -> str:
        """The command by which it was started, short and printable, or its name."""
        words = self._read("cmdline").rstrip("\0").replace("\0", " ")
        shown = printable(words or self.name)
        return shown if len(shown) <= COMMAND_MAX else f"{shown[: COMMAND_MAX - 1]}…"

    def variable(self, name: str) -> str | None:
        """Return a variable of the environment that it was started with."""
        begin = f"{name}="
        found = (each for each in self._environ if each.startswith(begin))
        return next((each.removeprefix(begin) for each in found), None)

    @cached_property
    def _environ(self) -> list[str]:
        return self._read("environ").split("\0")

    @cached_property
    def stat(self) -> list[str]:
        """The fields of its stat from its state on; [] of one that is gone."""
        return self._read("stat").rpartition(")")[2].split()

    @property
    def is_dead(self) -> bool:
        """Whether it is gone, or has ended and its parent has not noted that."""
        return not self.stat or self.stat[STATE] in "ZX"

    @property
    def parent(self) -> int:
        """Its parent's process id."""
        return self._number(PARENT)

    @property
    def group(self) -> int:
        """Its process group."""
        return self._number(GROUP)

    @property
    def session(self) -> int:
        """Its session."""
        return self._number(SESSION_FIELD)

    @property
    def began(self) -> int:
        """When it was started, in ticks after the machine's start."""
        return self._number(START_FIELD)

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
    def listening(self) -> list[tuple[int, str, int]]:
        """The TCP sockets of its network namespace that listen: inode, address, port."""
        found = []
        for name in ("net/tcp", "net/tcp6"):
            for row in (line.split() for line in self._read(name).splitlines()[1:]):
                if len(row) > 9 and row[3] == LISTENING:
                    address, _, port = row[1].partition(":")
                    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                    found.append((int(row[9]), str(ipaddress.ip_address(b"".join(words))), int(port, 16)))
        return found

    @property
    def working_folder(self) -> str:
        """Its working folder; "" of one that may not be looked at."""
        return self._look(os.readlink, "cwd") or ""

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

    def flags_of(self, number: int) -> int:
        """Return the flags with which a descriptor was opened."""
        return int(self.told_of(number, "flags") or "0", 8)

    def locks_of(self, number: int) -> list[list[Any]]:
        """Return its locks on a file: kind ("FLOCK"), access ("WRITE"), first and last byte, 0 for the file's end."""
        found = LOCK.findall(self._read(f"fdinfo/{number}"))
        return [
            [kind, access, int(begin), 0 if end == "EOF" else int(end)] for kind, access, begin, end in found
        ]

    def protocol_of(self, number: int) -> str:
        """Return the protocol of a socket, as "TCPv6"; "" if that is not to be seen."""
        name = self._look(lambda path: os.getxattr(path, "system.sockprotoname"), f"fd/{number}") or b""
        return name.rstrip(b"\0").decode()

    def namespace(self, kind: str) -> str | None:
        """Return which namespace it is in."""
        return self._look(os.readlink, f"ns/{kind}")

    def _number(self, field: int) -> int:
        return int(self.stat[field]) if len(self.stat) > field else 0

    def _read(self, name: str) -> str:
        return self._look(lambda path: Path(path).read_text(errors="replace"), name) or ""

    def _look(self, look: Callable[[str], T], name: str) -> T | None:
        with contextlib.suppress(OSError):
            return look(f"/proc/{self.pid}/{name}")
        return None


def everything() -> Iterator[Seen]:
    """Yield all processes that /proc shows."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            yield Seen(int(name))


def is_deleted(path: str) -> bool:
    """Return whether a file that is open or mapped has lost its name, or that name another has now."""
    return path.endswith(DELETED) and not path.startswith((*NOT_ON_A_DISK, SYSTEM_V))

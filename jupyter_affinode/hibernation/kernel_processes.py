"""A kernel's processes, what they have together, and what they have of the program that started them.

That is its input and output: a pipe, a terminal, a socket of systemd's journal, a log. None of it can be had again when
the kernel is woken, perhaps long after that program has ended, so /dev/null is there then (criu_files.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from .seen import SHIMS_DESCRIPTORS, Seen, everything, is_deleted
from .unix_sockets import Peer, unix_peers

PIPE = re.compile(r"pipe:\[\d+\]")
TERMINAL = re.compile(r"/dev/(pts/.*|tty\d+|console)")
JOURNAL = "/run/systemd/journal/stdout"  # the name of the other end of what a service of systemd's prints to
OUTPUT = (1, 2)
STATUS_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK


class Outer(NamedTuple):
    """A descriptor that leads to what another program gave the kernel, and is /dev/null at the wake."""

    pid: int
    number: int
    flags: int  # with which it was opened
    external: str = ""  # how CRIU is told to write it all the same


def may_open(path: str, flags: int) -> bool:
    """Return whether this user may open a file in the way in which it was opened."""
    mode = flags & os.O_ACCMODE
    needs = {os.O_RDONLY: os.R_OK, os.O_WRONLY: os.W_OK}.get(mode, os.R_OK | os.W_OK)
    return os.access(path, needs, effective_ids=True)


class Processes:
    """A kernel's processes, and what they have together."""

    def __init__(self, pids: Iterable[int]):
        """Look at nothing yet."""
        self.all = [Seen(pid) for pid in pids]
        self.pids = {each.pid for each in self.all}

    @cached_property
    def others(self) -> list[Seen]:
        """All other processes that /proc shows."""
        return [each for each in everything() if each.pid not in self.pids]

    @cached_property
    def pipes_elsewhere(self) -> dict[str, list[Seen]]:
        """Which others have a pipe of these processes open, by what their descriptors lead to."""
        own = {target for each in self.all for target in each.opened.values() if PIPE.fullmatch(target)}
        found: dict[str, list[Seen]] = {}
        for each in self.others:
            for target in own.intersection(each.opened.values()):
                found.setdefault(target, []).append(each)
        return found

    @cached_property
    def sockets(self) -> dict[int, Seen]:
        """Which process has a socket, by its inode."""
        return {inode: each for each in self.all for inode in each.sockets}

    @cached_property
    def peers(self) -> dict[int, Peer]:
        """All Unix sockets here, by inode."""
        return unix_peers()

    @cached_property
    def terminals(self) -> set[str]:
        """The pseudo-terminals that are led from one of the processes."""
        masters = [
            (each, number)
            for each in self.all
            for number, target in each.opened.items()
            if target.endswith("/ptmx")
        ]
        return {f"/dev/pts/{each.told_of(number, 'tty-index')}" for each, number in masters}

    @cached_property
    def adapters(self) -> dict[int, Seen]:
        """debugpy's programs between a front end and a process, which are no children of it, by their sockets."""
        found = dict[int, Seen]()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if b"debugpy/adapter" in path.read_bytes():
                    adapter = Seen(int(path.parent.name))
                    found |= dict.fromkeys(adapter.sockets, adapter)
        return found

    @cached_property
    def connections(self) -> list[tuple[Seen, Seen]]:
        """Which of the processes and of the adapters are connected to which by TCP."""
        owners = self.adapters | self.sockets
        rows = self.all[0].established if self.all else []
        ends = {(local, remote): owners[inode] for local, remote, inode in rows if inode in owners}
        return [
            (one, ends[remote, local]) for (local, remote), one in ends.items() if (remote, local) in ends
        ]

    @cached_property
    def outer(self) -> dict[tuple[int, int], Outer]:
        """Which descriptors lead to what another program gave the kernel, by process and number."""
        found = (
            self._outer(each, number, target)
            for each in self.all
            for number, target in each.opened.items()
            if number < SHIMS_DESCRIPTORS
        )
        return {(each.pid, each.number): each for each in found if each is not None}

    @cached_property
    def outer_sockets(self) -> set[int]:
        """The inodes of sockets among these."""
        named = (each.external for each in self.outer.values() if each.external.startswith("unix["))
        return {int(each[len("unix[") : -1]) for each in named}

    def _outer(self, process: Seen, number: int, target: str) -> Outer | None:
        external = None
        if PIPE.fullmatch(target):
            external = "" if self._is_given(self.pipes_elsewhere.get(target, ())) else None
        elif target.startswith("socket:"):
            external = self._outer_socket(int(target[len("socket:[") : -1]))
        elif TERMINAL.fullmatch(target) and target not in self.terminals:
            status = process.stat_of(number)
            external = f"tty[{status.st_rdev:x}:{status.st_dev:x}]" if status is not None else None
        elif target.startswith("/"):
            external = "" if self._is_lost_log(process, number, target) else None
        return None if external is None else Outer(process.pid, number, process.flags_of(number), external)

    def _is_given(self, holders: Iterable[Seen]) -> bool:
        """Whether what others have too, and has no name, is from before the kernel: then one of them gave it."""
        began = [each.began for each in holders]
        return bool(began) and max(began) <= self.all[0].began

    def _outer_socket(self, inode: int) -> str | None:
        other = self.peers.get(inode, Peer()).peer
        if not other or other in self.sockets:
            return None
        name = self.peers.get(other, Peer()).name
        holders = [each for each in self.others if other in each.sockets] if not name else []
        return f"unix[{inode}]" if name == JOURNAL or self._is_given(holders) else None

    def _is_lost_log(self, process: Seen, number: int, target: str) -> bool:
        """Whether it is a file that the kernel only writes to, and that its user cannot open again."""
        status = process.stat_of(number)
        if status is None or not stat.S_ISREG(status.st_mode):
            return False
        flags = process.flags_of(number)
        if flags & os.O_ACCMODE != os.O_WRONLY or not self._is_only_written((status.st_dev, status.st_ino)):
            return False
        is_gone = is_deleted(target) and not status.st_nlink
        return is_gone or (not is_deleted(target) and not may_open(target, flags))

    @cached_property
    def logs(self) -> set[str]:
        """The files that the kernel only writes to as its output, as a batch system's: made anew if they are gone.

        They are the output of one of its processes, or of an older program, too.
        """
        older = [each for each in self.others if each.began <= self.all[0].began]
        found = set()
        for process in self.all:
            for number, path in process.opened.items():
                status = (
                    process.stat_of(number) if path.startswith("/") and number < SHIMS_DESCRIPTORS else None
                )
                if status is None or not stat.S_ISREG(status.st_mode) or is_deleted(path):
                    continue
                is_output = number in OUTPUT or any(path in each.opened.values() for each in older)
                if is_output and self._is_only_written((status.st_dev, status.st_ino)):
                    found.add(path)
        return found

    def _is_only_written(self, file: tuple[int, int]) -> bool:
        flags = self._flags_of_files.get(file, [])
        return bool(flags) and all(each & os.O_ACCMODE == os.O_WRONLY for each in flags)

    @cached_property
    def _flags_of_files(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for process, number in ((each, number) for each in self.all for number in each.opened):
            if (status := process.stat_of(number)) is not None and stat.S_ISREG(status.st_mode):
                found.setdefault((status.st_dev, status.st_ino), []).append(process.flags_of(number))
        return found

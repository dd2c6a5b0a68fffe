"""Host memory, where parked bytes go: the machine's free memory, and what a process's own limits leave it.

Read from /proc and the cgroup files (v1 and v2) by the controller before every decision.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# What the kernel counts as available, of the machine's memory too (MemAvailable in Documentation/filesystems/proc.rst):
# a cgroup that is full drops the pages of files on both its lists. The libraries of twenty kernels are gigabytes of it.
V2_CACHE: tuple[str, ...] = ("inactive_file", "active_file", "slab_reclaimable")
V1_CACHE: tuple[str, ...] = ("total_inactive_file", "total_active_file")
PROCESS_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"HugetlbPages:")
CGROUP_FILE_MAX = 1 << 16
UNLIMITED = 1 << 60  # cgroup v1 writes a figure near 2**63 for "no limit"


@dataclass(frozen=True)
class HostMemory:
    """MemTotal and MemAvailable of the machine (see proc(5))."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class CgroupMemory:
    """One memory limit above a process."""

    path: str  # of the cgroup that limits; processes of one path share its headroom
    headroom_bytes: int
    limit_bytes: int


def host_memory() -> HostMemory:
    """Return the machine's memory now. Never keep it: some virtual machines get more while they run."""
    figures = {}
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                figures[name] = int(rest.split()[0]) * 1024
    return HostMemory(figures["MemTotal"], figures["MemAvailable"])


def memory_of_process(pid: int) -> int | None:
    """Return the memory that a process has, pages of files on a disk left out; None if it cannot be seen.

    The figures are counters of the kernel's (proc_pid_status(5)): no lock of the process is waited for.
    """
    if pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/status", "rb") as lines:
            figures = [line.split() for line in lines if line.startswith(PROCESS_MEMORY)]
    except OSError:
        return None
    return sum(int(figure[1]) * 1024 for figure in figures)


Known = dict[str, CgroupMemory | None]


def cgroup_memory(pid: int, proc: Path = Path("/proc")) -> CgroupMemory | None:
    """Return the tightest cgroup limit on a process's memory; None if there is none, or the process is gone."""
    return min(cgroup_limits(pid, proc), key=lambda limit: limit.headroom_bytes, default=None)


def cgroup_limits(
    pid: int, proc: Path = Path("/proc"), known: Known | None = None
) -> tuple[CgroupMemory, ...]:
    """Return every cgroup limit on a process's memory, the nearest first; a parent's is shared with others of its
    children.

    `known` are cgroups that were read a moment ago, and gets what is read now: processes share them.
    """
    known = {} if known is None else known
    limits = []
    for folder, top, is_v2 in _memory_folders(_first_bytes(f"{proc}/{pid}/cgroup"), proc):
        while True:
            if folder not in known:
                known[folder] = _limit(Path(folder), is_v2)
            found = known[folder]
            if found is not None:
                limits.append(found)
            if folder in (top, "/"):
                break
            folder = folder.rpartition("/")[0] or "/"
    return tuple(limits)


def _first_bytes(path: str) -> bytes:
    """Return what /proc says of a process, which fits into one read; nothing if the process is gone.

    Made for every process in every pass, so without a file object.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, CGROUP_FILE_MAX)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


@lru_cache(maxsize=512)
def _memory_folders(told: bytes, proc: Path) -> tuple[tuple[str, str, bool], ...]:
    """Return a process's cgroup in each hierarchy that limits memory: (folder, top of the mount, is it v2).

    `told`: its /proc/PID/cgroup. Most processes are where others are.
    """
    folders = []
    for line in told.decode(errors="surrogateescape").split("\n"):
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        is_v2 = controllers == ""
        if not colon or (not is_v2 and "memory" not in controllers.split(",")):
            continue
        mount = _mount(str(proc), is_v2)
        if mount is None:
            continue
        top, root = mount
        inside = os.path.relpath(path, root) if path.startswith(root.rstrip("/") + "/") else path.lstrip("/")
        folder = top / inside
        is_there = os.path.isdir(folder)  # Path.is_dir raises where its owner made the path too long
        folders.append((str(folder if is_there else top), str(top), is_v2))
    return tuple(folders)


@lru_cache(maxsize=8)
def _mount(proc: str, is_v2: bool) -> tuple[Path, str] | None:
    """Return where a hierarchy is mounted for us, and which of its folders that shows: (mount point, root)."""
    try:
        lines = _lines(Path(proc) / "self" / "mountinfo")
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind == ("cgroup2" if is_v2 else "cgroup") and (
            is_v2 or "memory" in options.split()[-1].split(",")
        ):
            fields = before.split()
            return Path(fields[4]), fields[3]
    return None


def _lines(path: Path) -> list[str]:
    """Return lines in which names may be any bytes but a newline: users name their own cgroups, and where they
    mount.
    """
    return path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")


def _limit(folder: Path, is_v2: bool) -> CgroupMemory | None:
    """Return one cgroup's limit, page cache that can be dropped counted as free; None without a limit."""
    if is_v2:
        limits = [_figure(folder / name) for name in ("memory.max", "memory.high")]
        used, cache = _figure(folder / "memory.current"), V2_CACHE
    else:
        limits = [_figure(folder / "memory.limit_in_bytes")]
        used, cache = _figure(folder / "memory.usage_in_bytes"), V1_CACHE
    known = [limit for limit in limits if limit is not None and limit < UNLIMITED]
    if not known or used is None:
        return None
    headroom = max(min(known) - used + _stat(folder / "memory.stat", cache), 0)
    return CgroupMemory(str(folder), headroom, min(known))


def _figure(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat(path: Path, names: tuple[str, ...]) -> int:
    """Return the sum of these lines of a memory.stat; missing ones count as 0."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(figure) for name, _, figure in (line.partition(" ") for line in lines) if name in names)

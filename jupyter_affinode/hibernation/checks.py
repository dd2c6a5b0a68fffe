"""What stands against writing a kernel's processes to disk, looked at before anything is done.

CRIU finds most of it, too, but late: what was on the GPU has been written then, and that can take minutes. And what it
says is meant for its developers. Each sentence here says what to do, unless nothing can be done.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..units import bytes_in_words
from . import criu
from .unix_sockets import Peer, unix_peers

# From here on a descriptor is the shim's (shim/src/host/disk_file.c): it has closed them when the process is written.
SHIMS_DESCRIPTORS = 512
# Its files of an image that was given up (shim/src/host/pack.h): they get names again.
SHIMS_PACKS = re.compile(r"/gpu-\d+\.\d+ \(deleted\)$")
# The shim hangs up before the process is written. The second: a controller listens before its socket gets its name.
CONTROLLERS_SOCKETS = ("/link.sock", "/link.soc~")
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user")
ESTABLISHED = "01"  # in /proc/net/tcp
MEMORY, TERMINALS, PSEUDO_TERMINALS = 1, 5, range(136, 144)  # majors of devices that CRIU writes
# Of what Linux calls anon_inode: that CRIU writes, and what helps against another.
WRITABLE = ("eventfd", "eventpoll", "timerfd", "signalfd", "inotify", "fanotify", "pidfd")
ADVICE = {"io_uring": "; with UV_USE_IO_URING=0 libuv does without"}
PROTOCOLS = re.compile(r"UNIX(-STREAM)?|NETLINK|PACKET|(TCP|UDP|UDP-Lite|UDPLITE|RAW|PING)(v6)?")
MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+) +(/.*)$", re.M)
OF_A_PROCESS = re.compile(r"/proc/(\d+)/")
NOT_ON_A_DISK = (
    "/memfd:",
    "/dev/zero",
    "/affinode-lot",
    "/anon_hugepage",
)  # mapped, and written with the process
SECRET = "/secretmem"  # of memfd_secret


@dataclass(frozen=True)
class Mapping:
    """A file that a process has in memory."""

    size: int
    permissions: str
    inode: int
    path: str


class Seen:
    """One process, as /proc shows it."""

    def __init__(self, pid: int):
        """Look at nothing yet. What has ended by then has nothing open."""
        self.pid = pid

    @cached_property
    def status(self) -> dict[str, str]:
        """The lines of its status."""
        lines = self._read("status").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @cached_property
    def name(self) -> str:
        """What it is called in a sentence."""
        return f"its process {self.pid} ({self.status.get('Name', '?')})"

    @cached_property
    def opened(self) -> dict[int, str]:
        """What its descriptors lead to."""
        found = {}
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{self.pid}/fd"):
                with contextlib.suppress(OSError):
                    found[int(number)] = os.readlink(f"/proc/{self.pid}/fd/{number}")
        return found

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

    def stat_of(self, number: int) -> os.stat_result | None:
        """Return the status of what a descriptor leads to."""
        with contextlib.suppress(OSError):
            return os.stat(f"/proc/{self.pid}/fd/{number}")
        return None

    def told_of(self, number: int, name: str) -> str | None:
        """Return what Linux says of a descriptor under that name, as "mnt_id"."""
        found = re.search(rf"^{name}:\s*(\S+)", self._read(f"fdinfo/{number}"), re.M)
        return found[1] if found else None

    def protocol_of(self, number: int) -> str | None:
        """Return the protocol of a socket, as "TCPv6"; None if that is not to be seen."""
        with contextlib.suppress(OSError):
            return os.getxattr(f"/proc/{self.pid}/fd/{number}", "system.sockprotoname").rstrip(b"\0").decode()
        return None

    @cached_property
    def mounts(self) -> set[str]:
        """The ids of the mounts that it sees."""
        return {line.split(" ", 1)[0] for line in self._read("mountinfo").splitlines()}

    def namespace(self, kind: str) -> str:
        """Return which namespace it is in; "" if that is not to be seen."""
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{self.pid}/ns/{kind}")
        return ""

    def terminal_of(self, number: int) -> str | None:
        """Return the pseudo-terminal that is led from a descriptor of its master."""
        index = self.told_of(number, "tty-index")
        return f"/dev/pts/{index}" if index else None

    def _read(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/{name}").read_text(errors="replace")
        return ""


def _another_users(all_of_it: list[Seen]) -> str | None:
    for each in all_of_it:
        users = {int(uid) for uid in each.status.get("Uid", "").split()}
        if users - {os.geteuid()}:
            return f"{each.name} runs as another user ({max(users - {os.geteuid()})}): end it first"
    return None


def _more_rights(all_of_it: list[Seen]) -> str | None:
    ours = criu.capabilities("self")
    for each in all_of_it:
        if int(each.status.get("CapPrm", "0"), 16) & ~ours:
            return f"{each.name} has rights (capabilities) that its keeper has not: end it first"
    return None


def _traced(all_of_it: list[Seen]) -> str | None:
    for each in all_of_it:
        if (tracer := each.status.get("TracerPid", "0")) != "0":
            return f"a debugger (process {tracer}) is attached to {each.name}: detach it first"
    return None


def _may_not_attach(all_of_it: list[Seen]) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        if int(YAMA.read_text()) and not criu.is_privileged():
            return (
                "Linux lets no program attach to others here (kernel.yama.ptrace_scope): an administrator allows it"
                " within one user's programs by `sysctl -w kernel.yama.ptrace_scope=0`"
            )
    return None


def _seccomp(all_of_it: list[Seen]) -> str | None:
    if criu.is_privileged():
        return None
    for each in all_of_it:
        if each.status.get("Seccomp", "0") != "0":
            return (
                f"{each.name} runs under a seccomp filter, which only root can write to disk: the container must be"
                " started without one (seccomp=unconfined, seccompProfile Unconfined)"
            )
    return None


def _other_namespaces(all_of_it: list[Seen]) -> str | None:
    here = Seen(os.getpid())
    for each in all_of_it:
        for kind in NAMESPACES:
            if (there := each.namespace(kind)) and there != here.namespace(kind):
                return f"{each.name} runs in a container or namespace of its own ({kind}): end it first"
    return None


def _unwritable(all_of_it: list[Seen]) -> str | None:
    ours = {each.pid for each in all_of_it}
    for each in all_of_it:
        paths = (*each.opened.values(), *(part.path for part in each.mapped))
        if any(path.startswith(SECRET) for path in paths):
            return f"{each.name} uses secret memory (memfd_secret), which cannot be written to disk"
        for number, target in each.opened.items():
            if what := _unwritable_at(each, number, target, ours):
                return f"{each.name} {what}"
    return None


def _unwritable_at(process: Seen, number: int, target: str, ours: set[int]) -> str | None:
    """Return what a descriptor leads to that cannot be written, after "its process 7"."""
    kind = target.removeprefix("anon_inode:").strip("[]")
    if target.startswith("anon_inode:") and kind not in WRITABLE:
        return f"uses {kind}, which cannot be written to disk{ADVICE.get(kind, '')}"
    if kind == "pidfd" and (pid := int(process.told_of(number, "Pid") or -1)) > 0 and pid not in ours:
        return f"watches a process that is not its own (a pidfd of {pid}): close that first"
    if target.startswith("socket:"):
        protocol = process.protocol_of(number)
        is_known = protocol is None or PROTOCOLS.fullmatch(protocol)
        return (
            None if is_known else f"has a socket open ({protocol}) that cannot be written to disk: close it"
        )
    if target.startswith("/dev/infiniband/"):
        return f"uses RDMA ({target}), which cannot be written to disk"
    if target.startswith("/dev/nvidia"):
        return None  # of a context that leaves the GPU before
    status = process.stat_of(number) if target.startswith("/dev/") else None
    if status is not None and _is_unknown_device(status):
        return f"has a device open ({target}), which cannot be written to disk: close it first"
    if target.startswith("/") and not target.startswith(NOT_ON_A_DISK):
        mount = process.told_of(number, "mnt_id")
        if mount is not None and process.mounts and mount not in process.mounts:
            return f"has a file of a mount open that it does not see ({target}), as a message queue: close it first"
    return None


def _is_unknown_device(status: os.stat_result) -> bool:
    if stat.S_ISBLK(status.st_mode):
        return True
    major = os.major(status.st_rdev)
    return stat.S_ISCHR(status.st_mode) and major not in (MEMORY, TERMINALS, *PSEUDO_TERMINALS)


def _unix_sockets(all_of_it: list[Seen]) -> str | None:
    peers = unix_peers()
    ours = {inode for each in all_of_it for inode in _sockets(each)}
    for each in all_of_it:
        for inode in _sockets(each):
            peer = peers.get(inode, Peer()).peer
            if not peer or peer in ours:
                continue
            name = peers.get(peer, Peer()).name
            if not name.endswith(CONTROLLERS_SOCKETS):
                words = f" ({name})" if name else ""
                return (
                    f"{each.name} is connected to another program by a Unix socket{words}: close it, or end that"
                    " process"
                )
    return None


def _own_connections(all_of_it: list[Seen]) -> str | None:
    """What its processes say to each other by TCP ends, and so does a debugger: no end of that connects again."""
    adapters = _debug_adapters()
    owners = {inode: each for each in (*all_of_it, *adapters) for inode in _sockets(each)}
    rows = all_of_it[0].established if all_of_it else []
    ends = {(local, remote): owners[inode] for local, remote, inode in rows if inode in owners}
    for (local, remote), one in ends.items():
        other = ends.get((remote, local), one)
        if other in adapters and one not in adapters:
            return f"a debugger is attached to {one.name}: switch it off, or restart the kernel"
        if other is not one and one not in adapters:  # libzmq connects a process to itself, and does so again
            return f"{one.name} and {other.name} are connected by TCP, as in a cluster of its own: end that first"
    return None


def _debug_adapters() -> list[Seen]:
    """Return the programs of debugpy that stand between a front end and a process; they are no children of it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"debugpy/adapter" in path.read_bytes():
                found.append(Seen(int(path.parent.name)))
    return found


def _sockets(process: Seen) -> Iterable[int]:
    for target in process.opened.values():
        if target.startswith("socket:["):
            yield int(target[len("socket:[") : -1])


def _terminals(all_of_it: list[Seen]) -> str | None:
    masters = {
        each.terminal_of(number)
        for each in all_of_it
        for number, target in each.opened.items()
        if target.endswith("/ptmx")
    }
    for each in all_of_it:
        for target in each.opened.values():
            is_terminal = target.startswith("/dev/pts/") or re.fullmatch(r"/dev/(tty\d+|console)", target)
            if is_terminal and target not in masters:
                return f"{each.name} has a terminal open that another program has, too ({target}): close it first"
    return None


def _deleted_files(all_of_it: list[Seen]) -> str | None:
    for each in all_of_it:
        for number, target in each.opened.items():
            status = each.stat_of(number) if target.endswith(" (deleted)") else None
            if status is None or number >= SHIMS_DESCRIPTORS or target.startswith(NOT_ON_A_DISK):
                continue
            if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_size > criu.GHOST_BYTES:
                return _too_large(each, target, status.st_size)
        sizes: dict[str, int] = {}
        for part in each.mapped:
            if part.path.endswith(" (deleted)") and not part.path.startswith((*NOT_ON_A_DISK, "/SYSV")):
                sizes[part.path] = sizes.get(part.path, 0) + part.size
        for path, size in sizes.items():
            is_shims = any(
                target == path for number, target in each.opened.items() if number >= SHIMS_DESCRIPTORS
            )
            if size > criu.GHOST_BYTES and not (is_shims or SHIMS_PACKS.search(path)):
                return _too_large(each, path, size)
    return None


def _too_large(process: Seen, path: str, size: int) -> str:
    return (
        f"{process.name} uses a file of {bytes_in_words(size)} that was deleted ({path.removesuffix(' (deleted)')}):"
        f" only smaller ones, up to {bytes_in_words(criu.GHOST_BYTES)}, are written with it"
    )


def _other_processes_files(all_of_it: list[Seen]) -> str | None:
    """Without that process the kernel could not be woken."""
    own = {str(each.pid) for each in all_of_it}
    for each in all_of_it:
        for target in each.opened.values():
            found = OF_A_PROCESS.match(target)
            if found and found[1] not in own:
                return f"{each.name} has a file of another process open ({target}): close it first"
    return None


def _shared_memory(all_of_it: list[Seen]) -> str | None:
    for each in all_of_it:
        if any(part.path.startswith("/SYSV") for part in each.mapped):
            return f"{each.name} uses System V shared memory, which cannot be written to disk"
    return None


# The first that says something counts: what concerns rights comes first.
CHECKS: tuple[Callable[[list[Seen]], str | None], ...] = (
    _another_users,
    _more_rights,
    _traced,
    _may_not_attach,
    _seccomp,
    _other_namespaces,
    _unwritable,
    _unix_sockets,
    _own_connections,
    _terminals,
    _deleted_files,
    _other_processes_files,
    _shared_memory,
)


def objection_to_writing(pids: Iterable[int]) -> str | None:
    """Return why a kernel's processes cannot be written to disk as they are now; None: nothing is known against it."""
    all_of_it = [Seen(pid) for pid in pids]
    return next((found for check in CHECKS if (found := check(all_of_it))), None)


def objection_to_rights(pids: Iterable[int]) -> str | None:
    """Return why processes that were started from an image must not go on: they have rights that we have not."""
    all_of_it = [Seen(pid) for pid in pids]
    return _another_users(all_of_it) or _more_rights(all_of_it)

"""What stands against writing a kernel's processes to disk, looked at before anything is done.

CRIU finds most of it, too, but late: what was on the GPU has been written then, and that can take minutes. And what it
says is meant for its developers. Each sentence here says what to do, unless nothing can be done.

A check is a function in CHECKS. It gets a process, and all of the kernel's, and returns the sentence or None.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from .. import environment
from ..units import bytes_in_words
from . import criu, tree
from .kernel_processes import TERMINAL, Processes, may_open
from .seen import DELETED, NOT_ON_A_DISK, SHIMS_DESCRIPTORS, SHIMS_PAGE, SYSTEM_V, Seen, is_deleted
from .unix_sockets import Peer

# The shim's files of an image that was given up (shim/src/host/pack.h): they get names again.
SHIMS_PACKS = re.compile(r"/gpu-\d+\.\d+ \(deleted\)$")
# The shim hangs up before the process is written. The second: a controller listens before its socket gets its name.
CONTROLLERS_SOCKETS = ("/link.sock", "/link.soc~")
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user")
MEMORY, TERMINALS, PSEUDO_TERMINALS = 1, 5, range(136, 144)  # majors of devices that CRIU writes
# Of what Linux calls anon_inode: that CRIU writes, and what helps against another.
WRITABLE = ("eventfd", "eventpoll", "timerfd", "signalfd", "inotify", "fanotify", "pidfd")
ADVICE = {"io_uring": "; with UV_USE_IO_URING=0 libuv does without"}
# Of sockets that CRIU writes; "": it is not to be seen.
PROTOCOLS = re.compile(r"|UNIX(-STREAM)?|NETLINK|PACKET|(TCP|UDP|UDP-Lite|UDPLITE|RAW|PING)(v6)?")
OF_A_PROCESS = re.compile(r"/proc/(\d+)/")
UNWRITABLE_MEMORY = {"/secretmem": "secret memory (memfd_secret)", SYSTEM_V: "System V shared memory"}

ALONE = (
    "`setsid COMMAND </dev/null >FILE 2>&1 &`"  # in no group or session of a kernel's, and with no pipe to it
)

Check = Callable[[Seen, "Processes"], "str | None"]


def _another_user(process: Seen, kernel: Processes) -> str | None:
    others = {int(uid) for uid in process.status.get("Uid", "").split()} - {os.geteuid()}
    return f"{process} runs as another user ({max(others)}): end it first" if others else None


def _more_rights(process: Seen, kernel: Processes) -> str | None:
    if int(process.status.get("CapPrm", "0"), 16) & ~criu.capabilities("self"):
        return f"{process} has rights (capabilities) that its keeper has not: end it first"
    return None


def _traced(process: Seen, kernel: Processes) -> str | None:
    if (tracer := process.status.get("TracerPid", "0")) != "0":
        return f"a debugger (process {tracer}) is attached to {process}: detach it first"
    return None


def _may_not_attach(process: Seen, kernel: Processes) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        if int(YAMA.read_text()) and not criu.is_privileged():
            return (
                "Linux lets no program attach to others here (kernel.yama.ptrace_scope): an administrator allows it"
                " within one user's programs by `sysctl -w kernel.yama.ptrace_scope=0`"
            )
    return None


def _seccomp(process: Seen, kernel: Processes) -> str | None:
    if process.status.get("Seccomp", "0") != "0" and not criu.is_privileged():
        return (
            f"{process} runs under a seccomp filter, which only root can write to disk: the container must be"
            " started without one (seccomp=unconfined, seccompProfile Unconfined)"
        )
    return None


def _other_namespace(process: Seen, kernel: Processes) -> str | None:
    here = Seen(os.getpid())
    for kind in NAMESPACES:
        if (there := process.namespace(kind)) and there != here.namespace(kind):
            return f"{process} runs in a container or namespace of its own ({kind}): end it first"
    return None


def _memory(process: Seen, kernel: Processes) -> str | None:
    paths = [*process.opened.values(), *(part.path for part in process.mapped)]
    found = (name for prefix, name in UNWRITABLE_MEMORY.items() for path in paths if path.startswith(prefix))
    return next((f"{process} uses {name}, which cannot be written to disk" for name in found), None)


def _descriptors(process: Seen, kernel: Processes) -> str | None:
    found = (
        _descriptor(process, kernel, number, target)
        for number, target in process.opened.items()
        if (process.pid, number) not in kernel.outer
    )
    return next((f"{process} {what}" for what in found if what), None)


def _descriptor(process: Seen, kernel: Processes, number: int, target: str) -> str | None:
    """Return what a descriptor leads to that cannot be written, after "its process 7"."""
    kind = target.removeprefix("anon_inode:").strip("[]")
    if target.startswith("anon_inode:") and kind not in WRITABLE:
        return f"uses {kind}, which cannot be written to disk{ADVICE.get(kind, '')}"
    if kind == "pidfd" and (pid := int(process.told_of(number, "Pid") or -1)) > 0 and pid not in kernel.pids:
        return f"watches a process that is not its own (a pidfd of {pid}): close that first"
    if target.startswith("socket:") and not PROTOCOLS.fullmatch(protocol := process.protocol_of(number)):
        return f"has a socket open ({protocol}) that cannot be written to disk: close it"
    if (owner := OF_A_PROCESS.match(target)) and int(owner[1]) not in kernel.pids:
        return f"has a file of another process open ({target}): close it first"  # without that it could not be woken
    if target.startswith("/dev/infiniband/"):
        return f"uses RDMA ({target}), which cannot be written to disk"
    if TERMINAL.fullmatch(target) and target not in kernel.terminals:
        return f"has a terminal open that another program has, too ({target}): close it first"
    if target.startswith("/dev/nvidia"):
        return None  # of a context that leaves the GPU before
    status = process.stat_of(number) if target.startswith("/dev/") else None
    if status is not None and _is_unknown_device(status):
        return f"has a device open ({target}), which cannot be written to disk: close it first"
    mount = process.told_of(number, "mnt_id") if target.startswith("/") else None
    if mount and mount not in process.mounts and process.mounts and not target.startswith(NOT_ON_A_DISK):
        return (
            f"has a file of a mount open that it does not see ({target}), as a message queue: close it first"
        )
    if (
        target.startswith("/")
        and number < SHIMS_DESCRIPTORS
        and not target.startswith((*NOT_ON_A_DISK, "/proc/"))
        and not is_deleted(target)
    ):
        return _not_to_be_opened(process, number, target)
    return None


def _not_to_be_opened(process: Seen, number: int, target: str) -> str | None:
    status = process.stat_of(number)
    if status is None:
        return None
    is_file = stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISDIR(status.st_mode)
    if is_file and not may_open(target, process.flags_of(number)):
        what = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        return (
            f"has the {what} {target} open, which this user may not open (any more), so it could not be woken: close"
            " it, or have its permissions changed"
        )
    return None


def _is_unknown_device(status: os.stat_result) -> bool:
    is_known = os.major(status.st_rdev) in (MEMORY, TERMINALS, *PSEUDO_TERMINALS)
    return stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not is_known)


def _left_beside(process: Seen, kernel: Processes) -> str | None:
    """A cell's program that is below no process of the kernel's any more, as after `os.system("… &")`."""
    if process is not kernel.all[0]:
        return None
    for each in tree.beside(kernel.pids):
        if each.is_dead:
            return f"process {each.pid} ({each.name}), which a cell started, {tree.not_reaped(each)}"
        return _goes_on_beside(each, "in its process group or session")
    marks = {_mark(each) for each in kernel.all if each.variable(environment.KERNEL_ID)}
    for each in kernel.others:
        if _mark(each) in marks and any(target.startswith(SHIMS_PAGE) for target in each.opened.values()):
            return _goes_on_beside(each, "and uses the GPU")
    return None


def _mark(process: Seen) -> tuple[str | None, ...]:
    """Return by what its controller takes a process for one of a kernel's: another may have a kernel of the same id."""
    return tuple(process.variable(name) for name in (environment.KERNEL_ID, environment.SOCKET))


def _goes_on_beside(other: Seen, how: str) -> str:
    return (
        f"a cell started `{other.command}` (process {other.pid}), which goes on beside the kernel {how}: end it"
        f" (`kill {other.pid}`){'' if 'GPU' in how else '; what is started by ' + ALONE + ' may go on'}"
    )


def _pipes(process: Seen, kernel: Processes) -> str | None:
    """A pipe to a program that a cell left. One to an older program is the kernel's own input or output."""
    for target in process.opened.values():
        for other in kernel.pipes_elsewhere.get(target, ()):
            if other.began > kernel.all[0].began:
                return _goes_on_beside(other, "and has a pipe to it open")
    return None


def _unix_sockets(process: Seen, kernel: Processes) -> str | None:
    for inode in process.sockets:
        peer = kernel.peers.get(inode, Peer()).peer
        name = kernel.peers.get(peer, Peer()).name
        is_outer = inode in kernel.outer_sockets
        if peer and peer not in kernel.sockets and not is_outer and not name.endswith(CONTROLLERS_SOCKETS):
            words = f" ({name})" if name else ""
            return f"{process} is connected to another program by a Unix socket{words}: close it, or end that process"
    return None


def _own_connections(process: Seen, kernel: Processes) -> str | None:
    """What its processes say to each other by TCP ends, and so does a debugger: no end of that connects again."""
    adapters = kernel.adapters.values()
    for one, other in kernel.connections:
        if one is not process:
            continue
        if other in adapters:
            return f"a debugger is attached to {process}: switch it off, or restart the kernel"
        if other is not process:  # libzmq connects a process to itself, and does so again
            return f"{process} and {other} are connected by TCP, as in a cluster of its own: end that first"
    return None


def _deleted_files(process: Seen, kernel: Processes) -> str | None:
    for path, size in _deleted_sizes(process).items():
        if size > criu.GHOST_BYTES:
            return (
                f"{process} uses a file of {bytes_in_words(size)} that was deleted ({path.removesuffix(DELETED)}): only"
                f" smaller ones, up to {bytes_in_words(criu.GHOST_BYTES)}, are written with it"
            )
    return None


def _deleted_sizes(process: Seen) -> Counter[str]:
    """Return the sizes of its deleted files, but of the shim's: they are closed by then, or have names again."""
    sizes = Counter[str]()
    shims = {target for number, target in process.opened.items() if number >= SHIMS_DESCRIPTORS}
    for part in process.mapped:
        if is_deleted(part.path) and part.path not in shims and not SHIMS_PACKS.search(part.path):
            sizes[part.path] += part.size
    for number, target in process.opened.items():
        status = process.stat_of(number) if number < SHIMS_DESCRIPTORS and is_deleted(target) else None
        if status is not None and stat.S_ISREG(status.st_mode) and not status.st_nlink:
            sizes[target] = max(sizes[target], status.st_size)
    return sizes


# The first that says something counts: what concerns rights comes first.
RIGHTS = (_another_user, _more_rights)
CHECKS: tuple[Check, ...] = (
    *RIGHTS,
    _traced,
    _may_not_attach,
    _seccomp,
    _other_namespace,
    _memory,
    _descriptors,
    _unix_sockets,
    _own_connections,
    _left_beside,
    _pipes,
    _deleted_files,
)


def objection_to_writing(pids: Iterable[int]) -> str | None:
    """Return why a kernel's processes cannot be written to disk as they are now; None: nothing is known against it."""
    return objection_to(Processes(pids))


def objection_to_leaving(pids: Iterable[int]) -> str | None:
    """Return why a kernel's processes, which are written and stopped, must not be ended: a program was left since."""
    return objection_to(Processes(pids), (_left_beside, _pipes))


def objection_to_rights(pids: Iterable[int]) -> str | None:
    """Return why processes that were started from an image must not go on: they have rights that we have not."""
    return objection_to(Processes(pids), RIGHTS)


def objection_to(kernel: Processes, checks: Iterable[Check] = CHECKS) -> str | None:
    """Return what the first check says that says something."""
    found = (check(process, kernel) for check in checks for process in kernel.all)
    return next(filter(None, found), None)

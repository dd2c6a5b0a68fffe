"""Files of huge pages: in a tmpfs of our own, which the option huge=always gives them whatever the machine's default.

A memfd has pages of 4 KiB unless the administrator changed shmem_enabled. Pages of 2 MiB are touched, registered with
the GPU, mapped by a second process and freed many times faster.

Root mounts one tmpfs for each file. Its size is the file's limit, as F_SEAL_GROW is a memfd's: no process that has
the descriptor can get more memory out of it. Other users mount one tmpfs for all their files, in a user namespace
that a short-lived process makes: this module, run as a script, so it imports nothing of the package. That tmpfs has
no limit, as a memfd that the same user's processes make has none.

The mounts are attached to no folder. They need fsopen(2) and fsmount(2), of Linux 5.2.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
HELPER_TIMEOUT_S = 5.0
LEAST_SIZE = 4096  # of a tmpfs: 0 is no limit
OPTIONS = {"huge": "always", "mode": "0700"}

# The same on every architecture that Linux has had since 5.2.
SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 430, 431, 432
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE, FSCONFIG_CMD_RECONFIGURE = 1, 6, 7
MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 2, 4, 8
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_numbers = itertools.count(1)


class NoHugeTmpfs(Exception):
    """No tmpfs of huge pages is possible; the message tells why."""


class SizeLimit:
    """The limit of one file's own tmpfs, held to lower it when the file's memory is taken back."""

    def __init__(self, context: int):
        self._context = context

    def shrink(self) -> None:
        """Leave room for one page alone. Raises OSError if the file has more: a process has filled it again."""
        _fsconfig(self._context, FSCONFIG_SET_STRING, "size", str(LEAST_SIZE))
        _fsconfig(self._context, FSCONFIG_CMD_RECONFIGURE)

    def close(self) -> None:
        """Keep the limit as it is."""
        os.close(self._context)


def open_huge_file(size: int) -> tuple[int, SizeLimit | None]:
    """Return the descriptor of a new file of `size` bytes, none touched, and its limit if it has one.

    A user's first call takes as long as a Python takes to start. Raises NoHugeTmpfs, or OSError.
    """
    with contextlib.suppress(OSError):
        if "[deny]" in SHMEM_ENABLED.read_text():
            raise NoHugeTmpfs(f"{SHMEM_ENABLED} is deny")
    if os.geteuid() != 0:
        mount = _own_mount()
        if isinstance(mount, str):
            raise NoHugeTmpfs(mount)
        return _open_in(mount, size), None
    try:
        context, mount = _mount_tmpfs(size=str(size), nr_inodes="2")  # its folder and the file
    except OSError as error:
        raise NoHugeTmpfs(f"{error.filename}: {error.strerror}") from None
    try:
        return _open_in(mount, size), SizeLimit(context)
    except BaseException:
        os.close(context)
        raise
    finally:
        os.close(mount)  # the file keeps the tmpfs


def _open_in(mount: int, size: int) -> int:
    """Return a new file of the mount; it has a name first, which /proc/PID/smaps shows."""
    name = f"affinode-lot-{next(_numbers)}"
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=mount)
    try:
        os.unlink(name, dir_fd=mount)
        os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@lru_cache(maxsize=1)
def _own_mount() -> int | str:
    """Return the mount in a user namespace, made once, or why there is none."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(HELPER_TIMEOUT_S)
        # Libraries in LD_PRELOAD may start threads, and a process that has any makes no user namespace.
        environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(theirs.fileno())]
        try:
            helper = subprocess.Popen(
                command,
                cwd="/",
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            return f"{sys.executable}: {error.strerror}"
        theirs.close()  # else its end would not be seen
        try:
            said, mounts, _, _ = socket.recv_fds(ours, 200, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            return f"the process that makes a user namespace: {error}"
        finally:
            helper.kill()
            helper.wait()
    return (
        mounts[0]
        if mounts
        else said.decode(errors="replace") or "the process that makes a user namespace ended"
    )


def _send_mount(to: socket.socket) -> None:
    """Make a user namespace, mount a tmpfs in it and send the mount, or why there is none."""
    user, group = os.geteuid(), os.getegid()
    try:
        _checked("a user namespace", _libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(text)
        _, mount = _mount_tmpfs(size="0", nr_inodes="0")  # no limits
    except OSError as error:
        to.send(f"{error.filename}: {error.strerror}".encode())
    else:
        socket.send_fds(to, [b"mounted"], [mount])


def _mount_tmpfs(**limits: str) -> tuple[int, int]:
    """Return (context, mount): the first changes the limits, in the second files are opened. Raises OSError."""
    context = _system_call("fsopen", SYS_FSOPEN, b"tmpfs", FSOPEN_CLOEXEC)
    try:
        for key, value in {**OPTIONS, **limits}.items():
            _fsconfig(context, FSCONFIG_SET_STRING, key, value)
        _fsconfig(context, FSCONFIG_CMD_CREATE)
        attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC
        return context, _system_call("fsmount", SYS_FSMOUNT, context, FSMOUNT_CLOEXEC, attributes)
    except BaseException:
        os.close(context)
        raise


def _fsconfig(context: int, command: int, key: str | None = None, value: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (key, value)]
    _system_call(f"fsconfig {key or 'tmpfs'}", SYS_FSCONFIG, context, command, *texts, 0)


def _system_call(name: str, number: int, *arguments: int | bytes | None) -> int:
    """Make a system call with whole registers: a variadic function's int may have anything in its upper half."""
    words = [ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each) for each in arguments]
    return _checked(name, _libc.syscall(ctypes.c_long(number), *words))


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


if __name__ == "__main__":
    _send_mount(socket.socket(fileno=int(sys.argv[1])))

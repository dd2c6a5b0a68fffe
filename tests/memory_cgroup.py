"""A memory cgroup with a limit, of whichever version this machine has, for tests that may make one."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
REMOVED_WITHIN_S = 10.0
# Not allowed, or not there. Where the first of v2's groups is a container's, it is busy with what runs in it, and a
# controller that the kernel was started without is invalid.
NOT_HERE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EBUSY, errno.EINVAL)


class Cgroup:
    """A memory cgroup at the top of its hierarchy."""

    def __init__(self, name: str, limit_bytes: int):
        """Raises OSError where none can be made."""
        self._is_v1 = V1.is_dir()
        self.folder = (V1 if self._is_v1 else V2) / name
        if not self._is_v1:
            (V2 / "cgroup.subtree_control").write_text("+memory")
        self.folder.mkdir()
        try:
            limit = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
            (self.folder / limit).write_text(str(limit_bytes))
        except OSError:
            self.remove()
            raise

    def command(self, *command: str | os.PathLike[str]) -> list[str]:
        """Return a command line that is in it from its start."""
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs")]
        return [*enter, *map(str, command)]

    def enter(self, pid: int) -> None:
        """Bring a process in; what it has by then stays charged to where it was."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def leave(self, pid: int) -> None:
        """Bring a process out again."""
        (self.folder.parent / "cgroup.procs").write_text(str(pid))

    def used_bytes(self) -> int:
        """Return what is charged to it."""
        name = "memory.usage_in_bytes" if self._is_v1 else "memory.current"
        return int((self.folder / name).read_text())

    def remove(self) -> None:
        """Bring out what is in it, and end it."""
        end = time.monotonic() + REMOVED_WITHIN_S
        while True:  # what is brought out may have started another, and what has ended may still be in it
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    self.leave(int(pid))
            try:
                return self.folder.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > end:
                    raise
            time.sleep(0.01)


@contextlib.contextmanager
def memory_cgroup(name: str, limit_bytes: int) -> Iterator[Cgroup]:
    """A cgroup for as long as the context lasts; skips the test where none can be made."""
    try:  # a killed test leaves its own behind, and numbers of processes come again
        made = Cgroup(f"affinode-test-{name}-{uuid.uuid4().hex}", limit_bytes)
    except OSError as error:
        if error.errno not in NOT_HERE:
            raise
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield made
    finally:
        made.remove()


# As Linux 6.18 writes it for a pod; the lines that are read are in the middle of many others.
MEMORY_STAT = """\
anon 50331648
file 12582912
kernel 4194304
kernel_stack 98304
pagetables 262144
sec_pagetables 0
percpu 5280
sock 0
vmalloc 12288
shmem 8388608
zswap 0
zswapped 0
file_mapped 4194304
file_dirty 0
file_writeback 0
swapcached 0
anon_thp 33554432
file_thp 0
shmem_thp 0
inactive_anon 58654720
active_anon 65536
inactive_file 2097152
active_file 2097152
unevictable 0
slab_reclaimable 1048576
slab_unreclaimable 524288
slab 1572864
workingset_refault_anon 0
workingset_refault_file 0
pgscan 0
pgsteal 0
pgfault 21004
pgmajfault 3
thp_fault_alloc 16
"""


class FilesOfV2:
    """What cgroup v2 shows of a pod, as files in a folder: for machines whose memory controller belongs to v1.

    `command(…)` runs a program that sees them in place of its machine's, in a mount namespace of its own, or in that of
    a program that runs (`beside`).
    """

    def __init__(self, folder: Path, limit_bytes: int, used_bytes: int):
        self.folder, self.pod = folder, folder / "pod"
        self.pod.mkdir(parents=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
        (folder / "unified").symlink_to(".")  # where a machine that has both mounts it
        (folder / "of_process").write_text("0::/pod\n")
        for name, text in (("high", "max"), ("current", str(used_bytes)), ("max", str(limit_bytes))):
            (self.pod / f"memory.{name}").write_text(f"{text}\n")
        (self.pod / "memory.stat").write_text(MEMORY_STAT)

    def command(self, *command: str | os.PathLike[str], beside: int | None = None) -> list[str]:
        """Return the command line."""
        enter = ["unshare", "--mount"] if beside is None else ["nsenter", f"--mount=/proc/{beside}/ns/mnt"]
        hide = 'mount --bind "$0" /sys/fs/cgroup && ' if beside is None else ""
        script = f'{hide}mount --bind "$0/of_process" /proc/$$/cgroup && exec "$@"'
        return [*enter, "sh", "-c", script, str(self.folder), *map(str, command)]

    def lift(self) -> None:
        """Have no limit any more."""
        (self.pod / "memory.max").write_text("max\n")

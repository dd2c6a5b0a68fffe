"""A memory cgroup with a limit, of whichever version this machine has, for tests that may make one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


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
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                self.leave(int(pid))
        self.folder.rmdir()


@contextlib.contextmanager
def memory_cgroup(name: str, limit_bytes: int) -> Iterator[Cgroup]:
    """A cgroup for as long as the context lasts; skips the test where none can be made."""
    try:
        made = Cgroup(f"affinode-test-{os.getpid()}-{name}", limit_bytes)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield made
    finally:
        made.remove()

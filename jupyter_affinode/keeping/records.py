"""What adopting a kernel takes, and the folder that has it, one file for each kernel."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .. import environment
from .processes import ProcessName, name_of

FOLDER_NAME = "kept"  # in the user's own folder, which no other user can enter
SOCKET_NAME = (
    "keep.sock"  # of the keeper; no longer than the controller's name, since a socket's path is bounded
)
LINE_BYTES_MAX = 256 << 20  # between it and a server, where a kernel's messages come in one line
VERSION = 1
KEPT_SINCE = (
    "none, kept since "  # what the controller is told in place of a server's name, before the time of day
)
WARM_SINCE = "warm, made "  # … for a kernel that no server has had yet


@dataclass(frozen=True)
class Owner:
    """Which servers may adopt a kernel: those of this name (a Hub's, or "") and root folder, of the same user."""

    name: str
    root: str

    def is_served_by(self, server: Owner) -> bool:
        """Return whether a server may adopt it: also by another path, as after a move that left a link."""
        if self.name != server.name:
            return False
        try:
            return self.root == server.root or os.path.samefile(self.root, server.root)
        except OSError:
            return False


@dataclass(frozen=True)
class Record:
    """A kernel, for the server that adopts it."""

    kernel_id: str
    kernel_name: str  # its kernelspec
    owner: Owner
    process: ProcessName
    process_group: int | None
    connection_file: str
    connection: dict[str, Any]  # ports and key, as in the connection file
    is_managed: bool  # whether it has the shim
    launch: dict[str, Any] = field(default_factory=dict)  # what a restart takes, JSON
    environ: dict[str, str] = field(default_factory=dict)  # what it has that its server had not
    description: dict[str, Any] = field(default_factory=dict)  # what the controller is told of it
    sessions: list[dict[str, Any]] = field(default_factory=list)  # id, path, name, type
    info: dict[str, Any] | None = None  # its kernel_info_reply, if it has told: a busy kernel does not
    readers: list[str] = field(default_factory=list)  # the client sessions of its tabs, the newest last
    keep_s: float = 0.0  # for how long no server may have it
    most_kernels: int = 0  # of its user, kept at a time; 0: any number
    most_bytes: int = 0  # … and the host memory of their processes; 0: no limit
    hibernate_dir: str = ""  # where its image goes; "": it does not hibernate
    hibernate_after_s: float = 0.0  # kept and idle for so long; 0: only when it is asked for
    image_keep_s: float = 0.0  # for how long its image stays; 0: for ever
    image_bytes_max: int = 0  # of all of its user's images; 0: no limit
    image_spare_bytes: int = 256 << 20  # of the disk, that stay free
    warm: str = ""  # of a warm kernel: the folder of its kernelspec
    server: ProcessName | None = (
        None  # while that lives the kernel is its own, though it has not said so to a new keeper
    )
    folder: str = ""  # of sockets, as its processes know it, once it is in an image (earlier_folder.py)
    version: int = VERSION

    @property
    def sockets(self) -> list[str]:
        """The paths of its Unix sockets, if it is reached by these; they are removed with its connection file."""
        if self.connection.get("transport") != "ipc":
            return []
        ports = [value for name, value in self.connection.items() if name.endswith("_port")]
        return [f"{self.connection['ip']}-{port}" for port in ports]


FIELDS = {each.name for each in fields(Record)}


def to_json(record: Record) -> dict[str, Any]:
    """Return a record as JSON."""
    return asdict(record)


def from_json(told: dict[str, Any]) -> Record:
    """Return the record that `to_json` gave. Raises ValueError for one of another release, or a broken one.

    What a later release adds is left out: a server may be newer than the keeper that has run since before an upgrade.
    """
    if not isinstance(told, dict) or told.get("version") != VERSION:
        raise ValueError("a record of another release")
    try:
        known = {name: value for name, value in told.items() if name in FIELDS}
        server = told.get("server")
        names = {"process": ProcessName(**told["process"]), "server": server and ProcessName(**server)}
        return Record(**{**known, **names, "owner": Owner(**told["owner"])})
    except (LookupError, TypeError) as error:
        raise ValueError(f"a broken record: {error}") from None


class Records:
    """The records on disk, for a keeper that was killed. Read and written by the keeper alone."""

    def __init__(self, folder: Path):
        """Use a folder, which is made if need be. Raises OSError."""
        environment.make_folder(folder)
        self._folder = folder

    def write(self, record: Record) -> None:
        """Write a record, whole or not at all. Raises OSError."""
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(to_json(record), file)
            os.replace(name, self._path(record.kernel_id))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def remove(self, kernel_id: str) -> None:
        """Remove a record, if it is there."""
        with contextlib.suppress(OSError):
            self._path(kernel_id).unlink()

    def all(self, log: logging.Logger) -> Iterator[Record]:
        """Yield the records that can be read; others are removed, unless a process of another release lives."""
        for path in sorted(self._folder.glob("*.json")):
            told = None
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
                yield from_json(told)
            except (OSError, ValueError):
                pid = _living(told)
                if pid is not None:
                    log.error(
                        "the kernel of process %d was kept by another release, and runs on: %s", pid, path
                    )
                    continue
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path(self, kernel_id: str) -> Path:
        return self._folder / f"{kernel_id.replace('/', '_')}.json"


def _living(told: Any) -> int | None:
    """Return the process of a record that cannot be read, if it lives."""
    try:
        process = ProcessName(**told["process"])
        return process.pid if name_of(process.pid) == process else None
    except (LookupError, TypeError, ProcessLookupError):
        return None

"""A warm kernel's entry: a folder. Its files say how far the kernel is, also after any process was killed.

| file | written by | says |
|---|---|---|
| `entry.json` | keeper | whose pool it is in, and of which kernelspec and prelude it is made |
| `launched.json` | the program that starts it (provisioning/making.py) | its environment and its command |
| `started.json`, `ready.json` | the kernel (kernel/warming.py) | its process; what came of the prelude |
| `offered.json` | keeper, before it says so | which process takes the kernel: no other gets it, ever; and its process |

A kernel whose folder is gone ends. So the keeper removes the folder of one that it has ended, or given away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import environment
from .processes import ProcessName, name_of

ENTRY, LAUNCHED, STARTED, READY, OFFERED = (
    f"{name}.json" for name in ("entry", "launched", "started", "ready", "offered")
)
CONNECTION = "connection.json"


class Entry:
    """One warm kernel's folder."""

    def __init__(self, folder: Path):
        """Use a folder; its name is the kernel's id."""
        self.folder = folder
        self.kernel_id = folder.name
        self._read: dict[str, dict[str, Any]] = {}

    @classmethod
    def new(cls, above: Path, told: dict[str, Any]) -> Entry:
        """Make an entry. Raises OSError."""
        environment.make_folder(above)
        entry = cls(above / str(uuid.uuid4()))
        entry.folder.mkdir(mode=0o700)
        entry.write(ENTRY, told)
        return entry

    def write(self, name: str, told: dict[str, Any]) -> None:
        """Write one of its files, whole or not at all. Raises OSError."""
        path = self.folder / name
        path.with_suffix(".new").write_text(json.dumps(told), encoding="utf-8")
        os.chmod(path.with_suffix(".new"), 0o600)
        os.replace(path.with_suffix(".new"), path)
        self._read[name] = told

    def read(self, name: str) -> dict[str, Any] | None:
        """Return what one of its files says; None while it is not there. Files do not change once they are."""
        if name not in self._read:
            try:
                self._read[name] = json.loads((self.folder / name).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return None
        return self._read[name]

    @property
    def process(self) -> ProcessName | None:
        """The kernel's process; None before it runs, and after its end. One that was woken is another than at first."""
        started = (self.read(OFFERED) or {}).get("process") or self.read(STARTED)
        with contextlib.suppress(ProcessLookupError):
            if started is not None and name_of(started["pid"]) == ProcessName(**started):
                return ProcessName(**started)
        return None

    def kill(self) -> None:
        """SIGKILL the kernel's process, and what its prelude started; nothing of a process that has its number now."""
        process = self.process
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def told(self, name: str) -> dict[str, Any]:
        """Return what one of its files says. Raises LookupError if it is not there."""
        found = self.read(name)
        if found is None:
            raise LookupError(f"{self.folder} has no {name}")
        return found

    @property
    def connection(self) -> dict[str, Any]:
        """How the kernel is connected until it is taken. Raises LookupError."""
        return self.told(CONNECTION)

    def remove(self) -> None:
        """Say that the kernel is not wanted as a warm one any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


def entries_in(above: Path) -> Iterator[Entry]:
    """Yield the entries of a folder; what is none is removed."""
    for folder in sorted(above.glob("*-*-*-*-*")):
        entry = Entry(folder)
        if entry.read(ENTRY) is not None:
            yield entry
        else:
            entry.remove()

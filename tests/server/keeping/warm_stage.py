"""Warm kernels of a test's machine: kernelspecs, what is ready, and the keeper's end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from keepers import keepers
from live_machine import Machine
from waiting import wait_until

MAKING_S = 120.0  # of a kernel, beside other tests


class WarmStage:
    """One machine's warm kernelspecs."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.folder = Path(machine.environment["AFFINODE_FOLDER"])
        self.specs = Path(machine.environment["JUPYTER_DATA_DIR"]) / "kernels"

    def write(self, name: str, prelude: str = "", count: int = 1, **warm: Any) -> Path:
        """Write a warm kernelspec; return its prelude's path."""
        folder = self.specs / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prelude.py").write_text(prelude)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        section = {"warm": {"count": count, "prelude": "prelude.py", **warm}}
        model = {"argv": argv, "display_name": name, "language": "python", "metadata": {"affinode": section}}
        (folder / "kernel.json").write_text(json.dumps(model))
        return folder / "prelude.py"

    def pool(self, name: str) -> dict[str, Any] | None:
        """What `warm list` says of a kernelspec; None where no keeper knows it."""
        with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
            asking.connect(str(self.folder / "keep.sock"))
            asking.sendall(b'{"do": "warm_list"}\n')
            answer = json.loads(asking.makefile().readline())["answer"]
            return next((pool for pool in answer if pool["name"] == name), None)
        return None

    def until(self, name: str, what: str, value: Any = 1) -> dict[str, Any]:
        """Wait until something is said of a kernelspec's kernels; return all that is said."""

        def look() -> dict[str, Any] | None:
            pool = self.pool(name)
            return (
                pool if pool is not None and (pool[what] == value or (value is True and pool[what])) else None
            )

        found = wait_until(look, MAKING_S, lambda: f"{name}: {self.pool(name)}\n{self.log()}")
        assert isinstance(found, dict)
        return found

    def log(self) -> str:
        """What the keeper and what starts kernels said."""
        files = [self.folder / "keeper.log", self.folder / "warm" / "making.log"]
        return "\n".join(path.read_text(errors="replace") for path in files if path.exists())

    def pids(self) -> list[int]:
        """The processes of kernels that have an entry."""
        found = []
        for path in (self.folder / "warm").glob("*/started.json"):
            with contextlib.suppress(FileNotFoundError):  # it is taken or ended meanwhile
                found.append(int(json.loads(path.read_text())["pid"]))
        return found

    def kill_keeper(self) -> None:
        """SIGKILL the keeper; the next one is started by what looks after it."""
        killed = keepers(self.machine)
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):  # of two that were started one ends by itself
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not {*killed} & {*keepers(self.machine)})

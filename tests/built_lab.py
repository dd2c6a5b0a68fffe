"""What `make test` builds beside the first tests: the JupyterLab extension, and what comes with its build."""

from __future__ import annotations

import fcntl
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def wait_for_its_build() -> None:
    """Wait while the extension is being built."""
    (REPOSITORY / "build").mkdir(exist_ok=True)
    with (REPOSITORY / "build" / "lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

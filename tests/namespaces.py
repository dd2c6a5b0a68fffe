"""Namespaces of Linux, which stand for containers and for machines on which nothing of ours is yet."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# The beginning of a command line; all that it starts ends with it.
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def needs_namespaces(*command: str) -> None:
    """Skip where such a command fails, as it does in many a container."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not here")
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no such namespaces here: {probe.stderr.strip()}")


def run_story(story: Path, mounts: str, **options: Any) -> None:
    """Run a script in namespaces with these mounts. It says "done" last if all is as it should be."""
    words = [*NAMESPACES, "sh", "-c"]
    needs_namespaces(*words, mounts)
    told = subprocess.run(
        [*words, f'{mounts} && exec "$@"', "sh", sys.executable, str(story)],
        capture_output=True, text=True, timeout=110, check=False, **options,
    )  # fmt: skip
    assert told.stdout.strip().endswith("done"), f"{told.stdout}\n{told.stderr}"

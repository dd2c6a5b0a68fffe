"""What ends the programs that a process has started when it ends itself: its container, or its unit of systemd's."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

# programs that end when their one child does
CONTAINERS_FIRST = ("tini", "dumb-init", "docker-init", "catatonit")
CGROUP_FILE = Path("/proc/self/cgroup")
CGROUP = re.compile(r"^(?:0:|\d+:name=systemd):(/.*)$", re.MULTILINE)
LEAVES_CHILDREN = ("process", "none")  # a unit's KillMode by which its other processes go on
ANSWER_S = 5.0


def why_children_end() -> str | None:
    """Return why what this process starts ends with it, in words for a log; None where it does not."""
    if ends_with_container():
        return "its container ends with it"
    unit = unit_that_ends()
    if unit is not None:
        return f"systemd ends its unit {unit} whole, unless that has KillMode=process"
    return None


def ends_with_container(pid: int | None = None, parent: int | None = None, first: str | None = None) -> bool:
    """Return whether a process's container ends when the process does; by default this one's."""
    pid = os.getpid() if pid is None else pid
    parent = os.getppid() if parent is None else parent
    if first is None:
        try:
            first = Path("/proc/1/comm").read_text().strip()
        except OSError:
            first = ""
    return pid == 1 or (parent == 1 and first in CONTAINERS_FIRST)


def unit_that_ends() -> str | None:
    """Return the service of systemd's, or of the user's own, that ends whole with this process; None without one."""
    try:
        found = CGROUP.search(CGROUP_FILE.read_text())
    except OSError:
        return None
    path = found[1] if found is not None else ""
    unit = path.rpartition("/")[2]
    if not unit.endswith(".service"):
        return None
    whose = ["--user"] if "/user@" in path else []
    try:
        shown = subprocess.run(
            ["systemctl", *whose, "show", "--property=MainPID,KillMode", "--", unit],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if told.get("MainPID") != str(os.getpid()) or told.get("KillMode") in LEAVES_CHILDREN:
        return None
    return unit

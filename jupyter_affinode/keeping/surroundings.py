"""What the end of a server's surroundings does to its kernels: its container, its unit of systemd's, its Slurm job.

All of it can be said when the server starts, with what to do. When kernels end it is too late.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

# programs that end when their one child does
CONTAINERS_FIRST = ("tini", "dumb-init", "docker-init", "catatonit")
CGROUP_FILE = Path("/proc/self/cgroup")
CGROUP = re.compile(r"^(?:0:|\d+:name=systemd):(/.*)$", re.MULTILINE)
LEAVES_CHILDREN = ("process", "none")  # a unit's KillMode by which its other processes go on
SIGNALS_ALL = "control-group"  # the KillMode by which all get SIGTERM in the same moment
ANSWER_S = 5.0
CONTAINERS_OWN = "overlay"  # the file system of a container that has no volume at a place
SLURM_CONF = Path("/etc/slurm/slurm.conf")
TRACKING = re.compile(
    r"^\s*ProctrackType\s*=\s*(proctrack/(?:linuxproc|pgid))\b", re.MULTILINE | re.IGNORECASE
)
OTHERS_END = (
    "kernels that are no IPython kernels, and programs that kernels have started, end before they are on disk"
)


@dataclass(frozen=True)
class Unit:
    """A service of systemd's, or of the user's own, that ends when this process does."""

    name: str
    kill_mode: str
    stop_time: str  # TimeoutStopSec in systemd's words

    @property
    def ends_whole(self) -> bool:
        """Whether all its processes end with it."""
        return self.kill_mode not in LEAVES_CHILDREN


def warnings_for(which: str, hibernate_dir: str = "") -> list[str]:
    """Return what a server is to log at its start, each with what to do; empty where its kernels are kept as it is set.

    `which`: its `keep_kernels`; `hibernate_dir`: its folder for images, or "". May wait for systemd's answer.
    """
    is_in_container = ends_with_container()
    found = []
    if is_in_container and hibernate_dir and _is_containers_own(Path(hibernate_dir)):
        found.append(
            f"hibernate_dir ({hibernate_dir}) is in the container's own file system, so images may end with the"
            " container. Name a folder on a volume."
        )
    if which == "never":
        return found
    for each in (
        _warning_of_container(which) if is_in_container else None,
        _warning_of_unit(which),
        _warning_of_job(which),
    ):
        if each is not None:
            found.append(each)
    return found


async def why_nothing_hibernates(which: str, hibernate_dir: str) -> str | None:
    """Return why no kernel of a server could be put on disk, and what to do; None where nothing is known to stand
    against it, or nothing is to hibernate.

    The first call runs CRIU twice, without anything to write: some hundredths of a second, beside other work.
    """
    if not hibernate_dir:
        if which != "hibernated":
            return None
        return (
            'keep_kernels is "hibernated", but no folder for images is named: all kernels end with this server. Set'
            " c.AffinodeExtension.hibernate_dir."
        )
    # what a server without a folder for images, and a Hub, need not wait for
    from ..hibernation import criu
    from ..hibernation.disk import objection_to_folder
    from ..hibernation.image import ImageRefused, verify_private

    ends = "All kernels end with this server" if which == "hibernated" else "No kernel can hibernate"
    folder = Path(hibernate_dir)
    try:
        if folder.exists() or folder.is_symlink():  # else the first image's keeper makes it
            verify_private(folder)
            if objection := objection_to_folder(folder):
                return f"{ends}: {folder} can have no images: {objection}."
        await criu.check()
    except ImageRefused as refused:
        return f"{ends}: {refused}."
    except (criu.CriuUnavailable, OSError) as error:
        return f"{ends}: {error}. {criu.advice().rstrip('.')}. `jupyter affinode doctor` tries it."
    return None


def machine_stops() -> bool:
    """Return whether the machine is about to stop, by systemd's word. Blocks."""
    try:
        asked = subprocess.run(
            ["systemctl", "is-system-running"], capture_output=True, text=True, timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.stdout.strip() == "stopping"


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
    unit = own_unit()
    return unit.name if unit is not None and unit.ends_whole else None


def own_unit() -> Unit | None:
    """Return the service of which this process is the main one; None without one."""
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
            ["systemctl", *whose, "show", "--property=MainPID,KillMode,TimeoutStopUSec", "--", unit],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if told.get("MainPID") != str(os.getpid()):
        return None
    return Unit(unit, told.get("KillMode", SIGNALS_ALL), told.get("TimeoutStopUSec", ""))


def _warning_of_container(which: str) -> str:
    if which == "hibernated":
        return (
            "What stops this container must leave this server the time that the disk needs for its kernels, or they"
            " end: Docker's stop time (10 s by default); a pod's terminationGracePeriodSeconds (30 s), KubeSpawner's"
            " delete_grace_period (1 s)."
        )
    return (
        "keep_kernels has no effect: when this server ends, its container ends with it."
        ' keep_kernels = "hibernated" puts kernels on disk instead, with a hibernate_dir on a volume.'
    )


def _warning_of_unit(which: str) -> str | None:
    unit = own_unit()
    if unit is None or not unit.ends_whole:
        return None
    if which != "hibernated":
        return (
            f"keep_kernels has no effect: when this server ends, systemd ends its unit {unit.name} whole"
            f" (KillMode={unit.kill_mode}). Set KillMode=process in the unit."
        )
    if unit.kill_mode != SIGNALS_ALL:
        return None
    time = f" ({unit.stop_time} now)" if unit.stop_time else ""
    return (
        f"When systemd stops {unit.name}, all its processes get SIGTERM at once (KillMode={unit.kill_mode}):"
        f" {OTHERS_END}. Set KillMode=mixed in the unit, and as TimeoutStopSec{time} what the disk needs for"
        " all kernels."
    )


def _warning_of_job(which: str) -> str | None:
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return None
    if which != "hibernated":
        return (
            f"keep_kernels has no effect: Slurm ends all processes of job {job} with it."
            ' keep_kernels = "hibernated" puts kernels on disk instead, and the next job has them.'
        )
    tracking = _signals_all_of_a_job()
    if tracking is None:
        return None
    return (
        f"When Slurm ends job {job}, all its processes get SIGTERM at once (ProctrackType={tracking}): {OTHERS_END}."
        " The cluster's administrator can set ProctrackType=proctrack/cgroup."
    )


def _signals_all_of_a_job() -> str | None:
    """Return how Slurm follows a job's processes where it signals all of them; None if it does not, or is not known."""
    try:
        text = Path(os.environ.get("SLURM_CONF") or SLURM_CONF).read_text(errors="replace")
    except OSError:
        return None
    found = TRACKING.search(text)
    return found[1] if found is not None else None


def _is_containers_own(folder: Path) -> bool:
    """Return whether a folder is in the file system that a container has of its own."""
    from ..hibernation.disk import disk_of  # what a server without a folder for images need not wait for

    return disk_of(folder).kind == CONTAINERS_OWN

"""A systemd of its own, as process 1 of namespaces, for tests of what a Hub has systemd do.

It can write to one folder of the machine alone, its /etc is a copy, and it has no units but its own and D-Bus': a
machine's units would begin by clearing /tmp.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from live_server import exists
from waiting import wait_until

CGROUPS = Path("/sys/fs/cgroup")
SYSTEMD = Path("/lib/systemd/systemd")
HIDDEN = (
    "/usr/lib/systemd/system",
    "/etc/systemd/system",
    "/usr/lib/systemd/system-generators",
    "/usr/lib/tmpfiles.d",
    "/usr/lib/sysctl.d",
    "/usr/lib/udev/rules.d",
)
UNITS = {
    **dict.fromkeys(("sysinit.target", "basic.target", "shutdown.target"), ""),
    "ready.target": "Wants=dbus.service",
    "dbus.socket": "[Socket]\nListenStream=/run/dbus/system_bus_socket",
    "dbus.service": "Requires=dbus.socket\nAfter=dbus.socket\n[Service]\nType=notify\nExecStart=/usr/bin/dbus-daemon"
    " --system --address=systemd: --nofork --nopidfile --systemd-activation",
}
# In namespaces of its own: $1 the folder, $2 the kinds of cgroups, $3 what is hidden.
BEGIN = """
set -e
mount --rbind /dev /dev && mount -o remount,bind,ro /dev
mount -t tmpfs tmpfs /run
mkdir /run/folder && mount --bind "$1" /run/folder
mount -t tmpfs tmpfs /tmp && mkdir -p "$1" && mount --bind /run/folder "$1"
cp -a /etc /run/etc && cp "$1/passwd" "$1/group" /run/etc/ && mount --bind /run/etc /etc
for hidden in $3; do [ ! -d $hidden ] || mount -t tmpfs tmpfs $hidden; done
if [ "$2" = v2 ]; then mount -t cgroup2 cgroup2 /sys/fs/cgroup; else
  mount -t tmpfs tmpfs /sys/fs/cgroup
  cd /sys/fs/cgroup && mkdir unified systemd memory
  mount -t cgroup2 cgroup2 unified
  mount -t cgroup -o none,name=systemd cgroup systemd
  mount -t cgroup -o memory cgroup memory
fi
mkdir -p /run/dbus /run/systemd && cp -r "$1/units" /run/systemd/system
mount -o remount,bind,ro /
cd /
exec env -i container=test PATH=/usr/bin:/bin /lib/systemd/systemd --system --unit=ready.target --log-target=console
"""


class OwnSystemd:
    """One that runs."""

    def __init__(self, pid: int):
        self.pid = pid
        self.command = ["nsenter", f"--target={pid}", "--mount", "--pid", "--cgroup"]

    def run(self, *command: str) -> str:
        """What a program prints there, whether it fails or not."""
        done = subprocess.run([*self.command, *command], capture_output=True, text=True, timeout=60)
        return done.stdout

    def exists(self, pid: int) -> bool:
        """Whether a process lives, by its number there."""
        try:
            stat = Path(f"/proc/{self.pid}/root/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def processes(self, of_user: int | str) -> list[str]:
        """The command lines of a user's processes there."""
        lines = self.run("ps", "-o", "args=", "-u", str(of_user)).splitlines()
        return [line for line in lines if "<defunct>" not in line]

    def units(self, pattern: str) -> set[str]:
        """The names of the units that are loaded."""
        listed = self.run("systemctl", "list-units", "--all", "--plain", "--no-legend", pattern)
        return {line.split()[0] for line in listed.splitlines()}

    def shown(self, unit: str, what: str) -> str:
        """One of a unit's properties."""
        return self.run("systemctl", "show", f"--property={what}", "--value", unit).strip()


@contextlib.contextmanager
def own_systemd(folder: Path, users: Mapping[str, int]) -> Iterator[OwnSystemd]:
    """One that can write to a folder, on a machine with these users; skips where there can be none."""
    if os.getuid() or not SYSTEMD.exists() or not shutil.which("dbus-daemon") or not shutil.which("busctl"):
        pytest.skip("no systemd can be started here")
    is_v2 = not (CGROUPS / "unified").is_dir()
    own = [
        root / folder.name
        for root in ([CGROUPS] if is_v2 else [CGROUPS / kind for kind in ("unified", "systemd", "memory")])
    ]
    units = folder / "units"
    units.mkdir()
    for name, text in UNITS.items():
        (units / name).write_text(f"[Unit]\nDefaultDependencies=no\n{text}\n")
    for names, line in (("passwd", "{0}:x:{1}:{1}::{2}/home/{0}:/bin/sh\n"), ("group", "{0}:x:{1}:\n")):
        own_ones = "".join(line.format(user, uid, folder) for user, uid in users.items())
        (folder / names).write_text(Path("/etc", names).read_text() + own_ones)
    try:
        for cgroup in own:
            cgroup.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    enter = "".join(f"echo $$ > {cgroup}/cgroup.procs; " for cgroup in own)
    spaces = "unshare --mount --pid --fork --kill-child --mount-proc --cgroup --uts --propagation=private"
    arguments = ["sh", str(folder), "v2" if is_v2 else "v1", " ".join(HIDDEN)]
    with (folder / "systemd.log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", f'{enter} exec {spaces} sh -c "$@"', "sh", BEGIN, *arguments],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or _first(process.pid), 30)
        if process.poll() is not None:
            pytest.skip(f"no systemd runs here: {(folder / 'systemd.log').read_text()}")
        made = OwnSystemd(_first(process.pid))
        wait_until(lambda: made.shown("dbus.service", "ActiveState") == "active", 30)
        yield made
    finally:
        process.kill()
        process.wait()
        for cgroup in own:
            wait_until(lambda cgroup=cgroup: _removed(cgroup), 30)


def _first(pid: int) -> int:
    """The process 1 of the namespaces that a program has made, once it is systemd; else 0."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if exists(pid) else []
    for child in map(int, children):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return child
    return 0


def _removed(cgroup: Path) -> bool:
    """Whether a cgroup with all below it is gone; what is still in it is killed."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with contextlib.suppress(OSError, ValueError):
            for pid in Path(folder, "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not cgroup.exists()

"""Kernels woken elsewhere: by an ordinary user, after the machine was started again, and on another machine.

Each step is a process in namespaces of its own, with a keeper and a controller of its own (elsewhere.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetched_criu import criu_for_users
from namespaces import NAMESPACES, needs_namespaces

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
USER = 1_200_000 + os.getpid()
FIRST_PID = 20_000  # of kernels: no process of another step has it by then
BEHIND_S = 4000
TIME = ("--time", f"--monotonic=-{BEHIND_S}", f"--boottime=-{BEHIND_S}")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A machine's folder, for all steps of a story."""
    made = Path(tempfile.mkdtemp(prefix="aff-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(autouse=True)
def needs_root(native):
    """Namespaces, mounts and other users take root."""
    needs_namespaces(*NAMESPACES, "true")


def opened(*paths: Path) -> str:
    """A script that lets others enter these paths, in a mount namespace, though folders above are closed to them."""
    script, number = ["set -e"], 0
    closed: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(paths):
        for above in reversed(path.parents):
            if not above.stat().st_mode & 1:
                closed.setdefault(above, []).append(path)
                break
    for above, inside in closed.items():
        moved = []
        for path in inside:
            number += 1
            aside = f"/mnt/{number}"
            script.append(
                f"mountpoint -q /mnt || mount -t tmpfs none /mnt; mkdir -p {aside}; mount --bind {path} {aside}"
            )
            moved.append(f"mkdir -p {path}; mount --move {aside} {path}")
        script += [f"mount -t tmpfs -o mode=755 none {above}", *moved]
    return "\n".join(script)


def step(
    name: str,
    folder: Path,
    criu: str | Path,
    *options: str,
    uid: int = 0,
    before: str = "",
    timeout: int = 200,
    gpu: int = 0,
) -> str:
    """Run one step of elsewhere.py, and return what it prints. `gpu`: the serial number of the machine's GPU."""
    as_user = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--"] if uid else []
    script = (
        f"{before}\necho {FIRST_PID} >/proc/sys/kernel/ns_last_pid\n"
        if name == "hibernate"
        else f"{before}\n"
    )
    if uid:
        script = opened(Path(sys.base_prefix).resolve(), Path(sys.prefix), REPOSITORY) + "\n" + script
    told = subprocess.run(
        [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", *options, "sh", "-c"),
            'mount -t proc proc /proc\n' + script + '"$@"; exit $?', "sh",
            *as_user, sys.executable, str(HERE / "elsewhere.py"), name, str(folder),
        ],
        capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, "ELSEWHERE_CRIU": str(criu), "ELSEWHERE_SERIAL": str(gpu)},
    )  # fmt: skip
    assert told.stdout.strip().endswith("done"), f"{told.stdout}\n{told.stderr}"
    return told.stdout


@pytest.mark.long
def test_an_ordinary_user_hibernates_and_wakes_kernels_with_two_capabilities_of_criu(folder, tmp_path):
    folder.chmod(0o755)
    criu = criu_for_users(folder / "criu")
    own = folder / "own"
    own.mkdir(mode=0o700)
    os.chown(own, USER, USER)
    step("hibernate", own, criu, uid=USER)
    said = step("refused", own, criu, *TIME, uid=USER)
    assert re.search(r"refused: this machine's clock is \d+ s behind the kernel's", said), said
    assert "Only root can wake it so" in said
    said = step("ask_for_root", own, criu, uid=USER)
    assert re.search(r"refused: .*(CRIU|rights)", said), said
    said = step("wake", own, criu, uid=USER)
    assert re.search(rf"it has uid {USER}, CapPrm:\s0000000000000000$", said, re.M), said


@pytest.mark.long
def test_root_wakes_a_kernel_after_the_machine_was_started_again(folder, criu):
    step("hibernate", folder, criu)
    forget_boot(folder)
    said = step("wake", folder, criu, *TIME)
    assert "it has uid 0" in said


@pytest.mark.long
def test_a_kernel_wakes_on_another_node_with_the_same_packages(folder, criu, tmp_path):
    """The other node has another GPU of the same kind."""
    before = step("hibernate", folder, criu)
    forget_boot(folder)
    said = step("wake", folder, criu, *TIME, before=another_root(tmp_path / "root", folder), gpu=1)
    assert "it has uid 0" in said
    gpus = re.findall(r"^it is on (GPU-\S+)$", before + said, re.MULTILINE)
    assert len(set(gpus)) == 2, gpus


def forget_boot(folder: Path) -> None:
    """Leave what outlives a machine's restart: the GPU, sockets and records of processes are new."""
    for name in ("gpu", "run", "xdg", "lone/own/kept"):
        shutil.rmtree(folder / name, ignore_errors=True)


def another_root(root: Path, folder: Path) -> str:
    """A script that goes on in another root folder: its own /tmp, /etc and devices, and the same packages."""
    script = [
        "set -e",
        f"mkdir -p {root}; mount -t tmpfs -o mode=755 none {root}; cd {root}",
        "mkdir -p tmp proc dev old; chmod 1777 tmp; cp -a /etc etc",
        "mount --rbind /dev dev; mount --rbind /proc proc; mkdir sys; mount --rbind /sys sys",
        f"mkdir -p .{folder}; cp -a {folder}/. .{folder}/",
    ]
    for top in sorted(os.listdir("/")):
        path = Path("/") / top
        if path.is_symlink():
            script.append(f"ln -s {os.readlink(path)} {top}")
        elif path.is_dir() and top not in ("tmp", "proc", "dev", "sys", "etc", "lost+found"):
            script.append(f"mkdir {top}; mount --rbind /{top} {top}")
    script.append("pivot_root . old; umount -l /old; cd /")
    return "\n".join(script)

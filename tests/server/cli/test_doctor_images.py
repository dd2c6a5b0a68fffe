"""What the doctor says of hibernation: whether it works, by the one command that makes it work, and of secrecy."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from jupyter_affinode.doctor import image_checks as doctor_images
from jupyter_affinode.hibernation import criu, disk


def checks(monkeypatch, called: str, folder: str = "") -> dict[str, doctor_images.Check]:
    """The checks by name."""
    monkeypatch.setenv("AFFINODE_CRIU", called)
    monkeypatch.setenv("AFFINODE_HIBERNATE_DIR", folder)
    return {check.name: check for check in doctor_images.image_checks()}


@pytest.fixture
def criu_that_says(tmp_path):
    """`criu_that_says(version, status)`: a program that stands for CRIU."""

    def make(version: str, status: int = 0, words: str = "") -> str:
        path = tmp_path / "criu"
        tells = f'[ "$1" = --version ] && {{ echo "Version: {version}"; exit; }}'
        path.write_text(f'#!/bin/sh\n{tells}\necho "{words}"\nexit {status}\n')
        path.chmod(stat.S_IRWXU)
        return str(path)

    return make


def test_without_criu_it_is_said_how_to_get_it_and_only_where_it_is_wanted_as_a_warning(
    monkeypatch, tmp_path
):
    check = checks(monkeypatch, "/nowhere/criu")["hibernation"]
    assert (check.level, check.group) == ("ok", "details")
    check = checks(monkeypatch, "/nowhere/criu", str(tmp_path / "images"))["hibernation"]
    assert check.level == "warn"
    assert "apt install criu" in (check.advice or "")


def test_a_criu_that_is_too_old_is_named(monkeypatch, tmp_path, criu_that_says):
    check = checks(monkeypatch, criu_that_says("3.17.1"), str(tmp_path / "images"))["hibernation"]
    assert "is too old (3.17): 4.2 or newer is needed" in check.text


def test_a_user_is_told_the_command_that_gives_criu_what_it_needs(monkeypatch, tmp_path, criu_that_says):
    called = criu_that_says("4.2.1", 1, "Error (x.c:1): CAP_CHECKPOINT_RESTORE is missing")
    monkeypatch.setattr(criu, "is_privileged", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check = checks(monkeypatch, called, str(tmp_path / "images"))["hibernation"]
    assert check.advice == f"sudo setcap cap_checkpoint_restore,cap_setpcap+eip {called}"
    check = checks(monkeypatch, f"env {called}", str(tmp_path / "images"))["hibernation"]
    assert "Name CRIU itself by AFFINODE_CRIU" in (check.advice or "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    check = checks(monkeypatch, called, str(tmp_path / "images"))["hibernation"]
    assert "SYS_ADMIN, or CHECKPOINT_RESTORE and SETPCAP" in (check.advice or "")


def test_where_criu_works_a_process_was_written_and_woken(monkeypatch):
    from fetched_criu import fetched_criu

    mark = secrets.token_hex(16)  # in the environment of all that it starts
    monkeypatch.setenv("STARTED_BY", mark)
    check = checks(monkeypatch, fetched_criu())["hibernation"]
    assert check.text.endswith("wrote a process to disk and woke it") or not criu.is_privileged()

    def started() -> list[str]:
        return [
            name for name in os.listdir("/proc") if name.isdigit() and mark.encode() in _environment(name)
        ]

    wait_until(lambda: not started())  # one that was killed takes a moment to end


CONTAINERS = (  # what Docker leaves to root
    "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod,audit_write"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="root's rights are taken away")
@pytest.mark.parametrize(("more", "works"), [("", False), (",checkpoint_restore", True)])
def test_root_in_a_container_needs_one_capability_more(more, works):
    from fetched_criu import fetched_criu

    rights = f"-all,+{(CONTAINERS + more).replace(',', ',+')}"
    code = "from jupyter_affinode.doctor.image_checks import image_checks as c; [print(x.text, x.advice) for x in c()]"
    told = subprocess.run(
        ["setpriv", "--bounding-set", rights, "--inh-caps", rights, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "AFFINODE_CRIU": fetched_criu(), "AFFINODE_HIBERNATE_DIR": ""},
    )
    assert ("wrote a process to disk and woke it" in told.stdout) is works, told
    assert works or "Give the container the capability SYS_ADMIN, or CHECKPOINT_RESTORE" in told.stdout


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def test_a_folder_in_host_memory_or_open_to_others_is_named(monkeypatch, tmp_path):
    tmp_path.chmod(0o755)
    check = checks(monkeypatch, "/nowhere/criu", str(tmp_path))["images"]
    assert check.level == "warn" and "chmod 700" in check.text
    if disk.disk_of(Path("/dev/shm")).is_memory:
        check = checks(monkeypatch, "/nowhere/criu", "/dev/shm/affinode-no-such-folder")["images"]
        assert check.level == "warn" and "host memory itself" in check.text


def test_a_folder_whose_file_system_has_no_locks_is_named(monkeypatch, tmp_path):
    def refused(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    tmp_path.chmod(0o700)
    assert checks(monkeypatch, "/nowhere/criu", str(tmp_path))["images"].level == "ok"
    monkeypatch.setattr(disk.fcntl, "flock", refused)
    check = checks(monkeypatch, "/nowhere/criu", str(tmp_path))["images"]
    assert check.level == "warn" and "as NFS without its lock service" in check.text


MOUNTS = """\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 253:3 / /scratch rw - xfs /dev/mapper/scratch rw
22 20 0:50 / /home\\040of\\040all rw - nfs4 server:/home rw
23 20 0:51 / /vault rw - fuse.gocryptfs /x rw
"""


def test_what_encrypts_a_folder_is_found(monkeypatch, tmp_path):
    (tmp_path / "mounts").write_text(MOUNTS)
    for device, uuid, slaves in (
        ("253:3", "LVM-x", ["253:1"]),
        ("253:1", "CRYPT-LUKS2-x", []),
        ("254:0", "", []),
    ):
        (tmp_path / "dev" / device / "dm").mkdir(parents=True)
        (tmp_path / "dev" / device / "slaves").mkdir()
        (tmp_path / "dev" / device / "dm" / "uuid").write_text(uuid)
        for slave in slaves:
            (tmp_path / "dev" / device / "slaves" / slave).symlink_to(tmp_path / "dev" / slave)
    monkeypatch.setattr(disk, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(disk, "DEVICES", tmp_path / "dev")
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr(Path, "resolve", lambda path: path)
    assert disk.encryption_of(Path("/scratch/images")) == "dm-crypt"
    assert disk.encryption_of(Path("/vault/images")) == "gocryptfs"
    assert disk.encryption_of(Path("/home of all/images")) is None
    assert disk.disk_of(Path("/home of all/images")).is_on_another_machine
    assert disk.encryption_of(Path("/var/images")) is None

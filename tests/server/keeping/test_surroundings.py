"""What is said of programs that end with the process that started them."""

from __future__ import annotations

import asyncio
import os

import pytest

from jupyter_affinode import environment
from jupyter_affinode.hibernation import criu as criu_program
from jupyter_affinode.keeping import surroundings
from jupyter_affinode.keeping.surroundings import (
    ends_with_container,
    warnings_for,
    why_children_end,
    why_nothing_hibernates,
)

KEEPING = ("parked", "all", "hibernated")
SERVICE = "0::/system.slice/lab.service"


@pytest.fixture
def in_unit(tmp_path, monkeypatch):
    """`in_unit(cgroup, kill_mode)`: has this process be the main one of a unit; returns a file with what was asked."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def be(cgroup: str, kill_mode: str, *, is_main: bool = True):
        own = tmp_path / "cgroup"
        own.write_text(f"{cgroup}\n")
        asked = tmp_path / "asked"
        systemctl = tmp_path / "systemctl"
        told = f"MainPID={os.getpid() if is_main else 1}\nKillMode={kill_mode}\nTimeoutStopUSec=1min 30s"
        systemctl.write_text(f'#!/bin/sh\necho "$*" > {asked}\necho "{told}"\n')
        systemctl.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(surroundings, "CGROUP_FILE", own)
        return asked

    return be


@pytest.mark.parametrize(
    ("pid", "parent", "first", "ends"),
    [(1, 0, "jupyter-lab", True), (7, 1, "tini", True), (7, 1, "systemd", False), (70, 7, "tini", False)],
)
def test_a_server_that_is_its_container_says_that_keeping_is_in_vain(pid, parent, first, ends):
    assert ends_with_container(pid, parent, first) is ends


@pytest.mark.parametrize(
    ("cgroup", "is_main", "kill_mode", "unit"),
    [
        ("0::/system.slice/jupyterhub.service", True, "control-group", "jupyterhub.service"),
        ("0::/system.slice/jupyterhub.service", True, "mixed", "jupyterhub.service"),
        ("0::/system.slice/jupyterhub.service", True, "process", None),
        ("0::/system.slice/jupyterhub.service", False, "control-group", None),  # a server of such a Hub's
        ("1:name=systemd:/system.slice/lab.service\n0::/", True, "control-group", "lab.service"),
        ("0::/user.slice/user-7.slice/user@7.service/app.slice/lab.service", True, "mixed", "lab.service"),
        ("0::/user.slice/user-7.slice/session-3.scope", True, "control-group", None),
        ("0::/", True, "control-group", None),
    ],
)
def test_a_unit_that_systemd_ends_whole_is_named(in_unit, cgroup, is_main, kill_mode, unit):
    asked = in_unit(cgroup, kill_mode, is_main=is_main)
    why = why_children_end()
    assert why == (unit and f"systemd ends its unit {unit} whole, unless that has KillMode=process")
    if unit:
        assert ("--user" in asked.read_text()) is ("user@7" in cgroup)


@pytest.mark.parametrize("which", ["never", *KEEPING])
@pytest.mark.parametrize("kill_mode", ["control-group", "mixed", "process"])
def test_a_server_in_a_unit_says_what_to_set_for_what_it_keeps(in_unit, which, kill_mode):
    in_unit(SERVICE, kill_mode)
    said = warnings_for(which, "/images" if which == "hibernated" else "")
    if which == "never" or kill_mode == "process" or (which, kill_mode) == ("hibernated", "mixed"):
        assert said == []
    elif which == "hibernated":
        (words,) = said
        assert "lab.service" in words and "no IPython kernels" in words
        assert "Set KillMode=mixed" in words and "TimeoutStopSec (1min 30s now)" in words
    else:
        (words,) = said
        assert words.startswith("keep_kernels has no effect") and f"KillMode={kill_mode}" in words
        assert "Set KillMode=process in the unit" in words


@pytest.mark.parametrize("which", ["never", *KEEPING])
def test_a_server_in_a_container_says_what_ends_its_kernels(in_unit, monkeypatch, tmp_path, which):
    in_unit("0::/", "")
    monkeypatch.setattr(surroundings, "ends_with_container", lambda: True)
    said = warnings_for(which)
    if which == "never":
        assert said == []
    elif which == "hibernated":
        assert (
            len(said) == 1 and "Docker's stop time" in said[0] and "terminationGracePeriodSeconds" in said[0]
        )
    else:
        assert (
            len(said) == 1 and said[0].startswith("keep_kernels has no effect") and "on a volume" in said[0]
        )
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 0:1 / / rw - overlay overlay rw\n2 1 8:1 / /volume rw - ext4 /dev/sda rw\n")
    monkeypatch.setattr("jupyter_affinode.hibernation.disk.MOUNTS", mounts)
    first, *rest = warnings_for(which, "/images")
    assert "Name a folder on a volume" in first and rest == said
    monkeypatch.setattr("pathlib.Path.exists", lambda path: str(path) in ("/", "/volume"))
    assert warnings_for(which, "/volume/images") == said


@pytest.mark.parametrize("which", ["never", *KEEPING])
@pytest.mark.parametrize("tracking", ["proctrack/cgroup", "proctrack/linuxproc", "proctrack/pgid", None])
def test_a_server_in_a_job_says_what_slurm_does(in_unit, monkeypatch, tmp_path, which, tracking):
    in_unit("0::/", "")
    conf = tmp_path / "slurm.conf"
    if tracking is not None:
        conf.write_text(f"ClusterName=a\n#ProctrackType=proctrack/pgid\nProctrackType={tracking}\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    assert warnings_for(which) == []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    said = warnings_for(which)
    if which in ("parked", "all"):
        assert len(said) == 1 and "job 7" in said[0] and '"hibernated"' in said[0]
    elif which == "hibernated" and tracking in ("proctrack/linuxproc", "proctrack/pgid"):
        assert len(said) == 1 and tracking in said[0] and "proctrack/cgroup" in said[0]
    else:
        assert said == []


def why_not(which: str, folder: object) -> str | None:
    return asyncio.run(why_nothing_hibernates(which, str(folder or "")))


@pytest.mark.parametrize("which", ["never", *KEEPING])
def test_a_server_without_a_folder_for_images_says_what_hibernated_comes_to(which):
    said = why_not(which, None)
    assert (said is not None) is (which == "hibernated")
    if said is not None:
        assert "all kernels end with this server" in said and "hibernate_dir" in said


@pytest.mark.parametrize("which", ["never", *KEEPING])
def test_a_server_without_criu_says_so_and_what_to_do(which, tmp_path, monkeypatch):
    monkeypatch.setenv(environment.CRIU, "no-criu")
    said = why_not(which, tmp_path / "images")
    assert "no-criu is not found" in said and "jupyter affinode doctor" in said
    assert said.startswith("All kernels end" if which == "hibernated" else "No kernel can hibernate")


def test_a_server_with_a_criu_that_does_not_work_says_so(tmp_path, monkeypatch):
    criu = tmp_path / "criu"
    criu.write_text("#!/bin/sh\necho Version: 3.17\n")
    criu.chmod(0o755)
    monkeypatch.setenv(environment.CRIU, str(criu))
    assert "too old (3.17)" in why_not("hibernated", tmp_path / "images")


def test_a_folder_that_others_may_enter_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "images"
    folder.mkdir()
    folder.chmod(0o755)
    assert f"chmod 700 {folder}" in why_not("hibernated", folder)


def test_nothing_is_said_where_kernels_can_hibernate(criu, tmp_path, monkeypatch):
    monkeypatch.setenv(environment.CRIU, criu)
    monkeypatch.setattr(criu_program, "_works", {})
    assert why_not("hibernated", tmp_path / "images") is None

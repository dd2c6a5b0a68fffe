"""What is said of programs that end with the process that started them."""

from __future__ import annotations

import os

import pytest

from jupyter_affinode.keeping import surroundings
from jupyter_affinode.keeping.surroundings import ends_with_container, why_children_end


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
def test_a_unit_that_systemd_ends_whole_is_named(tmp_path, monkeypatch, cgroup, is_main, kill_mode, unit):
    own = tmp_path / "cgroup"
    own.write_text(f"{cgroup}\n")
    asked = tmp_path / "asked"
    systemctl = tmp_path / "systemctl"
    main = os.getpid() if is_main else 1
    systemctl.write_text(f'#!/bin/sh\necho "$*" > {asked}\necho MainPID={main}\necho KillMode={kill_mode}\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(surroundings, "CGROUP_FILE", own)
    why = why_children_end()
    assert why == (unit and f"systemd ends its unit {unit} whole, unless that has KillMode=process")
    if unit:
        assert ("--user" in asked.read_text()) is ("user@7" in cgroup)

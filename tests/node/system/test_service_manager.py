"""Whether a signal to end may come from the machine's shutdown."""

from __future__ import annotations

import asyncio
import os

import pytest

from jupyter_affinode.node.system.service_manager import ServiceManager


@pytest.mark.parametrize(
    ("is_service", "said", "may"),
    [(True, "stopping", True), (True, "running", False), (True, None, False), (False, "running", True)],
)
def test_a_service_of_systemd_is_restarted_alone_unless_the_machine_stops(
    monkeypatch, tmp_path, is_service, said, may
):
    if said is not None:
        systemctl = tmp_path / "systemctl"
        systemctl.write_text(f"#!/bin/sh\necho {said}\n[ {said} = running ]\n")
        systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin" if said is not None else str(tmp_path))
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if is_service:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

    async def ask() -> bool:
        return ServiceManager().may_shut_down()

    assert asyncio.run(ask()) is may

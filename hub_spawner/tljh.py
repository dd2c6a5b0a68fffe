"""The plugin for The Littlest JupyterHub: installed beside its Hub, it shares the machine's GPUs between all users.

TLJH finds it by its entry point. Its installer runs it with `--plugin` and what pip takes for this package.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from pluggy import HookimplMarker

import hub_spawner
from jupyter_affinode.cli.machine.systemd_unit import unit_text

from .enabling import is_configured
from .service.registration import add_service

hookimpl = HookimplMarker("tljh")
UNIT = Path("/etc/systemd/system/affinode.service")
UNIX_NAME = "jupyter-{username}"  # as TLJH calls its users on the machine, up to 25 characters
log = logging.getLogger(__name__)


@hookimpl
def tljh_extra_user_pip_packages() -> list[str]:
    """Install this package for users from where the Hub has it: their servers run its extension."""
    return [own_requirement()]


@hookimpl
def tljh_custom_jupyterhub_config(c: Any) -> None:
    """Give TLJH's spawner the GPU policy, and the Hub the page about GPUs."""
    if not is_configured(c, "unix_name"):
        c.Spawner.unix_name = UNIX_NAME  # any section that a later file has goes before it
    hub_spawner.enable(c)
    add_service(c)


@hookimpl
def tljh_post_install() -> None:
    """Install and start the controller of all users as a unit of systemd's."""
    UNIT.write_text(unit_text(sys.executable), encoding="utf-8")
    for command in (["daemon-reload"], ["enable", "affinode"], ["restart", "affinode"]):
        done = subprocess.run(["systemctl", *command], capture_output=True, text=True)
        if done.returncode != 0:  # the Hub is installed, and servers start without a controller, too
            log.error("systemctl %s failed: %s", " ".join(command), done.stderr.strip())


def own_requirement() -> str:
    """Return the requirement by which pip installs this same package: its address, if it was installed from one."""
    package = distribution("jupyter-affinode")
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    if "url" not in origin:
        return f"jupyter-affinode=={package.version}"
    url, commit = origin["url"], origin.get("vcs_info", {}).get("commit_id")
    return f"jupyter-affinode @ git+{url}@{commit}" if commit else f"jupyter-affinode @ {url}"

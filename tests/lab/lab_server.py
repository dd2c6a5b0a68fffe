"""A JupyterLab with this checkout's extension, for tests and for scripts that measure."""

from __future__ import annotations

import json
import os
from pathlib import Path

from live_machine import Machine
from live_server import JupyterServer

REPOSITORY = Path(__file__).resolve().parents[2]
BUILT = REPOSITORY / "jupyter_affinode" / "labextension"
LAB = (
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)
# Nothing here opens what these are for, and a page would load them all. Pictures for the documentation have them.
UNUSED = """
    audio csvviewer debugger extensionmanager help htmlviewer hub imageviewer inspector javascript json logconsole lsp
    markdownviewer mermaid pdf terminal toc tooltip vega5 video
"""
VIEWPORT = {"width": 1280, "height": 800}


def start_lab(server: JupyterServer, labextension: Path, *arguments: str) -> JupyterServer:
    """Start JupyterLab, with this checkout's extension and no news."""
    environment = server.machine.environment
    folder = Path(environment["JUPYTER_DATA_DIR"]) / "labextensions"
    folder.mkdir()
    (folder / "jupyter-affinode").symlink_to(labextension)
    # Else one that is installed beside Python comes first, in a virtual environment.
    environment["JUPYTER_PREFER_ENV_PATH"] = "0"
    if "AFFINODE_SCREENSHOTS" not in os.environ:
        config = Path(environment["JUPYTER_CONFIG_DIR"]) / "labconfig"
        config.mkdir()
        unused = {f"@jupyterlab/{name}-extension": True for name in UNUSED.split()}
        (config / "page_config.json").write_text(json.dumps({"disabledExtensions": unused}))
    settings(server.machine, "@jupyterlab/apputils-extension", "notification", fetchNews="false")
    return server.start(*LAB, *arguments, application="jupyterlab")


def settings(machine: Machine, package: str, plugin: str, **values: object) -> None:
    """Write a person's settings of a JupyterLab plugin, before JupyterLab starts."""
    config = Path(machine.environment["JUPYTER_CONFIG_DIR"])
    path = config / "lab" / "user-settings" / package / f"{plugin}.jupyterlab-settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))

"""Have JupyterLab open with the GPU panel beside the demo notebook, and without its question about news.

`python binder/lab_layout.py` does so for the user; `make demo` for the folder of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_dir
from jupyterlab_server.workspaces_handler import WorkspacesManager

PANEL = "jupyter-affinode-panel"  # as the extension names it to the layout restorer
NOTEBOOK = "notebook:demo.ipynb"
LAYOUT: dict[str, Any] = {
    "data": {
        "layout-restorer:data": {
            "main": {
                "dock": {"type": "tab-area", "currentIndex": 0, "widgets": [NOTEBOOK]},
                "current": NOTEBOOK,
            },
            "left": {
                "collapsed": False,
                "visible": True,
                "current": PANEL,
                "widgets": ["filebrowser", PANEL],
            },
            "right": {"collapsed": True, "widgets": []},
            "relativeSizes": [0.28, 0.72, 0],
        },
        NOTEBOOK: {"data": {"path": "demo.ipynb", "factory": "Notebook"}},
    },
    "metadata": {"id": "default"},
}
SETTINGS = {"notification": {"fetchNews": "false", "checkForUpdates": False}}


def write(config: Path) -> None:
    """Write the layout and the settings into a Jupyter configuration folder."""
    workspaces = config / "lab" / "workspaces"
    workspaces.mkdir(parents=True, exist_ok=True)
    WorkspacesManager(str(workspaces)).save("default", json.dumps(LAYOUT))
    folder = config / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in SETTINGS.items():
        (folder / f"{name}.jupyterlab-settings").write_text(json.dumps(values), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else jupyter_config_dir()))

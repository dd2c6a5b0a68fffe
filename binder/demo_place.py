"""A place for the demo: a temporary folder with its own Jupyter folders, notebook and GPU controller.

Nothing of the person's own Jupyter is used or changed, and other kernels keep their own controller. Where
there is no GPU the place has a simulated one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lab_layout

from jupyter_affinode import environment
from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable

NOTEBOOK = Path(__file__).with_name("demo.ipynb")
JUPYTER_FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
HOST_RESERVE_BYTES = 256 * 1024**2  # the notebook moves no more than this; small machines can run it
HAS_GPU = Path(__file__).with_name("has_gpu.py")


@dataclass(frozen=True)
class DemoPlace:
    """What to start a Jupyter server with."""

    folder: Path
    environment: dict[str, str]
    simulated: bool

    @property
    def work(self) -> Path:
        """The folder that holds the notebook."""
        return self.folder / "work"

    @property
    def gpu_words(self) -> str:
        """Which GPU the demo uses, for a person."""
        if self.simulated:
            return "No GPU was found: this demo uses a SIMULATED one. Nothing it shows is GPU performance."
        return "This demo uses this machine's GPU."

    def server_options(self, idle_timeout_s: float) -> list[str]:
        """Options of `jupyter server` and `jupyter lab`: park as soon as a kernel has been idle so long."""
        return [
            f"--ServerApp.root_dir={self.work}",
            "--AffinodeExtension.park_when=idle",
            f"--AffinodeExtension.idle_timeout_s={idle_timeout_s:g}",
            f"--AffinodeExtension.host_reserve_bytes={HOST_RESERVE_BYTES}",
            *(["--allow-root"] if os.getuid() == 0 else []),
        ]


@contextlib.contextmanager
def demo_place() -> Iterator[DemoPlace]:
    """Make a place; at the end its controller is stopped and its folder removed, also where a signal ends the demo."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    folder = Path(tempfile.mkdtemp(prefix="affinode-demo-"))
    # In a process of its own: a driver may crash, and this one must stay without a context.
    simulated = subprocess.run([sys.executable, str(HAS_GPU)], check=False).returncode != 0
    place = DemoPlace(folder, _environment(folder, simulated), simulated)
    place.work.mkdir()
    shutil.copy(NOTEBOOK, place.work)
    lab_layout.write(folder / "jupyter_config_dir")
    try:
        yield place
    finally:
        _stop_controller(folder / environment.SOCKET_NAME)
        shutil.rmtree(folder, ignore_errors=True)


def _leave(number: int, _: object) -> None:
    """End as by an exception, so that whatever the demo has started is stopped on the way out; once is enough."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _environment(folder: Path, simulated: bool) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AFFINODE_", "JUPYTER", "JPY_", "IPYTHON")) and name != "PYTHONSTARTUP"
    }
    own = {name: str(folder / name.lower()) for name in JUPYTER_FOLDERS}
    own[environment.SOCKET] = str(folder / environment.SOCKET_NAME)
    if simulated:
        own |= {environment.SIM: "1", environment.SIM_DIR: str(folder / "gpu")}
    return inherited | own


def _stop_controller(socket: Path) -> None:
    with contextlib.suppress(ControllerUnavailable, ControllerRefused, ProcessLookupError):
        node = asyncio.run(ControllerClient(socket).node())
        os.kill(node["controller"]["pid"], signal.SIGTERM)

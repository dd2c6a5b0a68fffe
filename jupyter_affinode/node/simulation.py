"""The simulated GPU's NVML, which the loader finds only at a process's start."""

from __future__ import annotations

import os
import sys

from .. import environment


def start_over() -> None:
    """Restart the process with AFFINODE_SIM=1 if its loader does not look where the simulated NVML is."""
    if not environment.simulation_asked():
        return
    try:
        environ = environment.controller_environment()
    except (environment.SimulationRefused, OSError) as refused:
        sys.exit(f"the controller cannot start: {refused}")
    if environ.get("LD_LIBRARY_PATH") != os.environ.get("LD_LIBRARY_PATH"):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)

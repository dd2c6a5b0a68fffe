"""A pytest plugin for run.py: have JupyterHub's tests spawn with the GPU policy, and write down each server's start.

With UPSTREAM_POLICY every Mock and Simple spawner class of JupyterHub and its tests is derived, as `enable` derives a
site's class, and each server asks the controller for room. One word a start, "ours" or "none", goes to the file that
UPSTREAM_SEEN names.
"""

from __future__ import annotations

import os
from typing import Any

from jupyterhub import spawner as spawners
from jupyterhub.tests import mocking
from traitlets import default

from hub_spawner.enabling import derived
from hub_spawner.spawner_mixin import GpuPolicy

DERIVED = ("Simple", "Mock", "Slow", "Never", "Bad", "Custom", "Form", "Falsy", "Instrumented")


def _classes(module: Any) -> list[str]:
    """Return the names of the spawner classes of a module that tests spawn with."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, spawners.Spawner) and name.startswith(DERIVED)
    ]


def _note_starts(spawner: type) -> None:
    get_env = spawner.get_env

    def get_env_noted(self: Any) -> Any:
        env = get_env(self)
        with open(os.environ["UPSTREAM_SEEN"], "a") as seen:
            seen.write("ours\n" if isinstance(self, GpuPolicy) else "none\n")
        return env

    spawner.get_env = get_env_noted


def _asking(spawner: type) -> type:
    """Return the class with the policy, whose servers ask for room."""
    made = derived(spawner)
    own = {"__module__": made.__module__, "_ask": default("gpu_memory")(lambda self: "1MiB")}
    if os.environ.get("UPSTREAM_KEEP"):
        own["_keep"] = default("keep_kernels")(lambda self: "all")
    return type(made.__name__, (made,), own)


_note_starts(spawners.Spawner)
if os.environ.get("UPSTREAM_POLICY"):
    for module in (spawners, mocking):
        for name in _classes(module):
            setattr(module, name, _asking(getattr(module, name)))

"""Which kernels a server keeps ready, at a glance: one line for the page on which a user chooses a server."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from jupyter_affinode.keeping.warm_spec import WarmSpec, read_spec


def warm_kernels_line(folders: Iterable[str]) -> str:
    """Return the line for the kernelspecs in these folders, "" where none has warm kernels.

    A kernelspec that cannot be read is left out, and logged: a server says more about it.
    """
    specs: dict[str, WarmSpec] = {}
    for folder in folders:
        for path in _inside(folder):
            spec = _read(path)
            if spec is not None and spec.count:
                specs.setdefault(spec.name, spec)
    if not specs:
        return ""
    named = ", ".join(
        spec.display_name if spec.count == 1 else f"{spec.display_name} ({spec.count})"
        for spec in specs.values()
    )
    return f"Kernels kept ready: {named}. They are made once your server has started."


def _inside(folder: str) -> list[str]:
    try:
        return sorted(entry.path for entry in os.scandir(folder) if entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        logging.getLogger(__name__).warning("kernelspecs cannot be read: %s", error)
        return []


def _read(path: str) -> WarmSpec | None:
    try:
        return read_spec(path)
    except ValueError as error:
        logging.getLogger(__name__).warning("%s", error)
        return None

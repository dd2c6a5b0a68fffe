"""The warm kernels of one kernelspec, what they need of the keeper, and whether one is still what it would be now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .at_hub import AtHub
from .kept_kernel import KeptKernel
from .processes import ProcessName
from .records import Record
from .warm_entry import ENTRY, READY, Entry
from .warm_spec import WarmSpec, first_changed

HUB_VARIABLES = ("JUPYTERHUB_", "JPY_")  # of one server, and secret


class Holder(Protocol):
    """What pools need of the keeper."""

    async def hold(self, record: Record) -> KeptKernel | None:
        """Know a kernel and keep it; None if its process has ended."""

    async def awaken(self, kernel_id: str) -> None:
        """Have a kernel's process run if it is in an image. Raises CannotWake."""

    def let_go(self, kernel_id: str) -> None:
        """Forget a kernel, which lives on as another."""

    def end_now(self, kernel_id: str, why: str) -> None:
        """End a kernel, wherever it is."""

    def held(self, kernel_id: str) -> KeptKernel | None:
        """Return a kernel whose process runs."""

    def image_bytes(self, kernel_id: str) -> int | None:
        """Return what a kernel's image takes; None for one that is in none."""

    def is_moving(self, kernel_id: str) -> bool:
        """Return whether a kernel is on its way into an image or back."""

    async def look_in(self, store: str | None) -> None:
        """Find the images in a folder."""

    def is_anothers(self, process: ProcessName, kernel_id: str) -> bool:
        """Return whether a process is, by its server's word, that of another kernel."""

    def warm_kernels(self) -> list[str]:
        """Return the ids of all warm kernels that are kept, in images or not."""

    def maybe_leave(self) -> None:
        """End in a while, if nothing is to be kept then."""


@dataclass
class Pool:
    """The warm kernels of one kernelspec. What is not known of a pool at the next start is in `entries`."""

    spec: str  # the kernelspec's folder
    environ: dict[str, str]
    settings: dict[str, Any]
    wanted_at: float  # last, after the machine's start
    failed: dict[str, Any] | None = None  # what came of the last try to make one
    one_bytes: int = 0  # host memory of one, as it was seen last
    entries: dict[str, Entry] = field(default_factory=dict)
    note: str | None = None  # why there are fewer than there should be, in words
    at_hub: AtHub | None = None
    misses: int = 0  # notebooks that found none ready
    taken: int = 0

    @property
    def id(self) -> str:
        """A name for its file."""
        return hashlib.sha256(self.spec.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return what is kept of it in a file: none of what is a Hub's."""
        told = {
            name: getattr(self, name) for name in ("spec", "settings", "wanted_at", "failed", "one_bytes")
        }
        return {**told, "environ": without_hub(self.environ)}


def nothing_made(folder: str, spec: WarmSpec | None) -> dict[str, Any]:
    """Return what is told of a kernelspec's pool before anything is made. `spec`: what it says, if that can be read."""
    name = os.path.basename(folder)
    return {
        "name": name,
        "spec": folder,
        "display_name": name if spec is None else spec.display_name,
        "prelude": None if spec is None else spec.prelude or None,
        "count": 0 if spec is None else spec.count,
        "problem": None,
        "is_wanted": True,
        "ready": 0,
        "making": 0,
        "failed": None,
        "note": None,
        "kernels": [],
        "taken": 0,
        "misses": 0,
    }


def why_stale(entry: Entry, digest: str) -> str | None:
    """Return what has changed since a kernel was made, in words; None: nothing. Reads files' times."""
    if entry.told(ENTRY)["digest"] != digest:
        return "its kernelspec or its prelude has changed"
    changed = first_changed(entry.told(READY)["files"])
    return f"{changed} has changed" if changed is not None else None


def without_hub(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a Hub gives one server: it outlives that."""
    return {name: value for name, value in environ.items() if not name.startswith(HUB_VARIABLES)}

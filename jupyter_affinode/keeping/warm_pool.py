"""The warm kernels of one kernelspec: what they need of the keeper, where each is, how one ends, what is told of them.

A pool is saved in a file of its own, for a later keeper.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .. import environment
from .at_hub import AtHub
from .kept_kernel import KeptKernel
from .processes import ProcessName, resident_bytes
from .records import Record
from .warm_entry import ENTRY, READY, Entry
from .warm_spec import WarmSpec, first_changed, read_spec, without_secrets

POOLS = "pools"  # the folder of their files, below the folder of the entries


class Holder(Protocol):
    """What pools need of the keeper."""

    async def hold(self, record: Record, at_hub: AtHub | None) -> KeptKernel | None:
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
        return {**told, "environ": without_secrets(self.environ)}

    @classmethod
    def read(cls, path: Path) -> Pool:
        """Return a pool from its file. Raises OSError, ValueError, TypeError."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def path(self, folder: Path) -> Path:
        """Return where its file is. `folder`: that of all warm kernels."""
        return folder / POOLS / f"{self.id}.json"

    def save(self, folder: Path, log: logging.Logger) -> None:
        """Write its file, whole or not at all."""
        try:
            environment.make_folder(folder / POOLS)
            path = self.path(folder)
            path.with_suffix(".new").touch(mode=0o600)
            path.with_suffix(".new").write_text(json.dumps(self.to_json()), encoding="utf-8")
            os.replace(path.with_suffix(".new"), path)
        except OSError as error:  # a full disk: it is in memory
            log.error("the pool of %s would be lost with this keeper: %s", self.spec, error)

    def read_spec(self) -> WarmSpec | None:
        """Return its kernelspec; None if it is gone, or cannot be read: then `note` says why."""
        try:
            return read_spec(self.spec)
        except ValueError as error:
            self.note = str(error)
            return None

    def end(self, holder: Holder, entry: Entry, why: str) -> None:
        """End one of its kernels."""
        self.entries.pop(entry.kernel_id, None)
        end_kernel(holder, entry, why)


def place_of(holder: Holder, entry: Entry) -> str | None:
    """Return where a ready kernel is, "process" or "image"; None for one that is not ready, or ends."""
    kernel = holder.held(entry.kernel_id)
    if kernel is not None:
        return "process" if kernel.dying is None else None
    return "image" if holder.image_bytes(entry.kernel_id) is not None else None


async def process_bytes(holder: Holder, entries: list[Entry]) -> int:
    """Return the host memory of these kernels' processes. A kernel in an image has none."""
    held = [kernel for entry in entries if (kernel := holder.held(entry.kernel_id)) is not None]
    sizes = await asyncio.to_thread(resident_bytes, [kernel.record.process.pid for kernel in held])
    return sum(sizes.values())


def end_kernel(holder: Holder, entry: Entry, why: str) -> None:
    """End a kernel, also one that is being made. Its folder is removed once nothing else tells of its process."""
    if place_of(holder, entry) is not None:
        holder.end_now(entry.kernel_id, why)
    else:
        entry.kill()
    entry.remove()


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


async def view_of(holder: Holder, pool: Pool) -> dict[str, Any]:
    """Return what is told of a pool, except whether it is wanted."""
    held = {kernel_id: holder.held(kernel_id) for kernel_id in pool.entries}
    pids = {kernel_id: kernel.record.process.pid for kernel_id, kernel in held.items() if kernel is not None}
    sizes = await asyncio.to_thread(resident_bytes, list(pids.values())) if pids else {}
    kernels = [
        {
            "id": entry.kernel_id,
            "place": place,
            "made_at": entry.told(ENTRY)["made_at"],
            "took_s": entry.told(READY)["took_s"],
            "bytes": sizes.get(pids.get(entry.kernel_id, -1), 0)
            if place == "process"
            else holder.image_bytes(entry.kernel_id),
        }
        for entry in pool.entries.values()
        if (place := place_of(holder, entry)) is not None
    ]
    spec, problem = None, None
    try:
        spec = read_spec(pool.spec)
    except ValueError as error:
        problem = str(error)
    return {
        **nothing_made(pool.spec, spec),
        "problem": problem,
        "ready": len(kernels),
        "making": len(pool.entries) - len(kernels),
        "failed": pool.failed and pool.failed["words"],
        "note": pool.note,
        "kernels": kernels,
        "taken": pool.taken,
        "misses": pool.misses,
    }


def why_stale(entry: Entry, digest: str) -> str | None:
    """Return what has changed since a kernel was made, in words; None: nothing. Reads files' times."""
    if entry.told(ENTRY)["digest"] != digest:
        return "its kernelspec or its prelude has changed"
    changed = first_changed(entry.told(READY)["files"])
    return f"{changed} has changed" if changed is not None else None

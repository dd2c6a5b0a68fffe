"""Whose kernels a keeper ends of those that no server has: the decision, without processes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from jupyter_affinode.keeping import oversight


@dataclass
class Kept:
    """A kernel as the keeper knows it; `heard_at`: when it said something last."""

    name: str
    heard_at: float
    mib: int = 100
    most_kernels: int = 0
    most_bytes: int = 0
    warm: bool = False
    is_kept: bool = True
    open_cells: list[str] = field(default_factory=list)
    ended: str | None = None
    at_hub: None = None

    @property
    def id(self) -> str:
        """Its name."""
        return self.name

    @property
    def kernel(self) -> Kept:
        """What follows its process."""
        return self

    @property
    def record(self) -> SimpleNamespace:
        """What it has on disk."""
        process = SimpleNamespace(pid=self.name)
        return SimpleNamespace(
            process=process, warm=self.warm, most_kernels=self.most_kernels, most_bytes=self.most_bytes
        )

    def begin_end(self, why: str) -> None:
        """End it."""
        self.ended = why


def ended(monkeypatch: pytest.MonkeyPatch, *kernels: Kept) -> dict[str, str]:
    """Which are ended, and why."""
    sizes = {kernel.name: kernel.mib << 20 for kernel in kernels}
    monkeypatch.setattr(oversight, "resident_bytes", lambda pids: {pid: sizes[pid] for pid in pids})
    said = oversight.Oversight(kernels, logging.getLogger()).hold_to_quota()
    assert said == {kernel.name: kernel.ended for kernel in kernels if kernel.ended}
    return said


def test_by_number_those_that_have_said_nothing_for_longest_end_first_and_busy_ones_last(monkeypatch):
    busy = Kept("busy", 1.0, most_kernels=2, open_cells=["cell"])
    others = Kept("old", 2.0, most_kernels=3), Kept("new", 3.0), Kept("newest", 4.0)
    why = "its user may have 2 kept kernels"
    assert ended(monkeypatch, busy, *others) == {"old": why, "new": why}


def test_by_host_memory_too(monkeypatch):
    kernels = Kept("old", 1.0, most_bytes=250 << 20), Kept("new", 2.0), Kept("newest", 3.0, mib=120)
    assert ended(monkeypatch, *kernels) == {"old": "its user's kept kernels may have 250 MiB"}


def test_kernels_of_a_server_and_warm_ones_do_not_count(monkeypatch):
    aside = Kept("a server's", 1.0, is_kept=False), Kept("warm", 1.0, warm=True)
    assert ended(monkeypatch, *aside, Kept("one", 2.0, most_kernels=2), Kept("two", 3.0)) == {}

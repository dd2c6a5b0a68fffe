"""A cluster for the tests of a module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("slurm", "hub", "node/support", "server/keeping")]

from cluster import Cluster, slurm_cluster  # noqa: E402


@pytest.fixture(scope="module")
def cluster(native: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A real Slurm; a module's `SITE` has options of its files."""
    with slurm_cluster(**getattr(request.module, "SITE", {})) as made:
        yield made

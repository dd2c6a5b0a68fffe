"""Backed memory answers every question as the driver's own does (on the simulated driver; `python tests/gpu parity`
asks a real one).
"""

from __future__ import annotations

import sys
from pathlib import Path

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path += map(str, [GPU, GPU / "driver"])

import parity  # noqa: E402
from controlled import compile_program  # noqa: E402
from shim_machine import Machine  # noqa: E402


def test_backed_memory_cannot_be_told_from_the_drivers(gpu: Machine, native: Path) -> None:
    environment = gpu.environment | {"AFFINODE_SOCKET": str(gpu.folder / "absent.sock")}
    count, different = parity.differences(
        compile_program(parity.SOURCE, gpu.folder), native / "libaffinode.so", environment
    )
    assert count > 300
    assert not different, "\n".join(different)

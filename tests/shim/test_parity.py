"""Backed memory answers every question as the driver's own does (on the simulated driver; `python tests/gpu parity`
asks a real one).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

GPU = Path(__file__).resolve().parents[1] / "gpu"
sys.path += map(str, [GPU, GPU / "driver"])

import parity  # noqa: E402


def test_backed_memory_cannot_be_told_from_the_drivers(native: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").symlink_to(native / "libaffinode-sim-cuda.so")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AFFINODE_")}
    environment = {
        **clean,
        "LD_LIBRARY_PATH": str(driver),
        "AFFINODE_SOCKET": str(tmp_path / "nobody.sock"),
        "AFFINODE_SIM_DIR": str(tmp_path / "gpu"),
    }
    count, different = parity.differences(
        parity.compile_program(tmp_path), native / "libaffinode.so", environment
    )
    assert count > 300
    assert not different, "\n".join(different)

"""The demo's Hub tells its story to the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from live_hub import proxy_command

DEMO = Path(__file__).resolve().parents[2] / "binder" / "demo_hub.py"


@pytest.mark.long
def test_the_demos_hub_shares_the_gpu_between_two_users(native):
    proxy_command()
    done = subprocess.run(
        [sys.executable, str(DEMO), "--headless"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=DEMO.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 idle kernel was freed" in done.stdout
    assert "nothing was lost" in done.stdout

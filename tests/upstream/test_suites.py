"""jupyter_client's own tests pass with kernels that our provisioner starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import run

RUN = Path(run.__file__)


@pytest.fixture(scope="module")
def jupyter_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of the installed jupyter_client."""
    try:
        return run.fetch("jupyter_client", tmp_path_factory.mktemp("source"))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip could not download jupyter_client's source distribution: {error}")


@pytest.mark.long
@pytest.mark.timeout(900)  # some 270 tests that start 180 kernels, beside the other workers of this run
def test_the_suite_of_jupyter_client_passes_with_our_provisioner(native: Path, jupyter_client: Path) -> None:
    options = ["--only-ours", "--source", jupyter_client, "--", "--numprocesses=2", "--timeout=300"]
    ran = subprocess.run([sys.executable, RUN, "jupyter_client", *options], capture_output=True, text=True)
    print(ran.stdout, ran.stderr)
    assert ran.returncode == 0

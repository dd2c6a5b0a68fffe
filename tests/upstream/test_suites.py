"""The tests of Jupyter's own projects give the same results with kernels that our provisioner starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import run

RUN = Path(run.__file__)
# Those of jupyter_server and ipykernel were not written to run beside each other.
SIDE_BY_SIDE = {"jupyter_client": ["--numprocesses=2"]}


@pytest.mark.long
@pytest.mark.timeout(
    3600
)  # 127 to 1,187 tests that start up to 180 kernels, beside the other workers of this run
@pytest.mark.parametrize("name", run.SUITES)
def test_the_suite_passes_with_our_provisioner(name: str, native: Path, tmp_path: Path) -> None:
    try:
        source = run.fetch(name, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip could not download {name}'s source distribution, or what it needs: {error}")
    options = ["--only-ours", "--source", source, "--", *SIDE_BY_SIDE.get(name, []), "--timeout=300"]
    ran = subprocess.run([sys.executable, RUN, name, *options], capture_output=True, text=True)
    print(ran.stdout, ran.stderr)
    assert ran.returncode == 0

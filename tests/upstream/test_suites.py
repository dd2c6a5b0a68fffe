"""The tests of Jupyter's own projects give the same results with kernels that our provisioner starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import run

RUN = Path(run.__file__)
# Tests of jupyter_server and ipykernel were not written to run beside each other.
SIDE_BY_SIDE = "--numprocesses=2"
# Of jupyter_client it puts entry points of its own in the place of the installed ones, without the environment's
# default. So it passes only where its process has looked at those before, which depends on how the tests were divided.
ORDERED = "test_existing and no_provisioner"
OPTIONS = {"jupyter_client": [SIDE_BY_SIDE, "-k", f"not ({ORDERED})"]}


@pytest.mark.long
@pytest.mark.timeout(
    3600
)  # up to 1,187 tests that start up to 180 kernels, beside the other workers of this run
@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, []) for name in run.SUITES),
        *((name, ["--keep"]) for name in ("jupyter_client", "jupyter_server")),
    ],
)
def test_the_suite_passes_with_our_provisioner(
    name: str, more: list[str], native: Path, tmp_path: Path
) -> None:
    """And where kernels outlive their servers."""
    try:
        source = run.fetch(name, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip could not download {name}'s source distribution, or what it needs: {error}")
    options = [*OPTIONS.get(name, []), "--timeout=300"]
    command = [sys.executable, RUN, name, *more, "--only-ours", "--source", source, "--", *options]
    ran = subprocess.run(command, capture_output=True, text=True)
    print(ran.stdout, ran.stderr)
    assert ran.returncode == 0

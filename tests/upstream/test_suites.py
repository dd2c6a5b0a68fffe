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
# Of jupyter_client, in each run what its manager of one kernel and its provisioners do; but neither many kernels at
# once or one after the other, nor all again with IPC, nor what gives a kernel some seconds to end, whatever else the
# machine does. Those and the rest are for long runs.
SLOW = "start_sequence or start_parallel or ipc or ShutDownGracefully"
# It puts entry points of its own in the place of the installed ones, without the environment's default. So it passes
# only where its process has looked at those before, which depends on how the tests were divided.
ORDERED = "(test_existing and no_provisioner)"
OF_EACH_RUN = (
    f"(test_manager.py or test_kernelmanager.py or test_provisioning.py) and not ({SLOW} or {ORDERED})"
)
SUITES = [
    pytest.param("jupyter_client", [SIDE_BY_SIDE, "-k", OF_EACH_RUN], id="jupyter_client"),
    pytest.param(
        "jupyter_client",
        [SIDE_BY_SIDE, "-k", f"not ({OF_EACH_RUN} or {ORDERED})"],
        id="jupyter_client-rest",
        marks=pytest.mark.long,
    ),
    *(
        pytest.param(name, [], id=name, marks=pytest.mark.long)
        for name in run.SUITES
        if name != "jupyter_client"
    ),
]


@pytest.mark.timeout(
    3600
)  # up to 1,187 tests that start up to 180 kernels, beside the other workers of this run
@pytest.mark.parametrize(("name", "options"), SUITES)
def test_the_suite_passes_with_our_provisioner(
    name: str, options: list[str], native: Path, tmp_path: Path
) -> None:
    try:
        source = run.fetch(name, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip could not download {name}'s source distribution, or what it needs: {error}")
    command = [sys.executable, RUN, name, "--only-ours", "--source", source, "--", *options, "--timeout=300"]
    ran = subprocess.run(command, capture_output=True, text=True)
    print(ran.stdout, ran.stderr)
    assert ran.returncode == 0

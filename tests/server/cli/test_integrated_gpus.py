"""GPUs whose memory is the host's, as in DGX Spark and Jetson: parking would free nothing, and is not done."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from gpu_cells import KEEPER, contents


@pytest.fixture
def integrated(native, machine):
    machine.simulate(memory="1GiB")
    machine.environment["AFFINODE_SIM_INTEGRATED"] = "1"
    return machine


@pytest.mark.parametrize("depth", ["memory", pytest.param("context", marks=pytest.mark.long)])
def test_a_kernel_on_an_integrated_gpu_is_shown_and_never_parked(integrated, wait_until, depth):
    machine = integrated
    machine.start_controller("--park-when=idle", "--idle-timeout=1", "--settle=0.1")
    keeper = machine.start(
        *(sys.executable, "-m", "jupyter_affinode.cli", "run", "--", sys.executable, "-c", KEEPER, "32"),
        env={**machine.environment, "AFFINODE_KERNEL_ID": "k", "AFFINODE_DEPTH": depth},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert keeper.stdout.readline() == "ready\n"
    kernel = wait_until(lambda: (found := machine.kernel("k")) and found["unmovable"] and found)
    reasons = {each["reason"]: each for each in kernel["unmovable"]}
    assert reasons["integrated"]["bytes"] == 32 << 20 and "the host's memory" in reasons["integrated"]["text"]
    assert kernel["resident_bytes"] == 0
    wait_until(lambda: machine.kernel("k")["idle_s"] > 3)
    status, answer = machine.ask("POST", "/kernels/k/park", {})
    assert (status, answer["nothing_moved"]["code"]) == (200, "nothing-to-move"), answer
    kernel = machine.kernel("k")
    assert (kernel["residency"], kernel["parks"], kernel["parked_bytes"]) == ("resident", 0, 0)
    assert contents(keeper) == "same"


def test_doctor_names_an_integrated_gpu(integrated):
    told = json.loads(integrated.affinode("doctor", "--json").stdout)
    (gpu,) = [check for check in told["checks"] if check["name"] == "gpu"]
    assert gpu["level"] == "warn" and "its memory is the host's, so none is freed" in gpu["text"]

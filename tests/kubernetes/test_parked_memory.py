"""Parked memory and the memory limits of pods: lots are charged to the controller's pod, which has room for them.

Cgroups stand for pods. The simulated GPU's memory is memory of the kernel's process, which a real one's is not. So
the kernel enters its cgroup when it has filled the GPU, and leaves it before the GPU is filled again.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
from gpu_cells import KEEPER, contents
from live_machine import Machine
from memory_cgroup import Cgroup, FilesOfV2, memory_cgroup
from namespaces import needs_namespaces
from rendered_chart import controller

from jupyter_affinode.settings.policy import GIB, MIB


@pytest.fixture
def cgroup() -> Iterator[Callable[[str, int], Cgroup]]:
    """`cgroup("pod", bytes)`."""
    with contextlib.ExitStack() as stack:
        yield lambda name, limit_bytes: stack.enter_context(memory_cgroup(name, limit_bytes))


@pytest.fixture
def start(gpu_machine: Machine, wait_until) -> Callable[..., int]:
    """`start(lots_gib, cgroup)`: the controller with its lots touched, in a cgroup; its pid."""

    def start_controller(lots_gib: int, inside: Cgroup | FilesOfV2 | None) -> int:
        log = (gpu_machine.folder / "controller.log").open("ab")
        arguments = ["--settle=0.1", "--idle-timeout=10000", f"--NodeController.lot_bytes={lots_gib * GIB}"]
        command = [sys.executable, "-m", "jupyter_affinode.node", *arguments]
        command = command if inside is None else inside.command(*command)
        process = gpu_machine.start(*command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        wait_until(gpu_machine.node, timeout=60)
        lots = lots_gib * GIB
        wait_until(lambda: gpu_machine.node()["host"]["lots"]["ready_bytes"] == lots, timeout=60)
        return process.pid

    return start_controller


def kernel(machine: Machine, mib: int, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A kernel with so much on the GPU."""
    process = machine.start(
        *prefix,
        *(sys.executable, "-m", "jupyter_affinode.cli", "run", "--", sys.executable, "-c", KEEPER, str(mib)),
        env={**machine.environment, "AFFINODE_KERNEL_ID": "k"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


def controllers_limit(lots_gib: int) -> int:
    """The memory that the chart gives a controller with such lots."""
    values = {"image": {"repository": "a/b"}, "grants": {"required": False}, "parkedMemoryGiB": lots_gib}
    limit = controller(values)["resources"]["limits"]["memory"]
    return int(limit.removesuffix("Mi")) * MIB


@pytest.mark.parametrize(
    ("pod_mib", "parked_mib", "lots_gib"),
    [(128, 512, 1), pytest.param(2048, 8192, 8, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
def test_a_kernel_parks_four_times_what_its_pod_may_use(
    gpu_machine, cgroup, start, wait_until, pod_mib, parked_mib, lots_gib
):
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    if available < (parked_mib << 20) + (lots_gib + 3) * GIB:
        pytest.skip("this machine has too little memory for both the simulated GPU and the lots")
    gpu_machine.simulate(memory=f"{parked_mib + 512}MiB")
    daemon, pod = cgroup("daemon", controllers_limit(lots_gib)), cgroup("pod", pod_mib * MIB)
    start(lots_gib, daemon)
    assert daemon.used_bytes() > lots_gib * GIB
    with kernel(gpu_machine, parked_mib) as process:
        # No kernel gets more lots than the GPU memory that NVML shows.
        wait_until(lambda: gpu_machine.node()["gpus"][0]["used_bytes"] >= parked_mib * MIB)
        pod.enter(process.pid)
        status, said = gpu_machine.ask("POST", "/kernels/k/park", {})
        assert status == 200, said
        assert said["parked_bytes"] >= parked_mib * MIB
        assert pod.used_bytes() < pod_mib * MIB / 2
        assert gpu_machine.node()["host"]["lots"]["given_bytes"] >= parked_mib * MIB
        pod.leave(process.pid)
        assert contents(process) == "same"
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    # What is parked no more is the node's again.
    wait_until(lambda: gpu_machine.node()["host"]["lots"]["ready_bytes"] == lots_gib * GIB, timeout=60)


@pytest.mark.long
def test_without_lots_a_pod_that_has_no_room_keeps_its_gpu_and_lives(gpu_machine, cgroup, start):
    gpu_machine.simulate(memory="1GiB")
    pod = cgroup("pod", 128 * MIB)
    start(0, None)
    with kernel(gpu_machine, 512) as process:
        pod.enter(process.pid)
        status, said = gpu_machine.ask("POST", "/kernels/k/park", {})
        assert status == 409, said
        assert "the kernel's own limit (cgroup) leaves" in said["message"]
        assert gpu_machine.kernel("k")["residency"] == "resident"
        pod.leave(process.pid)
        assert contents(process) == "same"
        process.stdin.close()
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("lots_gib", [pytest.param(0, marks=pytest.mark.long), 1])
@pytest.mark.parametrize("seen_by", ["controller", pytest.param("shim", marks=pytest.mark.long)])
def test_the_limit_of_a_pod_in_cgroup_v2_is_heeded_and_lots_are_not_charged_to_it(
    gpu_machine, start, wait_until, seen_by, lots_gib
):
    """The files are of a pod of 128 MiB, and in the place of this machine's for the real programs that read them."""
    needs_namespaces("unshare", "--mount", "true")
    needs_namespaces("nsenter", "--version")
    gpu_machine.simulate(memory="1GiB")
    pod = FilesOfV2(gpu_machine.folder / "cgroup", 128 * MIB, 64 * MIB)
    beside = start(lots_gib, pod if seen_by == "controller" else None)
    prefix = pod.command(beside=beside if seen_by == "controller" else None)
    with kernel(gpu_machine, 512, prefix) as process:
        # No kernel gets more lots than the GPU memory that NVML shows.
        wait_until(lambda: gpu_machine.node()["gpus"][0]["used_bytes"] >= 512 * MIB)
        status, said = gpu_machine.ask("POST", "/kernels/k/park", {})
        if lots_gib:
            assert status == 200 and said["parked_bytes"] >= 512 * MIB, said
        else:
            refused = {
                "controller": "the kernel's own limit (cgroup) leaves 55 MiB",
                "shim": "host memory is short",
            }
            assert status == 409 and refused[seen_by] in said["message"], said
            pod.lift()
            assert gpu_machine.ask("POST", "/kernels/k/park", {})[0] == 200
        assert contents(process) == "same"
        process.stdin.close()
        assert process.wait(timeout=60) == 0

"""How busy a kernel keeps its GPU, and its host memory, as the API tells them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from api_answers import checked
from fake_nvml import UUID, FakeNvml
from fake_shim import MIB


class SampledNvml(FakeNvml):
    """An NVML that tells how busy processes keep the GPU, in percent by pid; None: it does not."""

    percents = None

    def gpus(self):
        return tuple(replace(gpu, percent_by_pid=self.percents) for gpu in super().gpus())


@pytest.fixture
def told(node, shim):
    """Return a controller whose only kernel has 300 MiB, its NVML, and what the API tells of the kernel."""
    nvml = SampledNvml({UUID: 600 * MIB})
    machine = node(nvml=nvml)
    kernel = shim("k", resident=300 * MIB)
    pid = next(iter(machine.kernel("k")["processes"]))["pid"]
    nvml.pids, nvml.used_by = [pid], {pid: 300 * MIB}

    def ask():
        return checked("GET", "/kernels/k", machine.ask("GET", "/kernels/k"))[1]

    return nvml, kernel, pid, ask


def test_a_kernels_share_of_its_gpu_is_what_nvml_samples_of_its_processes(told, wait_until):
    nvml, _, pid, ask = told
    nvml.percents = {pid: 31, pid + 1: 60}
    wait_until(lambda: ask()["busy_percent"] == 31)
    nvml.percents = {}
    wait_until(lambda: ask()["busy_percent"] == 0)
    nvml.percents = None
    wait_until(lambda: ask()["busy_percent"] is None)


def test_no_share_is_told_where_nvmls_pids_are_not_those_of_the_kernel(told, wait_until):
    nvml, _, pid, ask = told
    nvml.percents = {pid: 31}
    wait_until(lambda: ask()["busy_percent"] == 31)
    nvml.pids, nvml.used_by = [pid + 1], {pid + 1: 300 * MIB}
    wait_until(lambda: ask()["busy_percent"] is None)


def test_the_host_memory_that_a_park_takes_is_told(told):
    _, _, _, ask = told
    assert ask()["park_takes_bytes"] == 300 * MIB

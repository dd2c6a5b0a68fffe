"""NVML: its figures decide, it never blocks, and there is a life without it. Also on the simulated one."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from types import SimpleNamespace

import pynvml
import pytest
from fake_nvml import UUID, FakeNvml
from fake_shim import MIB, PARK, PARKED, RESIDENT, RESUME, ROOM_ANSWER
from waiting import until

from jupyter_affinode.node import controller
from jupyter_affinode.node.system import nvml as nvml_module
from jupyter_affinode.node.system.nvml import NvmlMissing, NvmlReader, NvmlSample


@pytest.fixture
def nvml():
    made = FakeNvml(500 * MIB, percent=37)
    yield made
    made.gate.set()


def let_it_decide(shim, wait_until):
    """Wait until the controller has decided with what it knows now: it does so more often than its heart beats."""
    beats = shim.heard.heartbeats
    wait_until(lambda: shim.heard.heartbeats > beats + 1)


def test_the_gpu_is_described_with_what_is_not_ours(node, shim, nvml, wait_until):
    machine = node(nvml=nvml)
    shim("k", resident=300 * MIB)
    wait_until(lambda: (machine.node()["gpus"] or [{}])[0].get("managed_bytes"))
    described = machine.node()
    assert described["nvml"] is True
    assert described["driver_version"] == "580.1"
    (gpu,) = described["gpus"]
    assert set(gpu.pop("utilization_history")) == {37}
    assert described["gpus"] == [
        {
            "uuid": UUID,
            "index": 0,
            "name": "A GPU",
            "mig": False,
            "total_bytes": 1000 * MIB,
            "used_bytes": 500 * MIB,
            "free_bytes": 500 * MIB,
            "managed_bytes": 300 * MIB,
            "context_bytes": None,
            "unmanaged_bytes": 200 * MIB,
            "unmanaged": None,
            "speed": None,
            "utilization_percent": 37,
        }
    ]


def test_without_nvml_that_is_said_and_the_shims_figures_are_used(node, shim, wait_until):
    machine = node()
    shim("k", resident=300 * MIB)
    wait_until(lambda: machine.node()["gpus"])
    described = machine.node()
    assert described["nvml"] is False
    assert described["gpus"][0]["total_bytes"] is None
    assert described["gpus"][0]["used_bytes"] == 300 * MIB
    # A thread looks for it.
    wait_until(lambda: "no NVML (no NVML in this test)" in machine.controller_log())


def test_a_resume_waits_for_room_that_nvml_sees(node, shim, nvml, wait_until):
    nvml.free = 100 * MIB  # from the first look on
    machine = node(nvml=nvml)
    kernel = shim("k", parked=300 * MIB)
    shim("busy", busy=True, resident=600 * MIB)
    kernel.touch()
    wait_until(lambda: machine.node()["queue"] == ["k"])
    let_it_decide(kernel, wait_until)
    assert kernel.heard.of(RESUME) == []
    nvml.free = 400 * MIB
    wait_until(lambda: kernel.state == RESIDENT)


def test_nothing_is_resumed_before_nvml_has_answered(node, shim, nvml, wait_until):
    """Its first look may take seconds, and without figures every kernel would seem to fit."""
    nvml.free = 100 * MIB
    nvml.gate.clear()
    machine = node(nvml=nvml)
    kernel = shim("k", parked=300 * MIB)
    kernel.touch()
    wait_until(lambda: machine.node()["queue"] == ["k"])
    let_it_decide(kernel, wait_until)
    assert kernel.heard.of(RESUME) == []
    nvml.gate.set()
    wait_until(lambda: machine.node()["nvml"])
    let_it_decide(kernel, wait_until)
    assert kernel.heard.of(RESUME) == []
    nvml.free = 400 * MIB
    wait_until(lambda: kernel.state == RESIDENT)


def test_a_driver_that_hangs_from_the_start_is_not_waited_for_for_ever(
    node, shim, nvml, wait_until, monkeypatch
):
    monkeypatch.setattr(controller, "NVML_HANGS_AFTER_S", 0.5)
    nvml.gate.clear()
    node(nvml=nvml)
    kernel = shim("k", parked=300 * MIB)
    kernel.touch()
    wait_until(lambda: kernel.state == RESIDENT)


def test_room_that_was_given_is_not_given_again_before_nvml_shows_it(node, shim, nvml, wait_until):
    """Two resumes of 300 MiB into 500 MiB: the second must wait although NVML still says 500."""
    machine = node(nvml=nvml)
    kernels = [shim(f"k{number}", parked=300 * MIB) for number in range(2)]
    nvml.free = 500 * MIB
    kernels[0].on_command = lambda command: None  # it takes its time
    kernels[0].touch()
    wait_until(lambda: kernels[0].heard.of(RESUME))
    kernels[1].touch()
    wait_until(lambda: machine.node()["queue"] == ["k0", "k1"] or machine.node()["queue"] == ["k1"])
    let_it_decide(kernels[1], wait_until)
    assert kernels[1].heard.of(RESUME) == []


def test_a_low_gpu_is_relieved_without_a_waiter(node, shim, nvml, wait_until):
    node(nvml=nvml, idle_timeout_s=0.2)
    kernel = shim("k", resident=300 * MIB)
    assert kernel.heard.of(PARK) == []
    nvml.free = 40 * MIB
    wait_until(lambda: kernel.state == PARKED)
    assert kernel.heard.of(PARK)[0].reason == "GPU memory is low"


def test_an_allocation_that_can_never_fit_is_denied_soon(node, shim, nvml, wait_until):
    nvml.free = 100 * MIB
    node(nvml=nvml)
    shim("other", resident=300 * MIB)
    asker = shim("asker", resident=300 * MIB)
    asker.allocate(600 * MIB, number=1)
    wait_until(lambda: asker.heard.of(ROOM_ANSWER))
    assert asker.heard.of(ROOM_ANSWER)[0].argument == 0
    assert "cannot become free" in asker.heard.of(ROOM_ANSWER)[0].reason


def test_a_driver_that_hangs_stops_nothing_else(node, shim, nvml, wait_until, monkeypatch):
    monkeypatch.setattr(controller, "NVML_HANGS_AFTER_S", 1.5)
    machine = node(nvml=nvml)
    shim("k", resident=300 * MIB)
    wait_until(lambda: machine.node()["nvml"])
    nvml.gate.clear()
    for _ in range(3):
        assert machine.ask("POST", "/kernels/k/park", {})[0] == 200
        assert machine.ask("GET", "/node")[0] == 200
        assert machine.ask("POST", "/kernels/k/resume", {})[0] == 200
    assert machine.node()["nvml"] is False
    nvml.gate.set()
    wait_until(lambda: machine.node()["nvml"], message="it is believed again when it answers")


def test_nvml_that_breaks_later_is_noticed(node, shim, nvml, wait_until):
    machine = node(nvml=nvml)
    shim("k", resident=300 * MIB)
    wait_until(lambda: machine.node()["nvml"])
    nvml.broken = True
    wait_until(lambda: not machine.node()["nvml"])
    assert "Driver Not Loaded" in machine.controller_log()


def test_an_unforeseen_error_does_not_end_the_looks(monkeypatch):
    monkeypatch.setattr(nvml_module, "RETRY_FIRST_S", 0.01)
    answers = [ValueError("a figure that is no number"), NvmlSample(0.0, "1", ())]
    taken = []

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def body():
        reader = NvmlReader(taken.append, logging.getLogger("test"), read)
        reader.sample_soon()
        await until(lambda: len(taken) == 2)
        reader.close()

    asyncio.run(body())
    assert taken == [None, NvmlSample(0.0, "1", ())]


class Pynvml:
    """Three GPUs; `errors` by number."""

    def __init__(self, errors=()):
        self.errors, self.memory_errors = dict(errors), {}
        self.parts, self.inits = {}, 0

    def __getattr__(self, name):
        return getattr(pynvml, name)

    def nvmlInit(self):
        self.inits += 1

    def nvmlShutdown(self):
        """It ends."""

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        error = self.errors.get(index)
        if error is not None:
            raise error if isinstance(error, Exception) else pynvml.NVMLError(error)
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle):
        return "A GPU"

    def nvmlDeviceGetMigMode(self, handle):
        if handle not in self.parts:
            self._none()
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return len(self.parts[handle])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        return self.parts[handle][index]

    def nvmlDeviceGetMemoryInfo(self, handle):
        if handle in self.memory_errors:
            raise pynvml.NVMLError(self.memory_errors[handle])
        return SimpleNamespace(total=10, used=4, free=6)

    def _none(self, *_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    nvmlDeviceGetProcessUtilization = nvmlDeviceGetUtilizationRates = _none
    nvmlDeviceGetComputeRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses = _none


LOST, UNKNOWN = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN
NO_TEXT = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "pynvml decodes what the driver says")


@pytest.mark.parametrize(
    ("errors", "seen", "dead"),
    [
        ({}, ["GPU-0", "GPU-1", "GPU-2"], ()),
        ({1: LOST}, ["GPU-0", "GPU-2"], (1,)),
        ({0: UNKNOWN, 2: pynvml.NVML_ERROR_RESET_REQUIRED}, ["GPU-1"], (0, 2)),
        ({0: LOST, 1: LOST, 2: LOST}, None, None),
        ({1: pynvml.NVML_ERROR_TIMEOUT}, ["GPU-0", "GPU-2"], (1,)),
        ({0: pynvml.NVML_ERROR_NO_PERMISSION, 1: 12345}, ["GPU-2"], (0, 1)),
        ({1: NO_TEXT, 2: TypeError("no figure")}, ["GPU-0"], (1, 2)),
    ],
)
def test_a_lost_gpu_does_not_hide_the_other_gpus_figures(monkeypatch, errors, seen, dead):
    monkeypatch.setattr(nvml_module, "pynvml", Pynvml(errors))
    reader = nvml_module.Nvml()
    if seen is None:
        with pytest.raises(NvmlMissing):
            reader.read()
    else:
        sample = reader.read()
        assert ([gpu.uuid for gpu in sample.gpus], sample.dead) == (seen, dead)


@pytest.fixture
def fake_pynvml(monkeypatch):
    made = Pynvml()
    monkeypatch.setattr(nvml_module, "pynvml", made)
    return made


def names(sample):
    return [gpu.uuid for gpu in sample.gpus]


NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_gpu_without_memory_figures_hides_no_other(fake_pynvml):
    """As GPUs whose memory is the host's. It is named all the same."""
    fake_pynvml.memory_errors[1] = NOT_SUPPORTED
    sample = nvml_module.Nvml().read()
    assert (names(sample), sample.unsized, sample.dead) == (["GPU-0", "GPU-2"], ("GPU-1",), ())


def test_one_part_of_a_gpu_hides_neither_the_others_nor_other_gpus(fake_pynvml):
    fake_pynvml.parts[1] = ["a", "b", "c"]
    fake_pynvml.memory_errors.update(a=LOST, b=NOT_SUPPORTED)
    sample = nvml_module.Nvml().read()
    assert (names(sample), sample.unsized) == (["GPU-0", "GPU-c", "GPU-2"], ("GPU-b",))
    fake_pynvml.memory_errors.update(b=LOST, c=LOST)
    assert nvml_module.Nvml().read().dead == (1,)


def test_a_gpus_last_figures_stand_for_a_while_if_it_does_not_answer(fake_pynvml, monkeypatch):
    """Without figures every kernel would seem to fit there. Those of a lost GPU do not stand."""
    reader = nvml_module.Nvml()
    whole = reader.read()
    for number, error in enumerate((pynvml.NVML_ERROR_TIMEOUT, NOT_SUPPORTED, UNKNOWN, LOST)):
        fake_pynvml.errors[1] = error
        sample = reader.read()
        assert (sample.gpus == whole.gpus) == (not sample.dead) == (number < 2)
    fake_pynvml.errors[1] = pynvml.NVML_ERROR_TIMEOUT
    monkeypatch.setattr(nvml_module, "STANDS_S", 0.0)
    assert reader.read().dead == (1,)


def test_a_gpu_that_was_reset_is_found_again(fake_pynvml, monkeypatch):
    """By an NVML that begins anew, which is not done at every look."""
    reader = nvml_module.Nvml()
    fake_pynvml.errors[1] = LOST
    assert [reader.read().dead for _ in range(3)] == [(1,)] * 3
    assert fake_pynvml.inits == 1
    now = time.monotonic()
    monkeypatch.setattr(nvml_module.time, "monotonic", lambda: now + nvml_module.RETRY_FIRST_S)
    assert [reader.read().dead for _ in range(3)] == [(1,)] * 3
    assert fake_pynvml.inits == 2
    fake_pynvml.errors.clear()
    assert (len(reader.read().gpus), reader.read().dead) == (3, ())
    before = fake_pynvml.inits
    reader.read()
    assert fake_pynvml.inits == before


def test_what_is_only_shown_may_be_missing(fake_pynvml):
    fake_pynvml.nvmlSystemGetDriverVersion = fake_pynvml.nvmlDeviceGetName = fake_pynvml._none
    sample = nvml_module.Nvml().read()
    assert (sample.driver_version, {gpu.name for gpu in sample.gpus}) == ("", {"GPU"})


def test_a_gpu_that_is_lost_is_named_once(nvml, caplog):
    with caplog.at_level(logging.INFO):
        asyncio.run(_look_at([(), (1,), (1,), ()]))
    told = [record.message for record in caplog.records if "answer NVML" in record.message]
    assert len(told) == 2 and told[0].startswith("GPU 1 does not answer")


async def _look_at(looks):
    reader = NvmlReader(lambda sample: None, logging.getLogger("test"), lambda: None)
    for dead in looks:
        reader._looked(NvmlSample(time.monotonic(), "580.1", (), dead))
    reader.close()


def test_a_controller_leaves_a_gpu_that_another_serves(gpu_machine, wait_until):
    """Another socket, the same (simulated) GPU."""
    first = gpu_machine.start_controller()
    wait_until(lambda: gpu_machine.node()["nvml"])
    second = gpu_machine.start(
        sys.executable,
        "-m",
        "jupyter_affinode.node",
        f"--socket={gpu_machine.folder / 'second' / 'node.sock'}",
        stderr=subprocess.PIPE,
        text=True,
    )
    assert second.wait(timeout=60) == 3
    said = second.stderr.read()
    second.stderr.close()
    assert f"process {first.pid}" in said
    assert "must not share a GPU" in said
    assert gpu_machine.controller_pid() == first.pid


def test_the_simulated_gpu_is_read_by_pynvml_and_called_simulated(gpu_machine, wait_until):
    gpu_machine.simulate(memory="768MiB", gpus=2)
    gpu_machine.start_controller()
    wait_until(lambda: len(gpu_machine.node()["gpus"]) == 2)
    described = gpu_machine.node()
    assert described["simulated"] is True
    assert described["nvml"] is True
    assert [gpu["total_bytes"] for gpu in described["gpus"]] == [768 * MIB] * 2
    assert all("Simulated" in gpu["name"] for gpu in described["gpus"]), json.dumps(described["gpus"])


@pytest.mark.parametrize("gpus", [1, 2])
def test_nvml_is_believed_again_within_seconds_of_an_unknown_error(gpu_machine, wait_until, gpus):
    """However often that comes and goes."""
    gpu_machine.simulate(memory="256MiB", gpus=gpus)
    fails = gpu_machine.folder / "nvml-fails"
    gpu_machine.environment["AFFINODE_SIM_NVML_FAILS"] = str(fails)
    gpu_machine.start_controller()

    def is_known():
        found = gpu_machine.node()
        return found["nvml"] and [gpu["total_bytes"] for gpu in found["gpus"]] == [256 * MIB] * gpus

    wait_until(is_known)
    for _ in range(2):
        fails.touch()
        wait_until(lambda: not is_known())
        fails.unlink()
        wait_until(is_known, 6, gpu_machine.controller_log)


def test_an_nvml_that_is_not_there_is_looked_for_less_and_less_often(monkeypatch):
    """Up to every half minute, and soon again after it was there."""
    now, pauses = [1000.0], []
    monkeypatch.setattr(nvml_module.time, "monotonic", lambda: now[0])

    async def body():
        reader = NvmlReader(lambda sample: None, logging.getLogger("test"), lambda: None)
        for _ in range(8):
            reader._looked(NvmlMissing("no library"))
            pauses.append(reader._missing.retry_at - now[0])
            now[0] += pauses[-1]
        reader._looked(NvmlSample(now[0], "580.1", ()))
        reader._looked(NvmlMissing("Unknown Error"))
        pauses.append(reader._missing.retry_at - now[0])
        reader.close()

    asyncio.run(body())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 1.0]

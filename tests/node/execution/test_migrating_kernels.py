"""A kernel that resumes on another GPU: what its shim is told, what is reserved meanwhile, and what users are told."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from deep_shim import CONTEXT_FLAG, DeepShim
from fake_nvml import FakeNvml
from fake_shim import GPU, MIB, OK, PARKED, REFUSED, RESIDENT, RESUME, RESUMING, reply
from listening import Listening

from jupyter_affinode.node.metrics.history_options import HistoryOptions
from jupyter_affinode.node.model.backoff import Backoff
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.protocol.page import Depth, PageGpu, State
from jupyter_affinode.node.protocol.wire import HelloFlag, gpu_uuid
from jupyter_affinode.node.state import registry as state
from jupyter_affinode.node.state.gpus import reservations
from jupyter_affinode.node.state.gpus.context_depth import (
    ENVIRON_MAX,
    may_be_going_to,
    open_gpus,
    other_gpus,
    read_visible,
)
from jupyter_affinode.node.state.gpus.gpu_table import GpuTable
from jupyter_affinode.node.state.records.kernel import Failures, KernelRecord
from jupyter_affinode.node.system.nvml import NvmlSample
from jupyter_affinode.settings.policy import GIB, Settings

ELSEWHERE_FLAG, ELSEWHERE_MOVE = 128, 8  # of HELLO; of RESUME
OTHER = bytes(range(16, 32))
HOME_UUID, OTHER_UUID = gpu_uuid(GPU), gpu_uuid(OTHER)
TOTAL = 16 * GIB
DEEP_NODE = {"depth": "context", "low_watermark": 0.0}


class Mover(DeepShim):
    """Goes where it is told, or answers `elsewhere_status`."""

    elsewhere_status = OK
    goes = True  # else it comes back at home, whatever it was told

    def _move(self, command, status):
        is_told = command.kind == RESUME and command.argument & ELSEWHERE_MOVE
        if is_told and self.elsewhere_status != OK:
            self.send(reply(RESUME, command.epoch, self.elsewhere_status, 0, "it does not go there"))
        else:
            super()._move(command, status)

    def _moved(self, command):
        if command.kind == RESUME and command.argument & ELSEWHERE_MOVE:
            assert command.reason == OTHER_UUID
            self.page.memory[OTHER if self.goes else GPU] = self.page.memory.pop(GPU)
        super()._moved(command)


@pytest.fixture
def nvml():
    return FakeNvml({HOME_UUID: TOTAL, OTHER_UUID: TOTAL}, TOTAL, pids={os.getpid()})


@pytest.fixture
def mover(connect):
    """`mover("k", resident=…)`: a process that may come back elsewhere."""
    return partial(connect, Mover, flags=CONTEXT_FLAG | ELSEWHERE_FLAG)


def park(machine, kernel_id):
    """Take it off the GPU, context and all."""
    assert machine.ask("POST", f"/kernels/{kernel_id}/park", {})[0] == 200
    assert machine.kernel(kernel_id)["depth"] == "context"


def parked_with_home_full(machine, nvml, mover, wait_until):
    shim = mover("k", resident=300 * MIB)
    park(machine, "k")
    nvml.free[HOME_UUID] = GIB
    wait_until(lambda: machine.node()["gpus"][0]["free_bytes"] == GIB)
    return shim


def test_a_migration_is_shown_told_and_recorded(tmp_path, node, nvml, mover, wait_until):
    ledger = tmp_path / "ledger" / "l.sqlite"
    machine = node(nvml=nvml, history=HistoryOptions(ledger=ledger), **DEEP_NODE)
    heard = Listening(machine.socket)
    shim = parked_with_home_full(machine, nvml, mover, wait_until)
    shim.touch()
    # Its page says that it is back a moment before its reply, by which the move has ended.
    wait_until(lambda: machine.kernel("k")["moved_from"] == HOME_UUID)
    (command,) = shim.heard.of(RESUME)
    assert command.argument & ELSEWHERE_MOVE and command.reason == OTHER_UUID
    wait_until(lambda: machine.kernel("k")["residency"] == "resident")
    described = machine.kernel("k")
    assert [(gpu["uuid"], gpu["index"]) for gpu in described["gpus"]] == [(OTHER_UUID, 1)]
    (notice,) = wait_until(lambda: heard.of("moved"))
    assert notice["text"].startswith("came back on GPU 1, since GPU 0 was full.")

    def written():
        try:
            with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as opened:
                return opened.execute("SELECT gpu, from_gpu FROM events WHERE kind = 'resume'").fetchall()
        except sqlite3.OperationalError:
            return None  # it is being made

    wait_until(lambda: written() == [(OTHER_UUID, HOME_UUID)])
    heard.close()


def test_what_it_refuses_is_not_asked_again_at_once_and_home_is_as_before(node, nvml, mover, wait_until):
    machine = node(nvml=nvml, **DEEP_NODE)
    shim = parked_with_home_full(machine, nvml, mover, wait_until)
    shim.elsewhere_status = REFUSED
    shim.touch()
    wait_until(lambda: len(shim.heard.of(RESUME)) >= 2)
    asked = [command.deadline_ns for command in shim.heard.of(RESUME)]
    assert asked[1] - asked[0] >= 0.5e9
    assert machine.kernel("k")["place"] == 1 and machine.kernel("k")["moved_from"] is None
    nvml.free[HOME_UUID] = 16 * GIB
    wait_until(lambda: machine.kernel("k")["residency"] == "resident")
    assert not shim.heard.commands[-1].argument & ELSEWHERE_MOVE
    assert machine.kernel("k")["gpus"][0]["uuid"] == HOME_UUID


def test_a_resume_at_home_after_all_counts_as_no_migration(node, nvml, mover, wait_until):
    """The command says one thing, the page another: it is the page that knows."""
    machine = node(nvml=nvml, **DEEP_NODE)
    heard = Listening(machine.socket)
    shim = parked_with_home_full(machine, nvml, mover, wait_until)
    shim.goes = False
    shim.touch()
    wait_until(lambda: f"k came back on {HOME_UUID}, not on {OTHER_UUID}" in machine.controller_log())
    wait_until(lambda: machine.kernel("k")["residency"] == "resident")
    assert machine.kernel("k")["moved_from"] is None
    assert not heard.of("moved")
    heard.close()


def test_what_is_on_its_way_counts_on_the_gpu_where_it_will_be(node, nvml, mover, passes, wait_until):
    machine = node(nvml=nvml, **DEEP_NODE)
    nvml.free[OTHER_UUID] = 5 * GIB
    first = parked_with_home_full(machine, nvml, mover, wait_until)
    first.on_command = lambda command: None  # it takes its time
    second = mover("l", resident=300 * MIB)
    park(machine, "l")
    first.touch()
    wait_until(lambda: first.heard.of(RESUME))
    nvml.free[OTHER_UUID] = 4 * GIB  # the first has a part of its room by now
    wait_until(lambda: machine.node()["gpus"][1]["free_bytes"] == 4 * GIB)
    second.touch()
    wait_until(lambda: machine.kernel("l")["place"])
    passes(4)
    assert "resume l (" not in machine.controller_log()


def test_a_controller_that_finds_it_on_its_way_reserves_wherever_it_may_be_going(
    node, nvml, mover, passes, wait_until, monkeypatch
):
    """Its page does not say where; so no other kernel is given that room, at home or there."""
    monkeypatch.setattr(reservations, "NOTHING_COMES_S", 600.0)  # the waiter may be slow to connect
    nvml.free = {HOME_UUID: 4 * GIB, OTHER_UUID: 4 * GIB}
    machine = node(nvml=nvml, **DEEP_NODE)
    wait_until(lambda: machine.node()["gpus"])  # before that it is not known where it could go
    going = mover("going", parked=300 * MIB)
    going.page.host[5], going.page.context_bytes = 2, 3 * GIB
    going.become(RESUMING)
    wait_until(lambda: (machine.kernel("going") or {}).get("residency") == "resuming")
    waits = mover("waits", parked=300 * MIB)
    waits.page.host[5], waits.page.context_bytes = 2, 600 * MIB
    waits.become(PARKED)
    wait_until(lambda: (machine.kernel("waits") or {}).get("depth") == "context")
    waits.touch()
    wait_until(lambda: machine.kernel("waits")["place"])
    passes(4)
    assert "resume waits (" not in machine.controller_log()
    going.page.host[5], going.page.context_bytes = 0, 0
    going.become(RESIDENT)
    wait_until(lambda: waits.heard.of(RESUME))
    assert "resume waits (" in machine.controller_log()


# ---- which kernels may, and where


SOME = object()


def table(**changes):
    """Two GPUs, of which the second is changed."""
    home = NvmlGpu("GPU-home", 0, "H200", TOTAL, 0, TOTAL, 0, frozenset({7}))
    other = replace(home, uuid="GPU-other", index=1, pids=frozenset({7, 8}), **changes)
    gpus = GpuTable()
    gpus.take(NvmlSample(1.0, "580", (home, other)), Settings())
    return gpus


def process(
    *,
    visible=None,
    depth=Depth.CONTEXT,
    flags=HelloFlag.MIGRATES,
    gpus=1,
    state=State.QUEUED,
    connection=SOME,
):
    memory = tuple(PageGpu(uuid, 0, GIB, (0,) * 8) for uuid in ("GPU-home", "GPU-more")[:gpus])
    data = SimpleNamespace(state=state, depth=depth, gpus=memory)
    hello = SimpleNamespace(flags=flags)
    return SimpleNamespace(data=data, hello=hello, connection=connection, visible=visible, pid=7)


def kernel(*processes, wants=1.0, **fields):
    made = KernelRecord("k", wants_since=wants, **fields)
    made.processes.update(enumerate(processes))
    return made


DEEP = Settings(depth="context")
OURS = [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]


@pytest.mark.parametrize(
    ("of", "gpu", "policy", "found"),
    [
        (kernel(process()), {}, DEEP, True),
        (kernel(process(), process(state=State.NONE)), {}, DEEP, True),
        (kernel(process(visible=("1", "0"))), {}, DEEP, True),
        (kernel(process(visible=("GPU-oth",))), {}, DEEP, True),
        (
            kernel(process(), failures=Failures(migration={"GPU-other": Backoff(retry_at=9.0)})),
            {},
            DEEP,
            True,
        ),
        (
            kernel(process(), failures=Failures(migration={"GPU-other": Backoff(retry_at=11.0)})),
            {},
            DEEP,
            False,
        ),
        (kernel(process(visible=("0",))), {}, DEEP, False),
        (kernel(process(visible=("",))), {}, DEEP, False),
        (kernel(process(visible=("GPU-",))), {}, DEEP, False),
        (kernel(process(), wants=None), {}, DEEP, False),
        (kernel(process(depth=Depth.MEMORY)), {}, DEEP, False),
        (kernel(process(flags=HelloFlag.CONTEXT)), {}, DEEP, False),
        (kernel(process(gpus=2)), {}, DEEP, False),
        (kernel(process(), process()), {}, DEEP, False),
        (kernel(process(connection=None)), {}, DEEP, False),
        (kernel(), {}, DEEP, False),
        (kernel(process()), {"name": "H100"}, DEEP, False),
        (kernel(process()), {"total_bytes": TOTAL - 1}, DEEP, False),
        (kernel(process()), {"is_mig": True}, DEEP, False),
        (kernel(process()), {"pids": None}, DEEP, False),
        (kernel(process()), {"pids": frozenset({8, 9})}, DEEP, False),
        (kernel(process()), {}, Settings(), False),
        (kernel(process()), {}, DEEP.changed(allow_migration=False), False),
    ],
)
def test_which_kernels_may_migrate(of, gpu, policy, found):
    pids = gpu.pop("pids", frozenset({7, 8}))
    gpus = table(**gpu)
    known = gpus.measured["GPU-other"]
    gpus.sample = replace(gpus.sample, gpus=(gpus.measured["GPU-home"], replace(known, pids=pids)))
    assert other_gpus(of, open_gpus(OURS, gpus, policy), gpus, 10.0) == (("GPU-other",) if found else ())


def test_a_process_stopped_during_a_migration_keeps_its_room_on_the_target_gpu():
    """Where that is is not said any more; it goes on when it is continued."""
    stopped = kernel(process(state=State.RESUMING, connection=None))
    assert may_be_going_to(stopped, table()) == ["GPU-other"]


def test_what_a_process_was_started_to_see(tmp_path):
    (tmp_path / "12").mkdir()
    file = tmp_path / "12" / "environ"
    for written, seen in (
        (b"A=1\0CUDA_VISIBLE_DEVICES=1, GPU-5\0B=2\0", ("1", "GPU-5")),
        (b"CUDA_VISIBLE_DEVICES=\0", ("",)),
        (b"NOT_CUDA_VISIBLE_DEVICES=1\0", None),
        (b"", None),
        (b"CUDA_VISIBLE_DEVICES=1\0".ljust(ENVIRON_MAX, b"\0"), ("1",)),
        (b"CUDA_VISIBLE_DEVICES=1\0".ljust(ENVIRON_MAX + 1, b"\0"), ()),
    ):
        file.write_bytes(written)
        assert read_visible(12, tmp_path) == seen
    assert read_visible(13, tmp_path) == (), "what cannot be read allows nothing"


def test_what_processes_see_is_read_only_where_they_could_go_elsewhere(node, nvml, mover, monkeypatch):
    """On a machine of many users, for one, nothing of a foreign process is read for this."""
    read = []
    monkeypatch.setattr(state, "read_visible", lambda pid: read.append(pid))
    machine = node(nvml=nvml, low_watermark=0.0)
    mover("k", resident=300 * MIB)
    assert not read
    assert machine.ask("PATCH", "/policy", {"depth": "context"})[0] == 200
    assert read == [os.getpid()], "it was there before"
    mover("l", resident=300 * MIB)
    assert len(read) == 2

"""A process that claims to be resuming keeps no room from other users that it was not given."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from said_pages import FirstCommand, Says, comes

from jupyter_affinode.node.identity.identity import Identity
from jupyter_affinode.node.ledger.recorder import History
from jupyter_affinode.node.model.actions import GiveLots, Park
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.protocol.page import PageGpu, State
from jupyter_affinode.node.protocol.wire import LARGEST_BYTES, HelloFlag, gpu_uuid
from jupyter_affinode.node.state.gpus import gpu_processes
from jupyter_affinode.node.state.gpus.reservations import NOTHING_COMES_S
from jupyter_affinode.node.state.host.host_usage import has_gpu_memory
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.state.snapshot_builder import snapshot
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.nvml import NvmlSample
from jupyter_affinode.node.views.serializers import node_json
from jupyter_affinode.node.views.visibility import node_view, others
from jupyter_affinode.settings.policy import GIB, Settings

GPU, TOTAL = gpu_uuid(bytes(16)), 80 * GIB
SHIMS_BACK_AT = 1030.0


@pytest.fixture
def kernels(clock):
    made = NodeState(Settings(), HostMemory(256 * GIB, 200 * GIB))
    made.take_sample(NvmlSample(0.0, "580", (NvmlGpu(GPU, 0, "A GPU", TOTAL, 0, TOTAL, 0),)))
    return made


def reserved(kernels, now):
    kernels.refresh(now)
    return sum(each.bytes for each in snapshot(kernels, now, is_settled=True).reservations)


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("is_late", [True, False])
def test_a_resume_that_no_command_began_is_believed_while_it_may_be_an_earlier_controllers(
    kernels, is_shared, is_late
):
    """And like any other: of a GPU no more than there is, and until nothing comes of it."""
    kernels.pages_say_since_until = SHIMS_BACK_AT if is_shared else math.inf
    now = SHIMS_BACK_AT + 1 if is_late else 1000.0
    comes(kernels, Says(State.RESUMING, 0, 1 << 50), now)
    assert reserved(kernels, now + 1) == (0 if is_shared and is_late else TOTAL)
    assert reserved(kernels, now + 1 + NOTHING_COMES_S) in (0, TOTAL)
    assert reserved(kernels, now + 2 + NOTHING_COMES_S) == 0


def test_unknown_gpus_are_shown_only_to_the_user_who_named_them(kernels):
    """A page may name eight, a user may have hundreds of pages, and every user's panel would list them."""
    made_up = gpu_uuid(bytes([7] * 16))
    page = Says(State.RESIDENT)
    page.say(gpus=(PageGpu(GPU, GIB, 0, (0,) * 8), PageGpu(made_up, GIB, 0, (0,) * 8)))
    comes(kernels, page, 1.0)
    kernels.refresh(2.0)
    lots = SimpleNamespace(
        ready_bytes=0, given_bytes=0, earlier_bytes=lambda mapped: 0, limit_bytes=lambda _: 0
    )
    whole = node_json(kernels, [], lots, name="n", version="1", socket="s", uptime_s=1.0, history={})

    def seen(identity):
        return [gpu["uuid"] for gpu in node_view(identity, whole, kernels.kernels)["gpus"]]

    assert seen(Identity("uid-1")) == seen(Identity("uid-0", is_admin=True)) == [GPU, made_up]
    assert seen(Identity("uid-2")) == [GPU]


def test_other_peoples_programs_are_named_to_administrators_alone():
    row = {"pid": 5, "command": "thesis.py", "bytes": 7}
    gpu = {"uuid": GPU, "total_bytes": TOTAL, "used_bytes": 7, "unmanaged": [row]}
    node = {
        "gpus": [gpu],
        "host": {"parked_bytes": 0},
        "queue": [],
        "starting": [],
        "settings": Settings().as_dict(),
    }

    def seen(identity):
        return node_view(identity, node, {})["gpus"][0]["unmanaged"]

    assert seen(Identity("uid-0", is_admin=True)) == [row]
    assert seen(Identity("uid-1")) == [{"pid": None, "command": None, "bytes": 7}]


def test_no_user_is_shown_more_of_others_than_the_machine_has(kernels):
    """However many pages claim it: on the GPU as much as is in use, and in RAM as much as there is."""
    for number in range(40):
        comes(kernels, Says(State.RESIDENT, 1 << 50, parked=1 << 50), 1.0, kernel_id=f"liar-{number}")
    kernels.take_sample(
        NvmlSample(1.0, "580", (NvmlGpu(GPU, 0, "A GPU", TOTAL, TOTAL - 3 * GIB, 3 * GIB, 0),))
    )
    kernels.refresh(2.0)
    host = {"parked_bytes": 5 * GIB}
    node = {"gpus": [{"uuid": GPU, "used_bytes": TOTAL - 3 * GIB}], "host": host, "queue": []}
    shown = others(Identity("uid-honest"), kernels.kernels.values(), node)
    assert (shown["kernels"], shown["resident_bytes"], shown["parked_bytes"]) == (
        40,
        TOTAL - 3 * GIB,
        5 * GIB,
    )
    for process in kernels.processes():
        assert all(max(gpu.resident_bytes, gpu.parked_bytes) <= TOTAL for gpu in process.data.gpus)


def test_a_report_counts_for_no_kernel_more_than_a_gpu_has(kernels):
    """Its totals are of all users."""
    made_up = gpu_uuid(bytes([7] * 16))
    page = Says(State.RESIDENT)
    page.say(gpus=(PageGpu(GPU, 1 << 50, 1 << 50, (1 << 50,) * 8), PageGpu(made_up, 1 << 50, 0, (0,) * 8)))
    kernel = kernels.kernels[comes(kernels, page, 1.0).kernel_id]
    for process in kernel.processes.values():
        assert all(gpu.on_gpu_bytes == TOTAL for gpu in process.data.gpus), "with what cannot be moved"
    comes(kernels, Says(State.PARKED, parked=2 * GIB), 1.0)
    history = History(kernels, SimpleNamespace())
    assert history._gpus(kernel) == {GPU: (TOTAL, TOTAL + 2 * GIB), "": (TOTAL, 0)}
    kernels.take_sample(None)
    kernels.refresh(2.0)
    assert history._gpus(kernel)[made_up] == (LARGEST_BYTES, 0), "there is no better figure"


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_page_that_claims_to_be_parking_delays_no_other_park(kernels, is_shared):
    """It was not told to: neither its GPU memory nor room for it on the host is waited for."""
    kernels.pages_say_since_until = SHIMS_BACK_AT if is_shared else math.inf
    liar = Says(State.PARKING, 1 << 50)
    comes(kernels, liar, 1000.0, kernel_id="liar")
    comes(kernels, Says(State.RESIDENT, 60 * GIB), 1000.0, kernel_id="honest")
    comes(kernels, Says(State.QUEUED, parked=40 * GIB), 1000.0, kernel_id="asker")
    later = SHIMS_BACK_AT + 1
    for again in range(3):  # by connecting again it would be new each time
        now = later + again
        comes(kernels, liar, now, kernel_id="liar")
        gpu = NvmlGpu(GPU, 0, "A GPU", TOTAL, TOTAL - 10 * GIB, 10 * GIB, 0)
        kernels.take_sample(NvmlSample(now, "580", (gpu,)))
        kernels.refresh(now)
        actions = decide(now, snapshot(kernels, now, is_settled=True), kernels.settings)
        parked = [action.kernel_id for action in actions if isinstance(action, Park)]
        assert parked == ["uid-1/honest"]


def test_no_kernel_is_taken_to_have_more_on_a_gpu_than_there_is(kernels):
    """Parking it would take as much host memory."""
    page = Says(State.RESIDENT)
    page.say(gpus=(PageGpu(GPU, 1 << 50, 0, (0,) * 8), PageGpu("GPU-unknown", 1 << 50, 0, (0,) * 8)))
    comes(kernels, page, 1.0)
    kernels.refresh(2.0)
    (seen,) = snapshot(kernels, 2.0, is_settled=True).kernels
    assert seen.resident_bytes == {GPU: TOTAL, "GPU-unknown": TOTAL}


@pytest.fixture
def lots(kernels):
    """As many as any kernel could want."""
    kernels.settings = kernels.settings.changed(lot_bytes=64 * GIB, idle_timeout_s=5, park_when="idle")
    kernels.host.lots_ready_bytes = 64 * GIB
    return kernels


def says_it_has(kernels, owner, size, pid=0, kernel_id="k", parked=0):
    page = Says(State.RESIDENT if size else State.PARKED, size, parked, last_activity=1.0)
    hello = SimpleNamespace(flags=HelloFlag(0), kernel_id=kernel_id, command="python", shim_version="1")
    kernels.add_process(FirstCommand(Identity(owner, owner), pid), hello, page, 1.0)


def lots_given(kernels, pids, used):
    """Bytes of lots by kernel, in one decision; `pids`: what NVML lists, with bytes, None: it cannot."""
    gpu = NvmlGpu(GPU, 0, "A GPU", TOTAL, used, TOTAL - used, 0, frozenset(pids or ()), pids or {})
    kernels.take_sample(NvmlSample(9.0, "580", (gpu if pids is not None else replace(gpu, pids=None),)))
    kernels.refresh(10.0)
    actions = decide(10.0, snapshot(kernels, 10.0, is_settled=True), kernels.settings)
    return {action.kernel_id: action.lot_bytes for action in actions if isinstance(action, Park | GiveLots)}


@pytest.mark.parametrize("sees_all", [True, False])
def test_a_kernel_without_gpu_memory_gets_no_lots(lots, monkeypatch, sees_all):
    """By its own pid where NVML's are ours; else by the sum of what is claimed, the largest claims last."""
    monkeypatch.setattr(gpu_processes, "sees_all_pids", lambda: sees_all)
    says_it_has(lots, "uid-1", 40 * GIB, pid=10_000_001)
    says_it_has(lots, "uid-2", 4 * GIB, pid=10_000_002)
    says_it_has(lots, "uid-2", 3 * GIB, pid=10_000_003, kernel_id="other")
    given = lots_given(lots, {10_000_002: 4 * GIB, 10_000_003: 1 * GIB}, 7 * GIB)
    other = 1 * GIB if sees_all else 3 * GIB
    assert given == {"uid-2/k": 4 * GIB, "uid-2/other": other}


def test_where_nvml_names_no_processes_small_claims_of_one_person_count_together(lots):
    says_it_has(lots, "uid-2", 8 * GIB)
    for number in range(10):
        says_it_has(lots, "uid-1", 1 * GIB, kernel_id=f"k{number}")
    given = lots_given(lots, None, 9 * GIB)
    assert given["uid-2/k"] == 8 * GIB
    assert sum(given.values()) == 9 * GIB


def test_of_a_kernels_processes_only_those_with_gpu_memory_get_lots(lots):
    says_it_has(lots, "uid-1", 8 * GIB)
    kernel = lots.kernels["uid-1/k"]
    (liar,) = kernel.processes.values()
    lots_given(lots, None, 8 * GIB)
    assert has_gpu_memory(liar)
    lots_given(lots, None, 0)
    assert not has_gpu_memory(liar)
    lots.take_sample(None)
    snapshot(lots, 11.0, is_settled=True)
    assert has_gpu_memory(liar), "without NVML there is no better figure"


def test_no_kernel_is_parked_before_its_server_can_have_spoken_for_it(kernels):
    """That a cell is open, or that they opted out, a new controller hears from the server alone."""
    kernels.take_settings(Settings(park_when="idle"))
    comes(kernels, Says(State.RESIDENT, 40 * GIB), 1000.0)
    kernels.refresh(1000.0)

    def parks(*, is_complete):
        node = snapshot(kernels, 5000.0, is_settled=True, is_complete=is_complete)
        return [action for action in decide(5000.0, node, kernels.settings) if isinstance(action, Park)]

    assert not parks(is_complete=False)
    assert parks(is_complete=True)
    kernels.kernels["uid-1/k"].describe(server="alice's")
    assert parks(is_complete=False)


# ---- victims


def claims(kernels, pids, used, *uuids):
    """What the policy sees of each kernel on the first of the GPUs (default: the only one)."""
    gpus = [
        NvmlGpu(
            uuid,
            0,
            "A GPU",
            TOTAL,
            used,
            TOTAL - used,
            0,
            None if pids is None else frozenset(pids),
            pids or {},
        )
        for uuid in uuids or (GPU,)
    ]
    kernels.take_sample(NvmlSample(9.0, "580", tuple(gpus)))
    kernels.refresh(10.0)
    return {each.id: each.resident_bytes for each in snapshot(kernels, 10.0, is_settled=True).kernels}


@pytest.fixture
def names(monkeypatch):
    """NVML's pids are ours."""
    monkeypatch.setattr(gpu_processes, "sees_all_pids", lambda: True)


def test_no_kernel_is_a_victim_for_more_than_nvml_shows_of_its_own_processes(kernels, names):
    """Not for what the GPU's other users have: a claim beside that is worth nothing."""
    says_it_has(kernels, "uid-1", 30 * GIB, pid=1)
    for number in range(40):
        says_it_has(kernels, "uid-2", 40 * GIB, pid=2 + number % 2, kernel_id=f"fake-{number}")
    found = claims(kernels, {1: 30 * GIB, 3: 1 * GIB, 77: 9 * GIB}, 40 * GIB)
    assert found.pop("uid-1/k") == {GPU: 30 * GIB}
    assert sum(each[GPU] for each in found.values()) == 1 * GIB, "fakes of one process share what it has"


def test_what_one_page_of_a_process_parked_bears_out_no_claim_of_another(kernels, names):
    """Else a process that has a little would be told to park it again and again, and free nothing each time."""
    says_it_has(kernels, "uid-2", 0, pid=3, kernel_id="was-asked", parked=40 * GIB)
    says_it_has(kernels, "uid-2", 40 * GIB, pid=3, kernel_id="next")
    says_it_has(kernels, "uid-1", 20 * GIB, pid=1, parked=10 * GIB)  # in part
    found = claims(kernels, {1: 20 * GIB, 3: GIB}, 21 * GIB)
    assert found["uid-2/next"] == {GPU: 0} and found["uid-1/k"] == {GPU: 20 * GIB}


def test_a_claim_on_another_gpu_counts_there_alone(kernels, names):
    other = gpu_uuid(bytes([7] * 16))
    page = Says(State.RESIDENT)
    page.say(gpus=(PageGpu(GPU, GIB, 0, (0,) * 8), PageGpu(other, 30 * GIB, 0, (0,) * 8)))
    comes(kernels, page, 1.0, pid=5)
    claims(kernels, {5: 2 * GIB}, 2 * GIB, GPU, other)
    (seen,) = snapshot(kernels, 10.0, is_settled=True).kernels
    assert seen.resident_bytes == {GPU: GIB, other: 2 * GIB}
    assert seen.frees_bytes[other] == 2 * GIB


def test_what_nvml_names_no_process_for_is_shared_by_those_that_it_does_not_name(kernels, names):
    """As where it names none at all (WSL), or not how much each has (virtual GPUs)."""
    says_it_has(kernels, "uid-1", 30 * GIB, pid=1)
    says_it_has(kernels, "uid-2", 20 * GIB, pid=2)
    assert claims(kernels, {}, 55 * GIB) == {"uid-1/k": {GPU: 30 * GIB}, "uid-2/k": {GPU: 20 * GIB}}
    assert claims(kernels, {1: None}, 55 * GIB) == {"uid-1/k": {GPU: 30 * GIB}, "uid-2/k": {GPU: 0}}


def test_where_nvml_names_no_processes_users_whose_parks_failed_are_believed_last(kernels):
    says_it_has(kernels, "uid-1", 30 * GIB)
    for number in range(40):
        says_it_has(kernels, "uid-2", GIB // 4, kernel_id=f"fake-{number}")

    def honest():
        return claims(kernels, None, 30 * GIB)["uid-1/k"][GPU]

    for kernel in kernels.kernels.values():
        kernel.account.charged_user = kernel.account.owner
    assert honest() == 20 * GIB
    kernels.failed_parks.failed("uid-2", 1.0, 2.0)
    assert honest() == 30 * GIB


def test_figures_from_before_a_kernels_last_move_say_nothing_of_it(kernels):
    says_it_has(kernels, "uid-1", 30 * GIB)
    assert claims(kernels, {}, 0) == {"uid-1/k": {GPU: 0}}
    kernels.kernels["uid-1/k"].last_move.ended_at = 9.5
    assert claims(kernels, {}, 0) == {"uid-1/k": {GPU: 30 * GIB}}
    kernels.take_sample(None)
    (seen,) = snapshot(kernels, 11.0, is_settled=True).kernels
    assert seen.resident_bytes == {GPU: 30 * GIB}, "without NVML there is no better figure"


def test_of_a_gpu_without_memory_figures_pages_are_all_that_is_known(kernels, names):
    """Beside one with figures: kernels are parked there as without NVML."""
    page = Says(State.RESIDENT)
    page.say(gpus=(PageGpu("GPU-unsized", GIB, 0, (0,) * 8), PageGpu("GPU-made-up", GIB, 0, (0,) * 8)))
    comes(kernels, page, 1.0, pid=5)
    gpu = NvmlGpu(GPU, 0, "A GPU", TOTAL, 0, TOTAL, 0, frozenset({5}), {5: 0})
    kernels.take_sample(NvmlSample(9.0, "580", (gpu,), unsized=("GPU-unsized",)))
    kernels.refresh(10.0)
    node = snapshot(kernels, 10.0, is_settled=True)
    assert node.kernels[0].resident_bytes == {"GPU-unsized": GIB, "GPU-made-up": 0}
    assert not node.gpus["GPU-unsized"].is_measured

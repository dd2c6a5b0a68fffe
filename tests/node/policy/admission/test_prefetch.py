"""Prefetch: kernels whose use is announced come back early, and no kernel is ever parked for that."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from fake_nvml import FakeNvml
from fake_shim import MIB
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_affinode.node.model.actions import Park, Resume
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.model.snapshot import Gpu, Host, Kernel, Node, Residency, RoomRequest
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.victims.eligibility import eligible_at
from jupyter_affinode.settings.policy import GIB, Settings

NOW = 5000.0
QUICK = Settings(idle_timeout_s=2.0, cell_idle_timeout_s=4.0, margin_bytes=2 * MIB, host_reserve_bytes=0)


def machine(*kernels, free=100 * GIB, total=140 * GIB, is_reclaiming=False):
    """A machine with one GPU."""
    gpu = Gpu("A", free, total, NOW, is_reclaiming=is_reclaiming)
    return Node({"A": gpu}, kernels, Host(1 << 40, total_bytes=1 << 40))


def parked(**others):
    """A parked kernel of 10 GiB."""
    return Kernel("k", Residency.PARKED, parked_bytes={"A": 10 * GIB}, last_activity=NOW - 600, **others)


# ---- what is decided


def test_an_expected_kernel_is_resumed_where_there_is_room():
    (action,) = decide(NOW, machine(parked(expected_until=NOW + 5)), Settings())
    assert isinstance(action, Resume) and action.cause is Cause.PREFETCH
    assert action.reserved_bytes == {"A": 10 * GIB}


@pytest.mark.parametrize(
    ("kernel", "room"),
    [
        (parked(), {}),
        (parked(expected_until=NOW - 1), {}),
        (parked(expected_until=NOW + 5), {"free": 9 * GIB}),
        (parked(expected_until=NOW + 5), {"free": 15 * GIB}),  # it would fall under the low watermark
        (parked(expected_until=NOW + 5), {"free": 22 * GIB, "is_reclaiming": True}),
        (parked(expected_until=NOW + 5), {"total": None}),  # without NVML other programs are not seen
        (parked(expected_until=NOW + 5, is_dying=True), {}),
        (parked(expected_until=NOW + 5, context_bytes={"A": GIB // 2}), {}),
        (parked(expected_until=NOW + 5, resume_retry_at=NOW + 1), {}),
        (parked(expected_until=NOW + 5, is_moving=True), {}),
    ],
)
def test_a_kernel_is_not_resumed_early_at_anothers_cost(kernel, room):
    assert decide(NOW, machine(kernel, **room), Settings()) == []


def test_a_kernel_is_not_resumed_early_where_idle_kernels_are_always_parked():
    assert decide(NOW, machine(parked(expected_until=NOW + 5)), Settings(park_when="idle")) == []


def test_a_kernel_is_not_resumed_early_while_another_waits():
    room = RoomRequest((1, 1), "A", 200 * GIB, NOW - 0.1)
    waiter = Kernel("w", Residency.RESIDENT, {"A": GIB}, last_activity=NOW, rooms=(room,))
    actions = decide(NOW, machine(parked(expected_until=NOW + 5), waiter), Settings())
    assert not any(action.kernel_id == "k" for action in actions)


def test_a_kernel_is_not_resumed_early_beyond_its_users_quota():
    expected = parked(expected_until=NOW + 5, user="alice")
    other = Kernel(
        "o", Residency.RESIDENT, {"A": 8 * GIB}, last_activity=NOW, user="alice", calls_in_flight=1
    )
    assert decide(NOW, machine(expected, other), Settings(quotas="alice=16GiB")) == []
    assert decide(NOW, machine(expected, other), Settings(quotas="alice=32GiB"))


def test_an_expected_kernel_stays_unless_another_waits():
    policy = Settings(idle_timeout_s=10.0, contended_idle_timeout_s=10.0)
    kernel = Kernel("k", Residency.RESIDENT, {"A": 10 * GIB}, last_activity=NOW - 20, expected_until=NOW + 30)
    assert eligible_at(kernel, policy, waits_since=None) == NOW + 30
    assert eligible_at(kernel, policy, waits_since=NOW) <= NOW


def is_prefetch(action):
    return isinstance(action, Resume) and action.cause is Cause.PREFETCH


def parks(actions):
    return {action.kernel_id for action in actions if isinstance(action, Park)}


@st.composite
def quiet_machines(draw):
    """Kernels at rest, some of them expected, on a GPU with more or less room; no kernel waits. And the settings."""
    kernels = []
    for number in range(draw(st.integers(1, 5))):
        size = {"A": draw(st.integers(1, 400)) * MIB}
        is_parked = draw(st.booleans())
        kernels.append(
            Kernel(
                f"k{number}",
                Residency.PARKED if is_parked else Residency.RESIDENT,
                {} if is_parked else size,
                size if is_parked else {},
                last_activity=NOW - draw(st.floats(0, 20)),
                cell_open=draw(st.booleans()),
                user=draw(st.sampled_from(["ann", "bob"])),
                expected_until=draw(st.sampled_from([0.0, NOW + 5])) if is_parked else 0.0,
            )
        )
    low = draw(st.sampled_from([0, 50, 300]))
    policy = QUICK.changed(low_watermark=low / 1000, quotas=draw(st.sampled_from(["", "*=300MiB"])))
    free, high = draw(st.integers(0, 1000)), 1000 * policy.high_watermark
    is_reclaiming = free < low or (free < high and draw(st.booleans()))
    node = machine(*kernels, free=free * MIB, total=1000 * MIB, is_reclaiming=is_reclaiming)
    return node, policy


@given(quiet_machines())
@settings(max_examples=100, deadline=None)
def test_no_kernel_is_ever_parked_because_of_prefetch(quiet_machine):
    """Neither by the pass that decides on it, nor by the next one, when it has come back and nothing else changed."""
    node, policy = quiet_machine
    unexpected = replace(node, kernels=tuple(replace(each, expected_until=0.0) for each in node.kernels))
    without, actions = decide(NOW, unexpected, policy), decide(NOW, node, policy)
    assert [action for action in actions if not is_prefetch(action)] == without
    came_back = {action.kernel_id for action in actions if is_prefetch(action)}
    gpu = node.gpus["A"]
    free = gpu.free_bytes - sum(each.parked_bytes["A"] for each in node.kernels if each.id in came_back)
    later = tuple(
        replace(each, residency=Residency.RESIDENT, resident_bytes=each.parked_bytes, parked_bytes={})
        if each.id in came_back
        else each
        for each in unexpected.kernels
    )
    is_low = free < policy.low_watermark * gpu.total_bytes
    fuller = replace(gpu, free_bytes=free, is_reclaiming=gpu.is_reclaiming or is_low)
    assert parks(decide(NOW, replace(node, gpus={"A": fuller}, kernels=later), policy)) <= parks(without)


# ---- what announces it


@pytest.mark.parametrize(
    ("path", "body"), [("cell", {"open": True, "cell_id": "c"}), ("focus", {})], ids=["cell", "focus"]
)
def test_a_cell_or_a_look_brings_a_parked_kernel_back(node, shim, wait_until, path, body):
    running = node(nvml=FakeNvml(15 * GIB, 16 * GIB))
    kernel = shim("k1", parked=300 * MIB)
    assert running.ask("POST", "/kernels/k1/cell", {"open": False})[0] == 204
    if path == "cell":
        body = body | {"began_at": time.monotonic()}
    assert running.ask("POST", f"/kernels/k1/{path}", body)[0] == 204
    wait_until(lambda: running.kernel("k1")["residency"] == "resident")
    assert [command.reason for command in kernel.heard.of(2)] == ["it is about to be used"]


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
def test_a_kernel_that_was_parked_in_its_own_cell_stays_parked(node, shim, wait_until, is_late):
    """As by `%%gpu_park`: what was announced before the park does not count, however late the server's word comes."""
    running = node(nvml=FakeNvml(15 * GIB, 16 * GIB))
    kernel, _ = shim("k1", resident=300 * MIB), shim("k2", parked=300 * MIB)
    assert running.ask("POST", "/kernels/k1/focus", {})[0] == 204
    cell = {"open": True, "cell_id": "c", "began_at": time.monotonic()}
    if not is_late:
        assert running.ask("POST", "/kernels/k1/cell", cell)[0] == 204
    assert running.ask("POST", "/kernels/k1/park", {})[0] == 200
    if is_late:
        assert running.ask("POST", "/kernels/k1/cell", cell)[0] == 204
    assert running.ask("POST", "/kernels/k2/focus", {})[0] == 204
    wait_until(lambda: running.kernel("k2")["residency"] == "resident")
    assert running.kernel("k1")["residency"] == "parked"
    kernel.touch()
    wait_until(lambda: running.kernel("k1")["residency"] == "resident")
    (command,) = kernel.heard.of(2)
    assert command.reason.startswith("it waited")


@pytest.mark.parametrize("earlier", [None, {"open": False}], ids=["its first word", "a later word"])
@pytest.mark.parametrize("began", [{"began_at": -3600.0}, {}], ids=["long ago", "unknown"])
def test_a_cell_that_began_before_the_park_does_not_bring_it_back(node, shim, wait_until, earlier, began):
    """Its server's word may come late; a new controller is told of cells that have run for hours."""
    running = node(nvml=FakeNvml(15 * GIB, 16 * GIB))
    kernel, _ = shim("k1", parked=300 * MIB), shim("k2", parked=300 * MIB)
    if earlier:
        assert running.ask("POST", "/kernels/k1/cell", earlier)[0] == 204
    assert running.ask("POST", "/kernels/k1/cell", {"open": True, "cell_id": "a cell", **began})[0] == 204
    assert running.ask("POST", "/kernels/k2/focus", {})[0] == 204
    wait_until(lambda: running.kernel("k2")["residency"] == "resident")
    assert kernel.heard.of(2) == []
    the_next = {"open": True, "cell_id": "the next", "began_at": time.monotonic()}
    assert running.ask("POST", "/kernels/k1/cell", the_next)[0] == 204
    wait_until(lambda: running.kernel("k1")["residency"] == "resident")

"""What the users concerned are told, in plain words, and not too often."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml
from fake_shim import LOST, MIB, PARKED
from listening import Listening

from jupyter_affinode.node.execution import notices
from jupyter_affinode.node.execution.notices import Notice, Notices
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.state.gpus.gpu_table import GpuTable
from jupyter_affinode.node.state.observer import MoveEnded, RoomAnswered
from jupyter_affinode.node.state.records.kernel import Account, KernelRecord


@pytest.fixture
def listening(machine):
    """`listening()`: begins to hear the controller's notices."""
    made = []

    def start():
        made.append(Listening(machine.socket))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_a_parked_kernels_notice_names_the_waiter_and_says_that_nothing_is_lost(
    node, shim, listening, wait_until
):
    machine = node(idle_timeout_s=0.2)
    heard = listening()
    idle, waiter = shim("idle", resident=900 * MIB), shim("waiter")
    wait_until(lambda: (machine.kernel("idle") or {}).get("eligible"))
    waiter.allocate(800 * MIB, number=1)
    wait_until(lambda: idle.state == PARKED)
    (notice,) = wait_until(lambda: heard.of("made-room"))
    assert notice["kernel_id"] == "idle"
    assert notice["level"] == "info"
    assert notice["text"] == (
        "freed the GPU to make room for another notebook of yours. Its 900 MiB are safe in RAM and come back at "
        "the next use."
    )
    assert notice["args"] == {"bytes": 900 * MIB, "for": "own", "reason": "room"}


def test_low_gpu_memory_is_told_once(node, shim, listening, wait_until):
    nvml = FakeNvml(500 * MIB)
    machine = node(nvml=nvml)
    heard = listening()
    shim("k", resident=300 * MIB)
    wait_until(lambda: machine.node()["nvml"])
    nvml.free = 40 * MIB
    (notice,) = wait_until(lambda: heard.of("memory-low"))
    assert notice == {
        "kind": "memory-low",
        "level": "info",
        "text": "GPU memory is low: 40 MiB of 1000 MiB are free. Idle notebooks make room.",
        "kernel_id": None,
        "args": {"gpu": 0, "free_bytes": 40 * MIB, "total_bytes": 1000 * MIB},
    }


def test_a_refusal_names_its_reason(node, shim, listening, wait_until):
    machine = node(park_when="idle", idle_timeout_s=0.2, host_reserve_bytes=1 << 60)
    heard = listening()
    shim("k", resident=300 * MIB)
    (notice,) = wait_until(lambda: heard.of("refused"))
    assert notice["kernel_id"] == "k"
    assert notice["text"].startswith("stays on the GPU: ")
    assert "host memory" in notice["text"] or "RAM" in notice["text"]
    assert notice["args"] == {"reason": "no-host-memory", "bytes": 256 * MIB, "free_bytes": 0}
    kernel = machine.kernel("k")
    assert (kernel["refusal_code"], kernel["refusal_args"]) == (
        "no-host-memory",
        {"bytes": 256 * MIB, "free_bytes": 0},
    )


def test_a_stuck_kernels_user_is_told(node, shim, listening, wait_until):
    node()
    heard = listening()
    kernel = shim("k", resident=MIB)
    kernel.become(LOST)
    (notice,) = wait_until(lambda: heard.of("stuck"))
    assert "stuck" in notice["text"] and notice["args"]["reason"] == "lost" and notice["args"]["pid"] > 0
    assert notice["level"] == "warning"


# ---- without a controller


@pytest.fixture
def told(monkeypatch):
    """(observer, what it told, the state's kernels, a clock)"""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(notices.time, "monotonic", lambda: clock.now)
    kernels = {"k": KernelRecord("k", Account("a")), "mine": KernelRecord("mine", Account("a"))}
    kernels["theirs"] = KernelRecord("theirs", Account("b"))
    got: list[Notice] = []
    state = SimpleNamespace(kernels=kernels, gpus=GpuTable())
    return Notices(state, got.append), got, kernels, clock


def parked_for(other=None, cause=Cause.ROOM, outcome="ok"):
    return MoveEnded(True, outcome, cause, "memory", 12 << 30, 0.3, None, other)


def test_other_people_have_no_names(told):
    observer, got, kernels, clock = told
    for other, words, whose in (
        ("theirs", "another user", {"for": "other"}),
        ("mine", "another notebook of yours", {"for": "own"}),
        (None, "another", {}),
    ):
        observer.move_ended(kernels["k"], parked_for(other))
        assert f"for {words}" in got[-1].text
        assert got[-1].args == {"bytes": 12 << 30, "reason": "room", **whose}
        assert "theirs" not in str(got[-1].as_dict())
        clock.now += notices.SAME_AGAIN_S


def test_what_the_person_asked_for_or_set_is_no_news(told):
    observer, got, kernels, _ = told
    for cause in (Cause.ASKED, Cause.IDLE, Cause.OTHER):
        observer.move_ended(kernels["k"], parked_for(cause=cause))
    observer.move_ended(kernels["k"], parked_for("theirs", outcome="busy"))
    observer.park_refused(kernels["k"], "busy", True)
    kernels["k"].requests.park = "the user asked for it"
    observer.park_refused(kernels["k"], "no-host-memory", False)
    observer.room_answered(kernels["k"], RoomAnswered(True, "GPU-a", 1 << 30, 0.1))
    assert got == []


def test_the_same_is_not_told_again_at_once_and_something_else_is(told):
    observer, got, kernels, clock = told
    for _ in range(100):
        observer.move_ended(kernels["k"], parked_for("theirs"))
        clock.now += 1
    assert len(got) == 1
    observer.move_ended(kernels["mine"], parked_for("theirs"))
    observer.room_answered(kernels["k"], RoomAnswered(False, "GPU-a", 80 << 30, 0.6))
    assert [(notice.kernel_id, notice.kind) for notice in got[1:]] == [
        ("mine", "made-room"),
        ("k", "no-room"),
    ]
    assert "80 GiB" in got[-1].text
    clock.now += notices.SAME_AGAIN_S
    observer.move_ended(kernels["k"], parked_for("theirs"))
    assert len(got) == 4


def test_what_was_told_is_not_remembered_without_end(told, monkeypatch):
    monkeypatch.setattr(notices, "REMEMBERED", 3)
    observer, got, _, clock = told
    for number in range(10):
        observer.move_ended(KernelRecord(f"k{number}"), parked_for())
        clock.now += 1
    assert len(got) == 10
    assert len(observer._told) == 3

"""What the API says of a kernel and its GPU beside sizes: calls, moves, reasons, what a wait is for."""

from __future__ import annotations

import time

from api_answers import checked
from fake_shim import GPU, MIB, NO_HOST_ROOM, RESUMING

from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.model.reasons import BlockerReason, WaitReason
from jupyter_affinode.node.policy.wait_blockers import Blocker
from jupyter_affinode.node.policy.wait_estimates import WaitEstimate
from jupyter_affinode.node.state.gpus.gpu_table import GpuTable
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.system.nvml import NvmlSample
from jupyter_affinode.node.views.serializers import kernel_json, without_volatile
from jupyter_affinode.settings.policy import GIB, Settings


def test_a_park_and_a_resume_are_told_with_sizes_times_and_reasons(node, shim):
    machine = node()
    kernel = shim("k", resident=300 * MIB)

    def ask(method="GET", action="", body=None):
        return checked(method, f"/kernels/k{action}", machine.ask(method, f"/kernels/k{action}", body))[1]

    before = ask()
    assert before["reason_code"] is before["last_park"] is before["move"] is before["wait"] is None
    began = time.monotonic()
    ask("POST", "/park", {"wait": True})
    parked = ask()
    assert (parked["reason_code"], parked["reason_args"]) == ("asked", {})
    assert 0 <= parked["last_park"]["ago_s"] <= time.monotonic() - began and parked["last_resume"] is None
    assert parked["resume_estimate_s"] > 0
    ask("POST", "/resume", {"wait": True})
    back = ask()
    assert (back["reason"], back["reason_code"]) == (None, "asked")
    assert back["last_resume"]["ago_s"] <= back["last_park"]["ago_s"]
    assert back["resume_estimate_s"] > 0, "what it would take, known before it is freed"
    kernel.page.memory[GPU][:2] = [100 * MIB, 200 * MIB]
    kernel.become(RESUMING)
    move = ask()["move"]
    assert (move["kind"], move["bytes"]) == ("resume", 300 * MIB)


def test_a_refusal_has_its_word(node, shim, wait_until):
    machine = node()
    shim("k", resident=300 * MIB, park_status=NO_HOST_ROOM)
    machine.ask("PATCH", "/policy", {"park_when": "idle", "idle_timeout_s": 0})
    told = wait_until(lambda: (found := machine.kernel("k"))["refusal_code"] and found)
    assert told["refusal_code"] == "no-host-memory" and told["refusal_args"] == {"bytes": 300 * MIB}


def test_another_users_blocker_has_no_id():
    now = time.monotonic()
    state = NodeState(Settings(), HostMemory(256 * GIB, 200 * GIB))
    waiter, own, other = (state.kernel(name, now) for name in ("uid-1/w", "uid-1/own", "uid-2/other"))
    for kernel, owner in ((waiter, "uid-1"), (own, "uid-1"), (other, "uid-2")):
        kernel.account.owner = owner
        kernel.processes[1] = None  # type: ignore[assignment]  # there is one
    gone = Blocker("uid-1/gone", BlockerReason.IDLE)
    blockers = [
        Blocker(own.id, BlockerReason.HELD, now + 60),
        Blocker(other.id, BlockerReason.COMPUTING),
        gone,
    ]
    estimate = WaitEstimate(1, now, WaitReason.COMPUTING, None, {"bytes": 5}, tuple(blockers))
    del waiter.processes[1]
    told = kernel_json(state, waiter, None, estimate, now, waits_since=now)["wait"]
    assert told == {
        "code": "computing",
        "args": {"bytes": 5},
        "blockers": [
            {"kernel_id": "uid-1/own", "own": True, "why": "held", "free_in_s": 60.0, "held_until": None},
            {"kernel_id": None, "own": False, "why": "computing", "free_in_s": None, "held_until": None},
        ],
    }


def test_time_alone_changes_nothing_that_is_worth_an_event(node, shim, wait_until):
    machine = node()
    shim("k", resident=300 * MIB)
    machine.ask("POST", "/kernels/k/park", {"wait": True})
    parked = machine.kernel("k")
    later = wait_until(lambda: (now := machine.kernel("k"))["last_park"] != parked["last_park"] and now)
    assert later != parked and without_volatile(later) == without_volatile(parked)


def sampled(at: float, percent: int | None) -> NvmlSample:
    gpu = NvmlGpu("A", 0, "GPU", 80 * GIB, GIB, 79 * GIB, percent)
    return NvmlSample(at, "", (gpu,))


def test_utilisation_is_remembered_for_a_minute_every_two_seconds():
    table, settings = GpuTable(), Settings()
    for second in range(100):
        table.take(sampled(1000.0 + second, second), settings)
    history = table.utilization_history("A")
    assert history == [*range(40, 100, 2)]
    table.take(sampled(1103.0, 7), settings)
    table.take(sampled(1108.0, 8), settings)  # without kernels NVML is asked every 5 s: its figure stands
    assert table.utilization_history("A")[-5:] == [7, 7, 8, 8, 8]
    table.take(sampled(1128.0, None), settings)
    assert table.utilization_history("A")[-10:] == [None] * 10
    assert table.utilization_history("B") == []

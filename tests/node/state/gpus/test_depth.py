"""Context depth: which kernels may leave the GPU altogether, what room a resume takes, and what users are told."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from deep_shim import CONTEXT_FLAG, CONTEXT_MOVE, DeepShim
from fake_nvml import FakeNvml
from fake_shim import MIB, NONE, PARK, PARKED, RESUME, ROOM_ANSWER
from snapshots import IDLE, NEEDED, NOW, A, node, parked, resident

from jupyter_affinode.node.model.actions import Park, Resume
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.state.gpus.context_depth import _gpu_objection
from jupyter_affinode.settings.policy import GIB

DEEP = {"idle_timeout_s": 0.3, "depth": "context"}


@pytest.fixture
def nvml():
    return FakeNvml(16 * GIB, 16 * GIB, pids={os.getpid()})


@pytest.fixture
def deep(connect):
    """`deep("k", resident=…)`: a process that may be parked at context depth."""
    return partial(connect, DeepShim, flags=CONTEXT_FLAG)


@pytest.fixture
def park_k(machine, wait_until):
    """`park_k(processes=1)`: once the controller knows them, kernel "k" is parked as idle ones are, this once."""

    def park(processes=1):
        machine.ask("PATCH", "/policy", {"park_when": "idle"})
        # Its page says so a moment before its reply, which says why the context stayed.
        wait_until(lambda: "parked k: " in machine.controller_log())
        machine.ask("PATCH", "/policy", {"park_when": "needed"})

    return park


def test_a_kernel_alone_with_ours_leaves_the_gpu_and_people_are_told(node, nvml, deep, park_k, wait_until):
    machine = node(nvml=nvml, **DEEP)
    shim = deep("k", resident=300 * MIB)
    park_k()
    (command,) = shim.heard.of(PARK)
    assert command.argument & CONTEXT_MOVE
    described = machine.kernel("k")
    assert (described["depth"], described["depth_refusal"]) == ("context", None)
    assert described["text"].startswith("GPU freed completely, 300 MiB safe in RAM")
    shim.touch()
    wait_until(lambda: shim.heard.of(RESUME))
    wait_until(lambda: machine.kernel("k")["residency"] == "resident")
    assert machine.kernel("k")["depth"] == "none"


def test_it_comes_back_only_where_the_driver_is_sure_to_find_room(
    node, nvml, deep, park_k, passes, wait_until
):
    machine = node(nvml=nvml, **DEEP)
    shim = deep("k", resident=300 * MIB)
    park_k()
    nvml.free = 2 * GIB - 1  # enough for its 300 MiB and its context, not for being sure
    wait_until(lambda: machine.node()["gpus"][0]["free_bytes"] == nvml.free)
    shim.touch()
    wait_until(lambda: machine.kernel("k")["place"] == 1)
    passes(4)
    assert "resume k (" not in machine.controller_log()
    nvml.free = 2 * GIB
    wait_until(lambda: shim.heard.of(RESUME))
    assert "resume k (" in machine.controller_log()


@pytest.mark.parametrize(
    ("obstacle", "told"),
    [
        ("setting", None),
        ("flag", "not started with AFFINODE_DEPTH"),
        ("unmanaged", "has no shim"),
        ("unknown", "does not say which processes"),
        ("container", "cannot be told apart"),
        ("second GPU", "several GPUs"),
        ("second process", "several of the kernel's processes"),
    ],
)
def test_anything_that_makes_the_way_back_unsure_leaves_the_context_there(
    node, nvml, deep, park_k, obstacle, told
):
    if obstacle in ("unmanaged", "unknown", "container"):
        nvml.pids = {"unmanaged": {os.getpid(), 1}, "unknown": None, "container": {1}}[obstacle]
    machine = node(nvml=nvml, **{**DEEP, "depth": "memory" if obstacle == "setting" else "context"})
    shim = deep("k", resident=300 * MIB, flags=0 if obstacle == "flag" else CONTEXT_FLAG)
    if obstacle == "second GPU":
        shim.page.memory[bytes(16)] = [MIB, 0, 0]
        shim.page.write()
    if obstacle == "second process":
        deep("k", resident=10 * MIB)
    park_k(processes=2 if obstacle == "second process" else 1)
    assert not any(command.argument & CONTEXT_MOVE for command in shim.heard.of(PARK))
    described = machine.kernel("k")
    assert described["depth"] == "memory"
    assert described["text"].startswith("GPU freed, ")
    if told is None:
        assert described["depth_refusal"] is None
    else:
        assert told in described["depth_refusal"]


def test_a_process_of_the_kernel_that_never_used_cuda_is_no_obstacle(node, nvml, deep, park_k):
    node(nvml=nvml, **DEEP)
    deep("k", state=NONE)
    shim = deep("k", resident=300 * MIB)
    park_k(processes=2)
    assert shim.heard.of(PARK)[0].argument & CONTEXT_MOVE


def test_what_the_shim_says_was_in_the_way_is_told(node, nvml, deep, park_k):
    machine = node(nvml=nvml, **DEEP)
    shim = deep("k", resident=300 * MIB)
    shim.stays = "the CUDA context stays on the GPU: the process uses NCCL"
    park_k()
    assert shim.heard.of(PARK)[0].argument & CONTEXT_MOVE
    described = machine.kernel("k")
    assert (described["depth"], described["depth_refusal"]) == ("memory", shim.stays)


def test_the_depth_is_a_setting_that_is_checked(node):
    machine = node()
    assert machine.ask("PATCH", "/policy", {"depth": "context"})[0] == 200
    assert machine.ask("PATCH", "/policy", {"depth": "disk"})[0] == 400


# ---- the policy


def test_room_for_the_context_is_reserved_too():
    kernel = parked("k", 4 * GIB, waits=1, context_bytes={A: GIB})
    assert decide(NOW, node(kernel, free=5 * GIB - 1), NEEDED) == []
    (action,) = decide(NOW, node(kernel, free=5 * GIB), NEEDED)
    assert action == Resume("k", {A: 5 * GIB}, action.reason)


def test_only_a_kernel_that_may_take_its_context_along_is_told_to():
    kernel = resident("k")
    (stays,) = decide(NOW, node(kernel), IDLE)
    (leaves,) = decide(NOW, node(replace(kernel, may_park_context=True)), IDLE)
    assert isinstance(stays, Park) and not stays.to_context
    assert isinstance(leaves, Park) and leaves.to_context


def test_what_a_context_frees_counts_so_that_one_of_the_same_size_yields_and_not_two():
    waits = parked("k", 4 * GIB, waits=5, context_bytes={A: GIB})
    idle = [
        resident(name, 4 * GIB, may_park_context=True, context_frees_bytes={A: GIB}) for name in ("a", "b")
    ]
    policy = NEEDED.changed(margin_bytes=0)
    assert len(decide(NOW, node(waits, *idle, free=0), policy)) == 1
    stay = [replace(kernel, may_park_context=False, context_frees_bytes={}) for kernel in idle]
    assert len(decide(NOW, node(waits, *stay, free=0), policy)) == 2


class Frees(FakeNvml):
    """A GPU that is full as long as `idle` is there, with its context."""

    idle = None

    def read(self):
        self.used_by = {os.getpid(): 900 * MIB}
        self.free = 900 * MIB if self.idle is not None and self.idle.state == PARKED else 0
        return super().read()


def test_what_it_frees_beside_its_memory_is_what_nvml_shows_beside_its_page(node, deep, wait_until):
    nvml = Frees(total=16 * GIB, pids={os.getpid()})
    node(nvml=nvml, depth="context", contended_idle_timeout_s=0.1)
    nvml.idle, waits = deep("k", resident=300 * MIB), deep("l", resident=0)
    waits.allocate(800 * MIB, number=1)
    (answer,) = wait_until(lambda: waits.heard.of(ROOM_ANSWER))
    assert answer.argument == 1, "300 MiB and 600 MiB of context suffice"
    assert len(nvml.idle.heard.of(PARK)) == 1


@pytest.mark.parametrize(
    ("theirs", "elsewhere", "told"),
    [
        ({7}, set(), "not show its process on the GPU yet"),
        ({1}, {7}, "GPU yet"),
        ({1}, {2}, "cannot be told apart"),
    ],
)
def test_a_process_that_nvml_does_not_show_has_just_come_or_is_in_a_container(theirs, elsewhere, told):
    """NVML's answer may be older than a process's coming; that it shows other pids it does for all of ours."""
    gpus = SimpleNamespace(
        measured={"GPU-a": SimpleNamespace(pids=theirs), "GPU-b": SimpleNamespace(pids=elsewhere)}
    )
    objection = _gpu_objection(SimpleNamespace(pid=5), "GPU-a", {5, 7}, gpus)
    assert objection is not None and objection.code == "not-seen" and told in objection.words

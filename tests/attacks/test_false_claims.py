"""Processes that claim GPU memory which NVML does not bear out, or make nothing of a park, keep no other user waiting.

With 40 of them the waits were 10 to 100 s; `run.py` does not measure that, since the bystander has no kernel.
"""

from __future__ import annotations

import re

import pytest
from scene import ATTACKER, HONEST, scene_on

FAKES, CLAIM_MIB = 6, 100


@pytest.fixture
def two_kernels(gpu_machine):
    """A scene with two GPUs, and two of the honest user's kernels that take turns on the first."""
    gpu_machine.simulate(memory="128MiB", gpus=2)
    gpu_machine.environment["AFFINODE_SIM_CONTEXT"] = "4MiB"
    settings = {"contended_idle_timeout_s": 0.3, "margin_bytes": 16 << 20}
    with scene_on(
        gpu_machine, *(f"--NodeController.{name}={value}" for name, value in settings.items())
    ) as scene:
        programs = [scene.program(HONEST, name, 75) for name in ("thesis", "paper")]
        assert all(program.is_well() for program in programs)
        yield scene, programs


def asked(scene, uid=ATTACKER):
    """How often that user's kernels were told to park."""
    return len(asks(scene, uid))


def asks(scene, uid=ATTACKER):
    """Which of them, by the line of the log; two files have each."""
    found = re.finditer(rf"^.* I park uid-{uid}/(\S+).*$", scene.machine.controller_log(), re.MULTILINE)
    return {line[0]: line[1] for line in found}


@pytest.mark.long
@pytest.mark.parametrize("way", ["silent", "done", "busy", "wanting", "failing", "staying", "leaving"])
def test_no_kernel_is_chosen_for_what_its_page_alone_says_that_it_has(two_kernels, way):
    """On whichever GPU, and however it would answer."""
    scene, programs = two_kernels
    with scene.attack("claiming", way, str(FAKES), str(CLAIM_MIB)):
        for program in programs * 2:
            assert program.uses_gpu()
    assert asked(scene) == 0
    assert asked(scene, HONEST) >= 3


@pytest.mark.long
@pytest.mark.parametrize("way", ["silent", "done", "staying"])
def test_a_little_memory_does_not_bear_out_what_many_claim(two_kernels, way):
    """The program has 25 MiB, and so has one of its kernels: the others are not asked. One that answers at once, and
    frees nothing, may be asked where no other kernel may; none waits for it.
    """
    scene, programs = two_kernels
    with scene.attack("claiming", way, str(FAKES), str(CLAIM_MIB), "25"):
        for program in programs * 2:
            assert program.uses_gpu()
    assert len(set(asks(scene).values())) <= 1
    assert way == "done" or asked(scene) < FAKES
    assert way != "done" or "came to nothing (its memory is not free)" in scene.machine.controller_log()

"""How the work of one decision grows with the machine: counted in steps, so that no clock can spoil it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crowd import NOW, SETTINGS, crowded_node
from work import work_of

from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.wait_estimates import estimate_waits
from jupyter_affinode.settings.policy import GIB

CASES = {
    "wait": {},
    "idle": {"park_when": "idle"},
    "slices": {"when_full": "time_slice"},
    "end": {"when_full": "terminate_newest"},
    "limits": {"quotas": "*=120GiB, @*=4TiB"},
    "short of host memory": {"park_when": "idle", "host_reserve_bytes": (1 << 44) - 8 * GIB},
}


def test_kernels_that_are_all_to_hibernate_are_hardly_more_work_than_others():
    settings = SETTINGS.changed(**CASES["short of host memory"])
    node = crowded_node(1000, 64, 300, full=False)
    able = replace(node, kernels=tuple(replace(each, hibernates_after_s=600.0) for each in node.kernels))
    assert work_of(decide, NOW, able, settings) < 1.5 * work_of(decide, NOW, node, settings)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_twice_the_kernels_on_twice_the_gpus_are_about_twice_the_work(name, full):
    settings = SETTINGS.changed(**CASES[name])
    small, large = (crowded_node(250 * n, 16 * n, 150 * n, full=full) for n in (1, 2))
    ratio = work_of(decide, NOW, large, settings) / work_of(decide, NOW, small, settings)
    assert ratio < 2.5, f"{ratio:.2f} times the work"


@pytest.mark.parametrize("name", CASES)
def test_work_is_bounded_where_every_kernel_waits_and_looks_for_victims(name):
    settings = SETTINGS.changed(**CASES[name])
    small, large = (crowded_node(500 * n, 32 * n, 500 * n, full=False) for n in (1, 2))
    assert work_of(decide, NOW, large, settings) < 2.5 * work_of(decide, NOW, small, settings)


@pytest.mark.parametrize("name", ["wait", "limits"])
def test_twice_the_waiters_are_at_most_about_twice_the_work(name):
    settings = SETTINGS.changed(**CASES[name])
    few, many = (crowded_node(1000, 64, waiting) for waiting in (300, 600))
    assert work_of(decide, NOW, many, settings) < 2.5 * work_of(decide, NOW, few, settings)


def test_what_waiters_are_told_grows_with_their_number_alone():
    few, many = (crowded_node(250 * n, 16 * n, 150 * n) for n in (1, 2))
    assert work_of(estimate_waits, NOW, many, SETTINGS) < 2.5 * work_of(estimate_waits, NOW, few, SETTINGS)


def test_the_crowd_is_one_that_the_policy_has_work_with():
    """Else the counts above would say nothing."""
    node = crowded_node(1000, 64, 300, full=False)
    assert len(decide(NOW, node, SETTINGS)) > 200
    node = crowded_node(1000, 64, 300)
    assert len(decide(NOW, node, SETTINGS.changed(when_full="time_slice"))) > 50

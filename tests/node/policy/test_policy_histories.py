"""What holds in every history of a shared machine; the virtual clock makes hours of it a moment.

AFFINODE_HISTORIES=5000 tries that many of each kind instead of a few: `AFFINODE_HISTORIES=5000 pytest
tests/node/policy/test_policy_histories.py`. Each failure prints the history that breaks it.
"""

from __future__ import annotations

import pytest
from histories import BASE, FEW, machine_of, notebooks, run
from hypothesis import given
from hypothesis import strategies as st
from scenes import START
from shared_gpus import MOVE_S, STEP_S, notebook

from jupyter_affinode.node.model.actions import EndKernel, GrantRoom, Park
from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.policy.queue import overtaking_s
from jupyter_affinode.settings.policy import MIB

POLICIES = st.sampled_from(
    [
        BASE,
        BASE.changed(park_when="idle"),
        BASE.changed(ageing_s=0.0),
        BASE.changed(when_full="time_slice"),
    ]
)


@given(notebooks(), POLICIES)
@FEW
def test_every_kernel_gets_the_gpu_in_the_end_and_none_out_of_memory(made, policy):
    machine = run(machine_of(made, policy))
    assert not machine.outcome.counts["cells out of memory"]
    assert not any(isinstance(action, EndKernel) for _, action in machine.actions)


@given(notebooks(), POLICIES | st.just(BASE.changed(when_full="terminate_newest")), st.integers(0, 1 << 32))
@FEW
def test_holds_requests_refusals_deaths_and_pauses_of_the_controller_break_nothing(made, policy, seed):
    run(machine_of(made, policy, seed), more_s=4000.0)


@given(notebooks(), st.integers(99, 200), st.integers(0, 1 << 32), st.sampled_from(["wait", "time_slice"]))
@FEW
def test_quotas_are_kept_and_every_kernel_gets_the_gpu_in_the_end(made, limit, seed, when_full):
    policy = BASE.changed(quotas=f"*={2 * limit * MIB}", when_full=when_full)
    for each in made:
        assert each.peak_bytes * len(each.on) <= 2 * limit * MIB
    run(machine_of(made, policy, seed), more_s=4000.0)


@given(notebooks(groups=False, least=2), st.sampled_from([0.0, 2.0, 4.0]))
@FEW
def test_with_time_slices_no_kernel_waits_longer_than_the_bound(made, ageing_s):
    """While others may overtake, and then a time slice and two moves for each that is still before it.

    Each waiter needs at most all others to be parked, one after the other, each after its time slice.
    """
    policy = BASE.changed(when_full="time_slice", ageing_s=ageing_s)
    machine = run(machine_of(made, policy))
    turn_s = policy.time_slice_s + 2 * MOVE_S + 4 * STEP_S
    bound = overtaking_s(policy) + (2 * len(made) + 1) * turn_s
    assert max(machine.waits.values(), default=0.0) <= bound


@given(notebooks(groups=False, least=3), st.sampled_from([2.0, 4.0]))
@FEW
def test_a_much_later_waiter_is_never_served_first(made, ageing_s):
    """What `_check_order` looks for at each step, here over the whole history and by moments alone."""
    policy = BASE.changed(ageing_s=ageing_s)
    machine = run(machine_of(made, policy))
    for place, (_, first) in enumerate(machine.served):
        for _, later in machine.served[place + 1 :]:
            if later.needs.keys() & first.needs.keys():
                assert first.since - later.since <= overtaking_s(policy)


def rivals(most=8, **fields):
    """One user's many kernels and another's one, each as large as the GPU, that compute again and again."""
    made = [
        notebook(f"ann-{number}", {"A": 80 * MIB}, [(6.0, 4.0)] * 12, charged_user="ann")
        for number in range(most)
    ]
    return [*made, notebook("bob-0", {"A": 80 * MIB}, [(6.0, 2.0)] * 12, charged_user="bob", **fields)]


def test_a_user_with_many_kernels_keeps_another_with_one_waiting_for_one_turn():
    """Of compute, idle time and two moves: not for the turns of all eight."""
    machine = machine_of(rivals(), BASE)
    while not machine.actors["bob-0"].is_done:
        machine.step()
    turn_s = 4.0 + BASE.idle_timeout_s + 2 * MOVE_S + 4 * STEP_S
    assert machine.waits["bob-0"] <= 2 * turn_s
    assert machine.outcome.counts["exchanges"] > 0
    run(machine)


def test_on_a_controller_of_ones_own_the_order_is_first_come_first_served():
    made = rivals()
    for each in made:
        each.seen["charged_user"] = ""
    machine = run(machine_of(made, BASE))
    for place, (_, first) in enumerate(machine.served):
        assert all(first.since <= later.since for _, later in machine.served[place + 1 :])


@given(notebooks(), POLICIES, st.data(), st.none() | st.integers(0, 1 << 32))
@FEW
def test_users_take_turns_and_every_kernel_gets_the_gpu_in_the_end(made, policy, data, seed):
    """`_check_turns` looks at each step for the bound on being passed by."""
    for each in made:
        each.seen["charged_user"] = data.draw(st.sampled_from(["ann", "bob", "eve"]))
    run(machine_of(made, policy, seed), more_s=4000.0)


@given(notebooks(groups=False, least=2), st.integers(0, 1 << 32))
@FEW
def test_a_preempted_kernel_goes_on_where_it_was(made, seed):
    """Every cell computes as long as it should, in however many turns."""
    machine = run(machine_of(made, BASE.changed(when_full="time_slice"), seed), more_s=4000.0)
    for each in made:
        if not each.is_over:
            assert machine.computed_s[each.id] == pytest.approx(sum(compute for _, compute, _ in each.cells))
    sliced = [action for _, action in machine.actions if isinstance(action, Park) and action.preempts]
    assert all(action.for_kernel is not None for action in sliced)


def test_two_long_cells_take_turns_with_time_slices_and_one_waits_for_the_other_without():
    def both():
        return [notebook(f"k{number}", {"A": 80 * MIB}, [(0.0, 60.0)]) for number in range(2)]

    sliced = run(machine_of(both(), BASE.changed(when_full="time_slice")))
    turns = [action.kernel_id for _, action in sliced.actions if isinstance(action, Park)]
    assert turns[:4] == ["k0", "k1", "k0", "k1"]
    waited = run(machine_of(both(), BASE))
    assert len([action for _, action in waited.actions if isinstance(action, Park)]) == 1
    assert max(waited.waits.values(), default=0) == 0  # it waited for its first allocation
    (granted,) = [moment for moment, action in waited.actions if isinstance(action, GrantRoom)]
    assert granted >= START + 60


def test_no_kernel_is_preempted_without_a_waiter():
    alone = run(
        machine_of([notebook("k", {"A": 80 * MIB}, [(0.0, 60.0)])], BASE.changed(when_full="time_slice"))
    )
    assert alone.actions == []


@pytest.mark.parametrize("when_full", ["wait", "time_slice", "terminate_newest"])
def test_a_held_kernel_is_left_alone_whatever_is_done_when_the_gpu_is_full(when_full):
    policy = BASE.changed(when_full=when_full)
    waits = notebook("waits", {"A": 80 * MIB}, [(0.0, 5.0)], residency=Residency.PARKED)
    holds = notebook(
        "holds", {"A": 80 * MIB}, [(0.0, 100.0)], held_until=START + 50, residency=Residency.RESIDENT
    )
    machine = machine_of([waits, holds], policy)
    machine.pass_time(50 - STEP_S)
    assert not machine.actions

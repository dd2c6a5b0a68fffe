"""A kernel waits for host memory only where there is none to be had, and is told so.

Random machines under a virtual clock; each failure prints its seed. AFFINODE_HISTORIES=5000 tries so many
of each kind.
"""

from __future__ import annotations

import os
import random

import pytest
from drawn import examples
from scenes import START
from short_host import ShortHost, sharer, thinking

from jupyter_affinode.node.model.actions import Park, Resume, Trim
from jupyter_affinode.node.model.reasons import WaitReason
from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.wait_estimates import estimate_waits
from jupyter_affinode.settings.policy import GIB

HISTORIES = int(os.environ.get("AFFINODE_HISTORIES", examples(15)))
LONG_AGO_S = 100.0


def random_machine(draw):
    """A few kernels, somewhere; host memory for some of them. None if that cannot be."""
    gpus = {f"GPU-{number}": draw.randint(8, 40) for number in range(draw.choice([1, 2, 2]))}
    limits = draw.choice(
        [{}, {"/all": draw.randint(10, 90)}, {"/all": draw.randint(10, 90), "/all/a": draw.randint(5, 60)}]
    )
    leaves, context = draw.random() < 0.6, draw.choice([0, 0, 1])
    exchanges = not leaves and not limits and draw.random() < 0.8
    sharers = []
    for number in range(draw.randint(2, 7)):
        gpu = draw.choice(list(gpus))
        size = draw.randint(1, min(gpus.values()) - context)
        inside = draw.choice([("/all",), ("/all/a", "/all")]) if "/all/a" in limits else tuple(limits)
        sharers.append(sharer(f"k{number}", size, gpu, inside, leaves=leaves, residency=Residency.PARKED))
    reserve = draw.choice([0, 2])
    host = draw.randint(10, 120)
    machine = ShortHost(gpus, host, sharers, limits, reserve=reserve, context=context, exchanges=exchanges)
    kernels = machine.kernels
    for each in kernels:
        each.has_parked = draw.random() < 0.8
    for each in draw.sample(kernels, len(kernels)):
        if machine.free(each.on[0]) >= each.resume_bytes() and draw.random() < 0.8:
            machine.begin_as(each, Residency.RESIDENT)
            each.retained = draw.choice([0, 0, each.held, draw.randint(0, each.held // GIB) * GIB])
    if any(machine.free(gpu) < 0 for gpu in gpus) or any(machine.left(place) < 0 for place in ("", *limits)):
        return None
    return machine


def tried(seed):
    """A random machine on which nothing goes on and a kernel waits; None if that cannot be."""
    draw = random.Random(seed)
    machine = random_machine(draw)
    if machine is None:
        return None
    for each in machine.kernels:
        each.last_activity = START - LONG_AGO_S
        if each.residency is Residency.PARKED and draw.random() < 0.7:
            each.residency, each.wants_since = Residency.QUEUED, START - draw.uniform(1, 60)
    return machine if any(each.wants_since for each in machine.kernels) else None


def seeds():
    first = random.randrange(1 << 32)
    print(f"seeds from {first}")
    found, seed = 0, first
    while found < HISTORIES * 10:
        machine = tried(seed)
        if machine is not None:
            found += 1
            yield seed, machine
        seed += 1


def test_where_there_is_a_way_it_is_taken_and_where_there_is_none_that_is_said():
    for seed, machine in seeds():
        ways = list(machine.ways())
        node = machine.snapshot()
        actions = decide(machine.now, node, machine.settings)
        if ways:
            assert any(isinstance(action, Park | Resume | Trim) for action in actions), (seed, ways)
            continue
        machine.host_bytes, machine.limits = 1 << 50, {}
        if list(machine.ways()):  # host memory alone is in the way
            told = estimate_waits(machine.now, node, machine.settings)
            reasons = [estimate.code for estimate in told.values()]
            unknown = any(isinstance(action, Park) for action in actions)
            assert unknown or WaitReason.HOST_MEMORY in reasons, (seed, reasons)


def test_waiters_are_served_until_there_is_no_way_to_serve_any():
    """From wherever it begins, until no kernel waits, or there is no way to serve one."""
    for seed, machine in seeds():
        for _ in range(600):
            machine.step()
            if machine.is_quiet and not list(machine.ways()):
                break
        else:
            raise AssertionError(
                (seed, machine.outcome.counts, [(each.id, each.residency) for each in machine.kernels])
            )


def twenty(others):
    """Twenty kernels of 20 GiB on two GPUs of 140 beside 252 GiB of host memory, as many as fit on each at first."""
    draw = random.Random(7)
    sharers = [
        sharer(
            f"k{number:02d}",
            20,
            f"GPU-{int(number >= 12)}",
            ("/",),
            leaves=True,
            residency=Residency.PARKED,
            thinks=thinking(draw, 2.0, 10.0),
        )
        for number in range(20)
    ]
    gpus = {"GPU-0": 140, "GPU-1": 140}
    machine = ShortHost(gpus, 252, sharers, {"/": 252}, reserve=25, context=1, others=others)
    for each in machine.kernels:
        if machine.free(each.on[0]) >= each.resume_bytes():
            machine.begin_as(each, Residency.RESIDENT)
    return machine


@pytest.mark.long
@pytest.mark.parametrize("others", [14, 37])
def test_twenty_kernels_of_twenty_gib_on_two_gpus_all_get_their_turns(others):
    """`others`: what twenty processes have of host memory for themselves, and so much more that one swap just fits."""
    machine = twenty(others)
    machine.pass_time(240)
    waiting = [machine.now - each.wants_since for each in machine.kernels if each.wants_since is not None]
    assert min(actor.live.next_cell for actor in machine.actors.values()) >= 5, machine.outcome.counts
    assert max([*waiting, *machine.waits.values()]) < 120, machine.outcome.counts
    assert machine.failed_parks < 10, machine.outcome.counts


def test_host_memory_freed_by_other_programs_is_used_at_once():
    machine = twenty(46)
    machine.pass_time(60)
    before = machine.outcome.counts["resumes"]
    machine.others_bytes = 14 * GIB
    machine.pass_time(8)
    assert machine.outcome.counts["resumes"] > before + 1, machine.outcome.counts


# ---- one statement a test

SIZES = {"GPU-0": 40}


def machine_with(*sharers, host, **options):
    """One GPU of 40 GiB; every kernel has been idle, or has waited, for a minute."""
    machine = ShortHost(SIZES, host, list(sharers), **options)
    for each in machine.kernels:
        each.last_activity, each.has_parked = START - 60, True
        if each.residency is Residency.QUEUED:
            each.wants_since = START - 60
    return machine


def decided(machine):
    return decide(machine.now, machine.snapshot(), machine.settings)


def idle(name, size, **options):
    return sharer(name, size, "GPU-0", **options)


def queued(name, size):
    return sharer(name, size, "GPU-0", residency=Residency.QUEUED)


def test_the_retained_copy_of_a_resuming_kernel_is_waited_for_without_a_refusal():
    machine = machine_with(idle("idle", 20), queued("comes", 15), queued("waits", 20), host=40)
    comes = machine.kernel("comes")
    comes.residency, comes.wants_since, comes.moves_since = Residency.RESUMING, None, START
    assert decided(machine) == []
    comes = machine.kernel("comes")
    comes.residency, comes.retained = Residency.RESIDENT, 15 * GIB
    assert [(type(action), action.kernel_id) for action in decided(machine)] == [(Trim, "comes")]


def test_a_waiter_without_host_memory_does_not_hold_up_one_that_fits():
    """It is only by another kernel's resume that there is more."""
    machine = machine_with(idle("idle", 30), queued("large", 38), queued("small", 8), host=38 + 8 + 10)
    assert {waiter for waiter, _, _ in machine.ways()} <= {"small"}
    assert next((type(action), action.kernel_id) for action in decided(machine)) == (Resume, "small")


def test_no_victim_is_parked_unless_host_memory_holds_all_that_are_needed():
    """Two must be parked and there is room for one: it would queue behind a kernel that is never served."""
    kernels = idle("a", 20), idle("b", 20), queued("large", 35)
    assert not any(isinstance(action, Park) for action in decided(machine_with(*kernels, host=35 + 25)))
    assert sum(isinstance(action, Park) for action in decided(machine_with(*kernels, host=35 + 45))) == 2


def test_a_park_of_unknown_need_does_not_wait_for_what_its_own_kernel_retains():
    """It would wait for ever: a kernel releases nothing while it is to be parked."""
    machine = machine_with(idle("idle", 20), queued("waits", 21), host=21 + 5)
    machine.kernel("idle").retained, machine.kernel("idle").has_parked = 3 * GIB, False
    (action,) = decided(machine)
    assert isinstance(action, Park) and action.kernel_id == "idle"


def test_the_drivers_copy_of_a_context_is_counted():
    kernels = idle("idle", 20, leaves=True), queued("waits", 20)
    assert [type(action) for action in decided(machine_with(*kernels, host=41, context=1))] == [Park]
    assert not any(isinstance(action, Park) for action in decided(machine_with(*kernels, host=40, context=1)))


def test_what_others_retain_is_asked_back_for_a_hand_over_that_lacks_it():
    """Neither what is retained nor what the waiter hands over is enough by itself."""
    kernels = idle("large", 24), idle("retains", 10), queued("waits", 17)
    machine = machine_with(*kernels, host=10 + 17 + 5, exchanges=True)
    machine.kernel("retains").retained = 10 * GIB
    assert machine.ways()
    assert [(type(action), action.kernel_id) for action in decided(machine)] == [(Trim, "retains")]
    machine.pass_time(10)
    assert machine.outcome.counts["exchanges that handed over"] == 1
    assert machine.kernel("waits").residency is Residency.RESIDENT

"""Nobody is kept from the GPU by host memory that could be had, and whoever is for want of it is told so.

Random machines under a virtual clock; each failure prints its seed. AFFINODE_HISTORIES=5000 tries so many
of each kind.
"""

from __future__ import annotations

import os
import random

import pytest
from short_machine import STEP_S, Sharer, ShortMachine

from jupyter_affinode.node.model.actions import Park, Resume, Trim
from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.wait_estimates import outlooks

HISTORIES = int(os.environ.get("AFFINODE_HISTORIES", "15"))
LONG_AGO_S = 100.0


def random_machine(draw):
    """A few kernels, somewhere; host memory for some of them."""
    gpus = {f"GPU-{number}": draw.randint(8, 40) for number in range(draw.choice([1, 2, 2]))}
    limits = draw.choice(
        [{}, {"/all": draw.randint(10, 90)}, {"/all": draw.randint(10, 90), "/all/a": draw.randint(5, 60)}]
    )
    goes_elsewhere, contexts = draw.random() < 0.6, draw.choice([0, 0, 1])
    sharers = []
    for number in range(draw.randint(2, 7)):
        gpu = draw.choice(list(gpus))
        size = draw.randint(1, min(gpus.values()) - contexts)
        inside = draw.choice([("/all",), ("/all/a", "/all")]) if "/all/a" in limits else tuple(limits)
        sharers.append(Sharer(f"k{number}", size, gpu, inside, goes_elsewhere, known=draw.random() < 0.8))
    machine = ShortMachine(
        gpus, draw.randint(10, 120), sharers, limits, draw.choice([0, 2]), contexts, draw=draw
    )
    for each in sharers:
        each.residency = Residency.PARKED
    for each in draw.sample(sharers, len(sharers)):
        if machine.free(each.gpu) >= each.size and draw.random() < 0.8:
            each.residency = Residency.RESIDENT
            each.kept = draw.choice([0, 0, each.size, draw.randint(0, each.size)])
    return machine


def tried(seed):
    """A random machine on which nothing goes on and somebody waits; None if that cannot be."""
    draw = random.Random(seed)
    machine = random_machine(draw)
    machine.think_s = 1e9, 1e9
    if any(machine.free(gpu) < 0 for gpu in machine.gpus) or machine.left("") < 0:
        return None
    if any(machine.left(place) < 0 for place in machine.limits):
        return None
    for each in machine.sharers:
        each.last_activity = machine.now - LONG_AGO_S
        each.thinks_until = machine.now + 1e9
        if each.residency is Residency.PARKED and draw.random() < 0.7:
            each.residency, each.wants_since = Residency.QUEUED, machine.now - draw.uniform(1, 60)
    return machine if any(each.wants_since for each in machine.sharers) else None


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
        ways = list(machine.orders())
        node = machine.snapshot()
        actions = decide(machine.now, node, machine.settings)
        if ways:
            assert any(isinstance(action, Park | Resume | Trim) for action in actions), (seed, ways)
            continue
        machine.host, machine.limits = 1 << 20, {}
        if list(machine.orders()):  # host memory alone is in the way
            told = outlooks(machine.now, node, machine.settings)
            reasons = [outlook.reason for outlook in told.values()]
            unknown = any(isinstance(action, Park) for action in actions)
            assert unknown or any("host memory" in reason for reason in reasons), (seed, reasons)


def test_waiters_are_served_until_there_is_no_way_to_serve_any():
    """From wherever it begins, until there is nobody left who waits, or no way to serve anybody."""
    for seed, machine in seeds():
        for _ in range(600):
            machine.step()
            if machine.is_quiet and not list(machine.orders()):
                break
        else:
            raise AssertionError(
                (seed, machine.counts, [(each.id, each.residency) for each in machine.sharers])
            )


def twenty(**changes):
    """Twenty kernels of 20 GiB on two GPUs of 140 beside 252 GiB of host memory, as many as fit on each at first."""
    sharers = [
        Sharer(f"k{number:02d}", 20, f"GPU-{int(number >= 12)}", ("/",), True, known=False)
        for number in range(20)
    ]
    machine = ShortMachine(
        {"GPU-0": 140, "GPU-1": 140},
        252,
        sharers,
        {"/": 252},
        25,
        1,
        draw=random.Random(changes.pop("seed", 7)),
        **changes,
    )
    for each in sharers:
        each.residency = Residency.PARKED
    for each in sharers:
        if machine.free(each.gpu) >= each.size + 1:
            each.residency = Residency.RESIDENT
    return machine


@pytest.mark.parametrize("others", [14, 37])
def test_twenty_kernels_of_twenty_gib_on_two_gpus_all_get_their_turns(others):
    """`others`: what twenty processes have of host memory for themselves, and so much more that one swap just fits."""
    machine = twenty(others=others)
    for _ in range(int(240 / STEP_S)):
        machine.step()
    waiting = [machine.now - each.wants_since for each in machine.sharers if each.wants_since is not None]
    assert min(each.cells for each in machine.sharers) >= 5, machine.counts
    assert max(waiting + [each.waited_s for each in machine.sharers]) < 120, machine.counts
    assert machine.counts.get("parks failed for host memory", 0) < 10, machine.counts


def test_host_memory_freed_by_other_programs_is_used_at_once():
    machine = twenty(others=46)
    for _ in range(int(60 / STEP_S)):
        machine.step()
    before = machine.counts.get("resumes", 0)
    machine.others = 14
    for _ in range(int(8 / STEP_S)):
        machine.step()
    assert machine.counts["resumes"] > before + 1, machine.counts


# ---- one statement a test

SIZES = {"GPU-0": 40}


def machine_with(*sharers, host, **options):
    """One GPU of 40 GiB; everybody has been idle, or has waited, for a minute."""
    machine = ShortMachine(SIZES, host, list(sharers), **options)
    for each in sharers:
        each.last_activity, each.thinks_until = machine.now - 60, machine.now + 1e9
        if each.residency is Residency.QUEUED:
            each.wants_since = machine.now - 60
    return machine


def decided(machine):
    return decide(machine.now, machine.snapshot(), machine.settings)


def queued(name, size):
    return Sharer(name, size, "GPU-0", residency=Residency.QUEUED)


def test_the_retained_copy_of_a_resuming_kernel_is_waited_for_without_a_refusal():
    comes = queued("comes", 15)
    machine = machine_with(Sharer("idle", 20, "GPU-0"), comes, queued("waits", 20), host=40)
    comes.residency, comes.moving_until, comes.wants_since = Residency.RESUMING, machine.now + 1, None
    comes.moves_since = machine.now
    assert decided(machine) == []
    comes.moving_until = None
    comes.residency, comes.kept = Residency.RESIDENT, 15
    assert [(type(action), action.kernel_id) for action in decided(machine)] == [(Trim, "comes")]


def test_a_waiter_without_host_memory_does_not_hold_up_one_that_fits():
    """It is only by somebody's coming back that there is more."""
    machine = machine_with(
        Sharer("idle", 30, "GPU-0"),
        queued("large", 38),
        queued("small", 8),
        host=38 + 8 + 10,
        draw=random.Random(1),
    )
    assert not list(machine.orders()) or all(waiter.id == "small" for waiter, _, _ in machine.orders())
    assert next((type(action), action.kernel_id) for action in decided(machine)) == (Resume, "small")


def test_no_victim_is_parked_unless_host_memory_holds_all_that_are_needed():
    """Two must yield and there is room for one: it would have come back behind somebody who is never served."""
    kernels = Sharer("a", 20, "GPU-0"), Sharer("b", 20, "GPU-0"), queued("large", 35)
    assert not any(isinstance(action, Park) for action in decided(machine_with(*kernels, host=35 + 25)))
    assert sum(isinstance(action, Park) for action in decided(machine_with(*kernels, host=35 + 45))) == 2


def test_the_drivers_copy_of_a_context_is_counted():
    kernels = Sharer("idle", 20, "GPU-0", goes_elsewhere=True), queued("waits", 20)
    assert [type(action) for action in decided(machine_with(*kernels, host=41, contexts=1))] == [Park]
    assert not any(
        isinstance(action, Park) for action in decided(machine_with(*kernels, host=40, contexts=1))
    )

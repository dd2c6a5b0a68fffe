"""Random histories of a machine whose GPUs some kernels share, on a virtual clock.

AFFINODE_HISTORIES=5000 tries that many of each kind instead of a few.
"""

from __future__ import annotations

import os
import random

from drawn import examples
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from shared_gpus import MOVE_S, STEP_S, SharedGpus, notebook

from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.settings.policy import MIB, Settings

HISTORIES = int(os.environ.get("AFFINODE_HISTORIES", examples(15)))
TOTAL = 100 * MIB
BASE = Settings(
    idle_timeout_s=3.0,
    cell_idle_timeout_s=5.0,
    margin_bytes=MIB,
    low_watermark=0.0,
    host_reserve_bytes=0,
    time_slice_s=5.0,
    ageing_s=4.0,
)
SECONDS = st.integers(0, 24).map(lambda each: each / 2)
CELLS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=4)
FEW = settings(
    max_examples=HISTORIES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a story that was made smaller is another story
    print_blob=True,
)


@st.composite
def notebooks(draw, *, groups=True, least=1, most=8):
    """Kernels that each fit alone (with the margin), on one of two GPUs; some on both."""
    made = []
    for number in range(draw(st.integers(least, most))):
        size = draw(st.integers(2, 99)) * MIB
        uuids = draw(st.sampled_from([["A"], ["A"], ["B"], ["A", "B"]] if groups else [["A"]]))
        begins_parked = len(uuids) > 1 or draw(st.booleans())
        one = notebook(
            f"k{number}",
            dict.fromkeys(uuids, size),
            draw(CELLS),
            user=draw(st.sampled_from(["ann", "bob"])),
            priority=draw(st.sampled_from([0, 0, 1, -1, 5, -5])),
            one_long_call=draw(st.booleans()),
            residency=Residency.PARKED if begins_parked else Residency.NONE,
        )
        made.append(one)
    return made


def machine_of(made, policy, seed=None):
    """A scene with these kernels; `seed`: with holds, requests, refusals and deaths."""
    return SharedGpus({"A": TOTAL, "B": TOTAL}, made, policy, None if seed is None else random.Random(seed))


def longest(made, policy):
    """A generous bound on a whole history: everything one after the other, each turn with all its waiting."""
    work = sum(pause + compute for each in made for pause, compute, _ in each.cells)
    turns = sum(2 + len(each.cells) for each in made)
    slices = sum(compute for each in made for _, compute, _ in each.cells) / policy.time_slice_s
    overhead = 2 * MOVE_S + policy.idle_timeout_s + policy.cell_idle_timeout_s + 4 * STEP_S
    return work + (turns + slices) * (len(made) + 1) * overhead + policy.time_slice_s + 100


def run(machine, *, more_s=0.0):
    """To the end; AssertionError if a kernel has not had all its cells in time."""
    end = machine.now + longest(machine.actors.values(), machine.settings) + more_s
    while not machine.is_done:
        machine.step()
        assert machine.now < end, [(each.id, each.residency, each.live.next_cell) for each in machine.kernels]
    return machine

"""Host memory is set aside before a park only where kernels will probably share a GPU, and never most of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import snapshots
from snapshots import NOW, asks, node, parked, resident

from jupyter_affinode.cli.output import host_memory_text
from jupyter_affinode.node.model.snapshot import Host, HostUse
from jupyter_affinode.node.state.host.lots_beforehand import (
    LATELY_S,
    LotsBeforehand,
    retained_bytes,
    set_aside_bytes,
)
from jupyter_affinode.settings.policy import GIB, Settings

RAM = 125 * GIB
USE = HostUse()
TWO = [resident(name, 20 * GIB, host=USE) for name in ("one", "two")]


def wanted(beforehand, kernels, *, free=12, settings=None, now=NOW):
    made = node(*kernels, free=free * GIB, total=80 * GIB, host=Host(110 * GIB, total_bytes=RAM))
    return beforehand.wanted_bytes(made, settings or Settings(), 100 * GIB, now)


def test_two_big_kernels_on_a_gpu_that_is_not_full_have_no_memory_set_aside():
    assert wanted(LotsBeforehand(), TWO) == 0
    assert wanted(LotsBeforehand(), TWO, free=7) == 40 * GIB, "it is nearly full"
    assert wanted(LotsBeforehand(), TWO, settings=Settings(park_when="idle")) == 40 * GIB


@pytest.mark.parametrize(
    "sign",
    [
        parked("other"),
        parked("other", waits=1),
        asks(resident("other", GIB), GIB, waits=1),
        resident("other", GIB, host=HostUse(retry_at=NOW + 1)),
        replace(resident("other", GIB), residency=snapshots.Residency.PARKING),
    ],
    ids=["a park", "a wait", "an allocation that waits", "a refusal", "a park under way"],
)
def test_it_is_for_minutes_after_a_park_a_wait_or_a_refusal(sign):
    beforehand = LotsBeforehand()
    assert wanted(beforehand, [*TWO, sign]) > 0
    assert wanted(beforehand, TWO, now=NOW + LATELY_S) > 0
    assert wanted(beforehand, TWO, now=NOW + LATELY_S + 1) == 0


def test_a_kernel_that_has_been_parked_for_long_is_no_sign():
    beforehand = LotsBeforehand()
    assert wanted(beforehand, [*TWO, parked("other")]) > 0
    assert wanted(beforehand, [*TWO, parked("other")], now=NOW + LATELY_S + 1) == 0


def test_no_more_than_a_third_of_the_machines_memory_is_set_aside_for_kernels_that_were_never_parked():
    crowd = [resident(f"k{number}", 20 * GIB, host=USE) for number in range(4)]
    assert wanted(LotsBeforehand(), crowd, free=0) == RAM // 3
    lent = [replace(each, host=replace(USE, lot_bytes=20 * GIB)) for each in crowd[:2]]
    assert wanted(LotsBeforehand(), [*lent, *crowd[2:]], free=0) == RAM // 3 - 40 * GIB
    known = [replace(each, host=replace(each.host, park_takes_bytes=20 * GIB)) for each in lent]
    assert wanted(LotsBeforehand(), [*known, *crowd[2:]], free=0) == 40 * GIB, "these hold their copies"


def test_what_is_set_aside_is_called_neither_a_copy_nor_kept():
    def process(last_park):
        data = SimpleNamespace(retained_bytes=34 * GIB, last_park=last_park)
        return SimpleNamespace(retained_bytes=34 * GIB, data=data)

    never, before = process(None), process((20 * GIB, 0.5))
    assert (retained_bytes([never, before]), set_aside_bytes([never, before])) == (34 * GIB, 34 * GIB)
    assert (retained_bytes([never]), set_aside_bytes([before])) == (0, 0)
    shown = {"copy_bytes": 0, "parked_bytes": 0, "retained_bytes": 0, "set_aside_bytes": 34 * GIB}
    assert host_memory_text(shown) == "34 GiB of RAM set aside in advance"

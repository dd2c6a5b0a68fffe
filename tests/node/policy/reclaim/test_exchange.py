"""When kernels change places, and when one is parked before the other is resumed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshots import NEEDED, NOW, A, B, asks, busy, node, parked, resident

from jupyter_affinode.node.model.actions import DenyRoom, DropCaches, Park, Resume, Spill, Trim
from jupyter_affinode.node.model.snapshot import Gpu, Host, HostUse, Reservation, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.policy.reclaim.exchange import room_to_begin
from jupyter_affinode.settings.policy import GIB


def waiter(name="waiter", size=8 * GIB, *, waits=5, **fields):
    return parked(name, size, waits=waits, may_resume_in_parts=True, **fields)


def victim(name="victim", size=9 * GIB, **fields):
    return resident(name, size, **fields)


def going(size=9 * GIB):
    """A victim on its way."""
    return replace(victim(size=size), residency=Residency.PARKING, is_moving=True, moves_since=NOW)


def exchanged(actions):
    """The victims, and for which waiter."""
    return [
        (each.kernel_id, each.for_kernel) for each in actions if isinstance(each, Park) and each.exchanges
    ]


def plain(actions):
    return [each.kernel_id for each in actions if isinstance(each, Park) and not each.exchanges]


# ---- what is decided


def test_a_waiter_changes_places_with_its_victim():
    (action,) = decide(NOW, node(waiter(), victim()), NEEDED)
    assert isinstance(action, Park)
    assert (action.kernel_id, action.for_kernel, action.exchanges) == ("victim", "waiter", True)
    assert not action.to_context and not action.preempts


def test_while_others_change_places_the_next_victims_host_memory_is_given_back():
    reserve = NEEDED.host_reserve(64 * GIB)
    keeps = busy("keeps", GIB, host=HostUse(retained_bytes=9 * GIB, trimmable_bytes=9 * GIB))
    host = Host(reserve + 12 * GIB, total_bytes=64 * GIB)
    comes = replace(waiter("comes"), residency=Residency.RESUMING, is_moving=True, moves_since=NOW)
    others = going(), comes, waiter("next"), victim("idle"), keeps
    taken = (Reservation("comes", A, 8 * GIB),)
    found = decide(NOW, node(*others, host=host, reservations=taken), NEEDED)
    assert [(type(each), each.kernel_id) for each in found] == [(Trim, "keeps")]
    assert decide(NOW, node(*others, reservations=taken), NEEDED) == []


def test_a_kernel_that_has_come_but_has_not_said_so_keeps_the_next_exchange_waiting():
    has_come = replace(
        resident("comes", 4 * GIB), residency=Residency.RESUMING, is_moving=True, moves_since=NOW
    )
    assert decide(NOW, node(has_come, waiter(), victim()), NEEDED) == []


def test_several_victims_leave_for_one_waiter():
    victims = [victim("a", 5 * GIB), victim("b", 5 * GIB)]
    assert exchanged(decide(NOW, node(waiter(), *victims), NEEDED)) == [("a", "waiter"), ("b", "waiter")]


def test_free_room_counts():
    found = decide(NOW, node(waiter(), victim(size=5 * GIB), free=4 * GIB), NEEDED)
    assert exchanged(found) == [("victim", "waiter")]


@pytest.mark.parametrize(
    "others",
    [
        [replace(waiter(), may_resume_in_parts=False), victim()],
        [waiter(), victim(may_park_context=True)],
        [waiter(), victim("a", 5 * GIB), victim("b", 5 * GIB, may_park_context=True)],
        [asks(resident("asker", GIB, idle=0), 6 * GIB, waits=1), victim()],
        [waiter(left_bytes={A: GIB}, resume_retry_at=NOW + 1), victim()],
    ],
    ids=["waiter", "context", "one of two", "allocation", "parked in part"],
)
def test_all_else_is_a_park_and_then_a_resume(others):
    found = decide(NOW, node(*others), NEEDED)
    assert exchanged(found) == []
    assert plain(found) or others[0].left_bytes


def test_a_preempted_kernel_is_parked_first():
    found = decide(NOW, node(waiter(), busy("works", 9 * GIB)), NEEDED.changed(when_full="time_slice"))
    assert (exchanged(found), plain(found)) == ([], ["works"])


def test_caches_are_dropped_before_anything_moves():
    settings = NEEDED.changed(drop_caches_before_park=True)
    found = decide(NOW, node(waiter(), victim(can_drop_caches=True)), settings)
    assert [type(each) for each in found] == [DropCaches]


def test_victims_that_are_not_enough_are_parked_first():
    """The waiter is served later, by a kernel that is at work yet."""
    found = decide(NOW, node(waiter(), victim(size=5 * GIB), busy("works", 8 * GIB)), NEEDED)
    assert exchanged(found) == []


def test_an_exchange_under_way_is_waited_for():
    assert decide(NOW, node(waiter(), going(), victim("other")), NEEDED) == []


def test_the_next_exchange_begins_when_the_kernels_of_the_last_have_left_and_come():
    """Two at once would share the link, and what is on its way is counted twice."""
    comes = replace(waiter(), residency=Residency.RESUMING, is_moving=True, moves_since=NOW)
    others = waiter("second", waits=1), victim("other")
    reserved = (Reservation("waiter", A, 8 * GIB),)
    assert decide(NOW, node(going(), comes, *others, reservations=reserved), NEEDED) == []
    assert decide(NOW, node(comes, *others, free=4 * GIB, reservations=reserved), NEEDED) == []
    assert exchanged(decide(NOW, node(*others), NEEDED)) == [("other", "second")]


def test_no_kernel_is_parked_by_a_figure_from_before_a_move():
    outdated = {A: Gpu(A, 0, 16 * GIB, NOW - 0.01, is_reclaiming=True, is_outdated=True)}
    asker = asks(resident("asker", GIB, idle=0), 6 * GIB, waits=1)
    for kernels in ([waiter(), victim()], [asker, victim()], [victim()]):
        assert decide(NOW, replace(node(*kernels), gpus=outdated), NEEDED) == []
        newer = {A: replace(outdated[A], is_outdated=False)}
        found = decide(NOW, replace(node(*kernels), gpus=newer), NEEDED)
        assert [each.kernel_id for each in found if isinstance(each, Park)] == ["victim"]


def test_no_kernel_is_parked_for_the_watermark_in_the_midst_of_an_exchange():
    """The GPU is nearly full then, and room that is reserved may be in use already."""
    low = {A: Gpu(A, GIB, 16 * GIB, NOW, is_reclaiming=True)}
    comes = replace(waiter(), residency=Residency.RESUMING, is_moving=True, moves_since=NOW)
    for kernels in ([comes, victim()], [going(GIB), victim("other")]):
        assert decide(NOW, replace(node(*kernels), gpus=low), NEEDED) == []


def test_a_gpu_on_which_kernels_always_move_keeps_no_waiter_waiting_for_ever():
    """Users say when their kernels are parked, and a process may take as long as it likes."""
    moving = going(GIB), victim("other")
    assert decide(NOW, node(waiter(waits=9), *moving), NEEDED) == []
    assert exchanged(decide(NOW, node(waiter(waits=11), *moving), NEEDED)) == [("other", "waiter")]


def test_a_move_counts_on_the_gpus_where_the_kernel_has_memory():
    elsewhere = replace(going(), resident_bytes={B: 9 * GIB, A: 0})
    comes = replace(
        waiter(), residency=Residency.RESUMING, is_moving=True, moves_since=NOW, parked_bytes={B: GIB, A: 0}
    )
    for kernel in (elsewhere, comes):
        kernel = replace(kernel, id="elsewhere")
        gpus = {A: Gpu(A, 0, 16 * GIB, NOW), B: Gpu(B, 0, 16 * GIB, NOW)}
        found = decide(NOW, replace(node(waiter(), victim(), kernel), gpus=gpus), NEEDED)
        assert exchanged(found) == [("victim", "waiter")]


def test_exchanges_on_different_gpus_do_not_wait_for_each_other():
    leaves = replace(going(), resident_bytes={B: 9 * GIB})
    gpus = {uuid: Gpu(uuid, 0, 16 * GIB, NOW - 0.01) for uuid in (A, B)}
    found = decide(NOW, node(leaves, waiter(), victim("other"), gpus=gpus), NEEDED)
    assert exchanged(found) == [("other", "waiter")]


def test_a_park_that_hangs_is_not_waited_for():
    hangs = replace(going(), moves_since=NOW - 600)
    found = decide(NOW, node(hangs, waiter(), victim("other")), NEEDED)
    assert exchanged(found) == [("other", "waiter")]


def test_a_waiter_that_is_about_to_come_in_is_not_sent_to_disk():
    use = HostUse(spillable_bytes=8 * GIB)
    short = Host(
        GIB, total_bytes=64 * GIB, disk_limit_bytes=1 << 40, disk_free_bytes=1 << 40, disk_daily_bytes=1 << 40
    )
    sure = HostUse(park_takes_bytes=0)
    found = decide(NOW, node(waiter(host=use), victim(host=sure), host=short), NEEDED)
    assert exchanged(found) == [("victim", "waiter")]
    assert not any(isinstance(each, Spill) for each in found)


# ---- when all victims are prepared


def prepared(*, free=0, size=9 * GIB, **fields):
    goes = going(size)
    return node(waiter(**fields), goes, free=free)


def test_it_is_begun_while_there_will_be_room():
    assert room_to_begin(NOW, prepared(), NEEDED, "waiter") == {A: 8 * GIB}
    assert room_to_begin(NOW, prepared(size=7 * GIB), NEEDED, "waiter") is None
    assert room_to_begin(NOW, prepared(size=7 * GIB, free=GIB), NEEDED, "waiter"), "the margin is a courtesy"


@pytest.mark.parametrize(
    "change",
    [
        {"waits": None},
        {"resume_retry_at": NOW + 1},
        {"served_after": NOW + 1},
        {"is_moving": True},
        {"is_dying": True},
    ],
)
def test_it_is_not_begun_for_a_kernel_that_does_not_wait_or_cannot_come(change):
    assert room_to_begin(NOW, prepared(**change), NEEDED, "waiter") is None


def test_room_that_others_were_promised_is_not_the_waiters():
    seen = replace(prepared(), reservations=(Reservation("another", A, 2 * GIB),))
    assert room_to_begin(NOW, seen, NEEDED, "waiter") is None


# ---- parked in part


def in_part(*, waits=None, **fields):
    """2 GiB are on the host, and 6 GiB could not be copied."""
    return parked(
        "half", 2 * GIB, waits=waits, left_bytes={A: 6 * GIB}, unmovable_bytes={A: 6 * GIB}, **fields
    )


@pytest.mark.parametrize("waits", [None, 1])
def test_a_kernel_parked_in_part_comes_back_before_others_are_served(waits):
    found = decide(NOW, node(in_part(waits=waits), waiter(), free=2 * GIB), NEEDED)
    assert [(each.kernel_id, each.reserved_bytes) for each in found if isinstance(each, Resume)] == [
        ("half", {A: 2 * GIB})
    ]


def test_it_waits_for_room_and_for_its_pause():
    assert decide(NOW, node(in_part(), free=GIB), NEEDED) == []
    assert decide(NOW, node(in_part(resume_retry_at=NOW + 1), free=2 * GIB), NEEDED) == []


def test_what_it_has_on_the_gpu_is_not_parked_by_itself_and_may_be_later():
    asker = asks(resident("asker", GIB, idle=0), 5 * GIB, waits=10)
    gpus = {A: Gpu(A, GIB, 16 * GIB, NOW)}
    found = decide(NOW, node(asker, in_part(), gpus=gpus), NEEDED)
    assert not any(isinstance(each, Park | DenyRoom) for each in found)

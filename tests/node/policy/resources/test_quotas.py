"""Quotas of users and groups, and the caps of grants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshots import NEEDED, NOW, asks, busy, node, of, parked, parks, resident

from jupyter_affinode.node.model.actions import DenyRoom, GrantRoom, Park, Resume
from jupyter_affinode.node.model.reasons import Cause
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.settings.policy import GIB

LIMITED = NEEDED.changed(quotas="ann=10GiB")


def test_beyond_a_users_quota_only_their_own_idle_kernels_are_parked():
    waiter = of(parked("waiter", 6 * GIB, waits=1), "ann")
    kernels = [of(resident("own", 6 * GIB), "ann"), of(resident("other", 6 * GIB, idle=9000), "bob"), waiter]
    assert parks(decide(NOW, node(*kernels, free=4 * GIB, total=32 * GIB), LIMITED)) == ["own"]


def test_a_waiter_over_its_own_quota_holds_up_no_other_user():
    blocked = of(parked("blocked", 6 * GIB, waits=9), "ann")
    kernels = [of(busy("own", 6 * GIB), "ann"), blocked, of(parked("other", 6 * GIB, waits=1), "bob")]
    actions = decide(NOW, node(*kernels, free=8 * GIB, total=32 * GIB), LIMITED)
    assert [action.kernel_id for action in actions] == ["other"]


def test_a_users_later_kernel_does_not_take_what_their_earlier_one_waits_for():
    earlier, later = (
        of(parked("earlier", 6 * GIB, waits=9), "ann"),
        of(parked("later", 3 * GIB, waits=1), "ann"),
    )
    kernels = [of(busy("own", 6 * GIB), "ann"), earlier, later]
    assert decide(NOW, node(*kernels, free=20 * GIB, total=32 * GIB), LIMITED) == []


def test_a_kernel_that_is_larger_than_its_users_limit_comes_back_when_it_is_the_only_one():
    large, own = of(parked("large", 12 * GIB, waits=9), "ann"), of(busy("own", 1 * GIB), "ann")
    assert decide(NOW, node(large, own, free=15 * GIB), LIMITED) == []
    assert [type(a) for a in decide(NOW, node(large, free=15 * GIB), LIMITED)] == [Resume]


def test_an_allocation_that_exceeds_the_limit_by_itself_is_denied_with_the_limit_as_the_reason():
    kernel = of(asks(busy("k", 8 * GIB), 4 * GIB, waits=5), "ann")
    (action,) = decide(NOW, node(kernel, free=8 * GIB), LIMITED)
    assert isinstance(action, DenyRoom) and action.cause is Cause.LIMIT
    assert "user ann" in action.reason and "10 GiB" in action.reason


def test_a_user_grown_beyond_the_quota_has_idle_kernels_parked_without_a_waiter():
    kernels = [of(resident("old", 6 * GIB, idle=9000), "ann"), of(busy("new", 6 * GIB), "ann")]
    (action,) = decide(NOW, node(*kernels, free=20 * GIB, total=32 * GIB), LIMITED)
    assert (type(action), action.kernel_id, action.cause) == (Park, "old", Cause.LIMIT)


def test_a_grants_cap_is_a_limit_too_and_the_lower_one_counts():
    kernels = [of(busy("own", 6 * GIB), "ann"), of(parked("k", 6 * GIB, waits=9), "ann")]
    machine = {"free": 20 * GIB, "total": 32 * GIB}
    assert len(decide(NOW, node(*kernels, **machine), NEEDED)) == 1
    capped = [replace(kernel, limit_bytes=10 * GIB) for kernel in kernels]
    assert decide(NOW, node(*capped, **machine), NEEDED) == []
    assert decide(NOW, node(*capped, **machine), NEEDED.changed(quotas="ann=40GiB")) == []
    roomy = [replace(kernel, limit_bytes=40 * GIB) for kernel in kernels]
    assert decide(NOW, node(*roomy, **machine), LIMITED) == []


@pytest.mark.parametrize(
    "change", [{}, {"allocations_fail": True}, {"user": "ann"}, {"wants_since": NOW - 9}]
)
def test_an_allocation_on_a_gpu_that_is_gone_keeps_no_waiter_from_being_served(change):
    """A page named it while the allocation was asked for, and then no longer."""
    policy = NEEDED.changed(quotas="ann=1GiB")
    gone = replace(asks(resident("gone"), 2 * GIB, waits=9, gpu="GPU-gone"), **change)
    actions = decide(NOW, node(gone, parked("other", waits=5), free=8 * GIB), policy)
    assert [action.kernel_id for action in actions if isinstance(action, Resume)] == ["other"]
    assert not any(isinstance(action, GrantRoom) for action in actions)


def test_groups_share_their_limit():
    policy = NEEDED.changed(quotas="@students=10GiB")
    kernels = [
        of(busy("one", 6 * GIB), "ann", "students"),
        of(parked("two", 6 * GIB, waits=1), "bob", "students"),
    ]
    assert decide(NOW, node(*kernels, free=20 * GIB, total=32 * GIB), policy) == []
    kernels[1] = replace(kernels[1], groups=("staff",))
    assert len(decide(NOW, node(*kernels, free=20 * GIB, total=32 * GIB), policy)) == 1

"""When an idle kernel may be parked; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....settings.policy import Settings
from ...model.snapshot import Kernel, Residency, Speed
from .eviction_cost import break_even_s, remaining_s

LEAST_PAUSE_S = 1.0  # a shorter pause does not count as idle, however long others wait
# of contended_idle_timeout_s: a waiter that has waited for that part has paid for a round trip
WAITED_PARTS = 3
EXCHANGE_PARTS = 15  # … and for an exchange
NO_SPEEDS: Mapping[str, Speed] = {}


def eligible_at(
    kernel: Kernel,
    settings: Settings,
    *,
    waits_since: float | None,
    speeds: Mapping[str, Speed] = NO_SPEEDS,
    pauses_s: Sequence[float] = (),
) -> float | None:
    """Return the moment from which the kernel may be parked if nothing changes; None if time alone will not do.

    No open cell (or one that has not touched CUDA for long), no call in flight, idle for long enough, not
    held, large enough, movable, nothing under way. If a kernel waits (`waits_since`: when the longest
    wait began), an open cell counts for a minute only: the kernel may hold what the waiter waits for. A kernel
    between cells then need not be idle for as long as when none waits: for some seconds, and until a round trip
    pays off (eviction_cost.py). A wait pays for it, too, or kernels with short pauses would keep all others out for
    ever where moves are slow. A kernel that is about to use the GPU stays if none waits. `speeds` and `pauses_s`: as
    `Node` has them.
    """
    if kernel.calls_in_flight or kernel.rooms or kernel.captures:
        return None  # most of those that could be
    if (
        kernel.residency is not Residency.RESIDENT
        or kernel.is_moving
        or kernel.is_dying
        or not kernel.is_parkable
        or kernel.is_opted_out
        or kernel.is_ending
    ):
        return None
    size = kernel.movable_bytes
    if not size:
        return None
    timeout = settings.idle_timeout_s
    if kernel.cell_open:
        contended = waits_since is not None
        timeout = settings.contended_cell_idle_timeout_s if contended else settings.cell_idle_timeout_s
    elif waits_since is not None:
        timeout = min(timeout, _patience_s(kernel, settings, waits_since, speeds, pauses_s))
    expected = 0.0 if waits_since is not None else kernel.expected_until
    return max(kernel.last_activity + timeout, _retry_at(kernel), kernel.held_until or 0.0, expected)


def _retry_at(kernel: Kernel) -> float:
    """Return when a park that came to nothing may be tried again.

    A kernel that used the GPU after the pause is tried like any other from then on: its park has the whole time until
    its next use. Tried as soon as the pause is over, a kernel that uses the GPU every ten seconds could be computing
    each time. A kernel that did not use the GPU during a whole pause has stopped, and is tried at once.
    """
    if kernel.last_activity > kernel.retry_at:
        return 0.0
    return max(kernel.retry_at, kernel.last_activity + kernel.retry_pause_s)


def _patience_s(
    kernel: Kernel,
    settings: Settings,
    waits_since: float,
    speeds: Mapping[str, Speed],
    pauses_s: Sequence[float],
) -> float:
    """Return for how long the kernel must have been idle while another waits.

    At first that is `contended_idle_timeout_s`, or a round trip if that is longer. The waiter pays the rent that a
    round trip is weighed against (eviction_cost.py). So once the wait has lasted two round trips, or a third of
    `contended_idle_timeout_s`, it is enough that the kernel has been idle for one round trip. Else kernels with pauses
    shorter than the time-out would keep all others out for as long as they are used. A kernel whose context stays can
    be exchanged with the waiter, which costs it less: a fifteenth, or one round trip, is enough. `LEAST_PAUSE_S` is
    enough after a park that came to nothing, and once the wait has lasted twice that time: else a kernel whose pauses
    are hardly longer than a park, or shorter than a round trip, would keep the GPU too.

    All that is for a pause of unknown length. Where such a pause will probably last a round trip longer
    (`remaining_s`), there is nothing to wait for: a skier who expects a long season buys at once (Purohit, Svitkina and
    Kumar, "Improving online algorithms via ML predictions", NeurIPS 2018). Of the setting, a fifteenth stays, so that a
    site can keep kernels on the GPU for longer. docs/development/policy.md has the planner's figures.
    """
    usual_s = settings.contended_idle_timeout_s
    round_trip_s = break_even_s(kernel, speeds)
    own_s = max(usual_s, round_trip_s)
    if not kernel.may_park_context:
        paid_s = max(usual_s / EXCHANGE_PARTS, round_trip_s)
        if remaining_s(LEAST_PAUSE_S, pauses_s) >= round_trip_s:
            own_s = min(usual_s, max(usual_s / EXCHANGE_PARTS, LEAST_PAUSE_S))
    else:
        paid_s = max(usual_s / WAITED_PARTS, 2 * round_trip_s)
    paid_at = waits_since + min(own_s, paid_s)
    least_s = min(usual_s, max(LEAST_PAUSE_S, round_trip_s))
    if kernel.retry_pause_s:
        least_s = LEAST_PAUSE_S
    soonest_s = max(LEAST_PAUSE_S, waits_since + 2 * own_s - kernel.last_activity)
    return min(own_s, max(least_s, paid_at - kernel.last_activity), soonest_s)


def least_idle_s(settings: Settings, *, waits_since: float | None, now: float) -> float:
    """Return the shortest idle time that can make a kernel eligible, whatever else is true of it."""
    least = min(settings.idle_timeout_s, settings.cell_idle_timeout_s)
    if waits_since is not None:
        usual_s = settings.contended_idle_timeout_s
        least = min(least, usual_s, max(usual_s / EXCHANGE_PARTS, LEAST_PAUSE_S))
        if now - waits_since >= settings.contended_idle_timeout_s / EXCHANGE_PARTS:
            least = min(least, LEAST_PAUSE_S)
    return least

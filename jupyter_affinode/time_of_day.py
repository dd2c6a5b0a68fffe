"""Moments as every view names them: one format, in this machine's time zone; and the clock that is never set."""

from __future__ import annotations

import time

DAY_S = 86400.0


def clock_in_words(in_s: float) -> str:
    """Return a moment as this machine's time of day with its zone, and with the date where it is a day away or more."""
    form = "%H:%M %Z" if abs(in_s) < DAY_S else "%Y-%m-%d %H:%M %Z"
    return time.strftime(form, time.localtime(time.time() + in_s))


def since_boot_s() -> float:
    """Return the seconds since the machine started, sleep included, which no change of the time of day moves."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

"""When a park or resume that is under way lasts so long that others should not wait for what comes of it; pure.

What moves took before is a mean, and a machine whose memory or link is busy takes a few times as long. But one that
never ends would keep all others on the GPU, and whoever waits for room would wait for it alone. So somebody else is
asked, too, when a move is late: soon, where its person let others wait before (lapses.py).
"""

from __future__ import annotations

from .snapshot import Kernel, Residency
from .victims import Speeds, park_s, resume_s

# Times its expected duration, and seconds in which its processes may begin and agree.
RESUME_TIMES, RESUME_S = 4.0, 10.0
PARK_TIMES, PARK_S = 3.0, 5.0
BEHIND_TIMES, BEHIND_S = 1.5, 2.0


def is_late(now: float, kernel: Kernel, speeds: Speeds) -> bool:
    """Whether others should not wait for it any more."""
    return kernel.moves_since is not None and now - kernel.moves_since > _limit_s(now, kernel, speeds)


def is_given_up(now: float, kernel: Kernel, speeds: Speeds) -> bool:
    """Whether a late park keeps no host memory from others any more but what it has taken, which is seen to be gone:
    of somebody who is behind, after twice the time. What it may take is a promise that would keep everybody
    else's memory on the GPU for as long as a move may last.
    """
    if kernel.moves_since is None or kernel.behind_until <= now:
        return False
    return now - kernel.moves_since > 2 * (PARK_TIMES * park_s(kernel, speeds) + PARK_S)


def _limit_s(now: float, kernel: Kernel, speeds: Speeds) -> float:
    if kernel.residency is Residency.RESUMING:
        return RESUME_TIMES * resume_s(kernel, speeds) + RESUME_S
    if kernel.behind_until > now:
        return BEHIND_TIMES * park_s(kernel, speeds) + BEHIND_S
    return PARK_TIMES * park_s(kernel, speeds) + PARK_S

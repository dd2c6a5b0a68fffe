"""The start time of a process, on a clock that a restarted controller still agrees with."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STARTED = 22 - 3  # proc_pid_stat(5): the 22nd field; the first two end with the last parenthesis


def started_at(pid: int, default: float) -> float:
    """Return the start time in seconds since boot; `default` for a process that cannot be seen (another pid
    namespace).
    """
    if pid <= 0:
        return default
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[STARTED]) / TICKS_PER_S
    except (OSError, ValueError, IndexError):
        return default

"""CUDA calls of a kernel by class, and the entry points called most, counted only while a client asks for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..protocol.page import MAX_ENTRY_POINTS, CallClass
from ..protocol.wire import CommandKind
from ..state.records.kernel import KernelRecord
from ..state.records.process import Process

COUNTS_FOR_S = 10.0  # after a look; a shim stops by itself


def count_calls(kernel: KernelRecord, now: float) -> dict[str, Any]:
    """Return a kernel's calls so far, for the API; have its shims count by entry point for the next seconds.

    `now`: monotonic seconds.
    """
    counting = kernel.connected()
    for process in counting:
        if process.connection is not None:
            process.connection.command(CommandKind.COUNT, argument=int(COUNTS_FOR_S * 1e9))
    calls: Counter[int] = Counter()
    for process in kernel.processes.values():
        calls.update(dict(enumerate(process.data.calls)))
    since = [each.data.counted_since for each in counting if each.data.counted_since is not None]
    return {
        "calls": {each.name.lower(): calls[each] for each in CallClass},
        "entry_points": _entry_points(counting),
        "age_s": round(max(now - min(since), 0.0), 3) if since else 0.0,
    }


def _entry_points(processes: list[Process]) -> list[dict[str, Any]]:
    calls: Counter[str] = Counter()
    for process in processes:
        calls.update(dict(process.data.entry_points))
    return [{"name": name, "calls": count} for name, count in calls.most_common(MAX_ENTRY_POINTS)]

"""The bench's report as a picture."""

from __future__ import annotations

from typing import Any

from ..bar_chart import Bar, Bars, svg
from .measure import size_text


def picture(report: dict[str, Any]) -> str:
    """Return parks and resumes of the largest size, in seconds, as SVG: ours, the driver's, and a plain copy."""
    rows = [
        row
        for row in report["ours"]
        if (row["depth"], row["host"]) == ("memory", "private") and "zeros" not in row["name"]
    ]
    size = max((row["bytes"] for row in rows), default=0)
    block = max((row["block_bytes"] for row in rows if row["bytes"] == size), default=0)
    ours = {
        row["name"]: row["median_s"] for row in rows if (row["bytes"], row["block_bytes"]) == (size, block)
    }
    driver = next((case for case in report["driver"]["cases"] if case["bytes"] == size), None)
    top = report["ceiling"]

    parks = [
        _bar("ours", f"ours: {name.replace('park,', 'later park,')}", took)
        for name, took in ours.items()
        if name != "resume"
    ]
    lots = [
        row
        for row in report["ours"]
        if (row["name"], row["host"], row["bytes"]) == ("first park", "lot", size)
    ]
    parks[1:1] = [_bar("ours", "ours: first park into a lot", row["median_s"]) for row in lots]
    resumes = [_bar("ours", "ours: resume", ours["resume"])] if "resume" in ours else []
    if driver is not None:
        parks.insert(0, _bar("driver", "the driver's checkpoint", driver["park_s"]))
        resumes.insert(0, _bar("driver", "the driver's checkpoint", driver["resume_s"]))
    if top is not None and size:
        parks.append(_bar("other", "pinned copy, nothing else", size / top["to_host_bytes_per_s"]))
        resumes.append(_bar("other", "pinned copy, nothing else", size / top["to_device_bytes_per_s"]))
    what = f"{size_text(size)} of random data"
    machine = report["machine"]
    return svg(
        [Bars(f"Park {what}", parks), Bars(f"Resume {what}", resumes)],
        about="Times to park and resume",
        note=f"{machine['gpu']}, {machine['date']}; time, less is better",
        warning="SIMULATED: not GPU performance" if report["simulated"] else "",
    )


def _bar(kind: str, label: str, seconds: float) -> Bar:
    return Bar(kind, label, seconds, f"{seconds:.2f} s" if seconds >= 0.995 else f"{seconds * 1e3:.0f} ms")

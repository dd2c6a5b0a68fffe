"""The bench's report as a picture: an SVG with bars that reads on light and dark pages alike."""

from __future__ import annotations

from html import escape
from typing import Any

from .measure import size_text

WIDTH, LABEL, VALUE = 720, 250, 90
BAR, GAP, TITLE = 18, 8, 34
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.note { fill: #59636e; }
.ours { fill: #1a7f5a; } .driver { fill: #b35900; } .ceiling { fill: #6e7781; }
.warning { font-size: 22px; font-weight: 700; fill: #cf222e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #9198a1; }
  .ours { fill: #3fb68b; } .driver { fill: #e08a3c; } .ceiling { fill: #8b949e; } .warning { fill: #ff7b72; }
}
"""
Bar = tuple[str, str, float]  # class, label, seconds


def picture(report: dict[str, Any]) -> str:
    """Parks and resumes of the largest size, in seconds: ours, the driver's checkpoint, and what the wire takes."""
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

    parks: list[Bar] = [
        ("ours", f"ours: {name.replace('park,', 'later park,')}", took)
        for name, took in ours.items()
        if name != "resume"
    ]
    lots = [
        row
        for row in report["ours"]
        if (row["name"], row["host"], row["bytes"]) == ("first park", "lot", size)
    ]
    parks[1:1] = [("ours", "ours: first park into a lot", row["median_s"]) for row in lots]
    resumes: list[Bar] = [("ours", "ours: resume", ours["resume"])] if "resume" in ours else []
    if driver is not None:
        parks.insert(0, ("driver", "the driver's checkpoint", driver["park_s"]))
        resumes.insert(0, ("driver", "the driver's checkpoint", driver["resume_s"]))
    if top is not None and size:
        parks.append(("ceiling", "pinned copy, nothing else", size / top["to_host_bytes_per_s"]))
        resumes.append(("ceiling", "pinned copy, nothing else", size / top["to_device_bytes_per_s"]))

    body: list[str] = []
    y = 0
    if report["simulated"]:
        y += 30
        body.append(f'<text class="warning" x="0" y="{y}">SIMULATED: not GPU performance</text>')
    longest = max((seconds for _, _, seconds in parks + resumes), default=1.0)
    for title, bars in (("Park", parks), ("Resume", resumes)):
        y += TITLE
        body.append(
            f'<text class="title" x="0" y="{y}">{title} {escape(size_text(size))} of random data</text>'
        )
        y += GAP
        for bar in bars:
            y += GAP
            body += _bar(y, longest, *bar)
            y += BAR
    y += TITLE
    machine = report["machine"]
    note = f"{machine['gpu']}, {machine['date']}; time, less is better"
    body.append(f'<text class="note" x="0" y="{y}">{escape(note)}</text>')
    height = y + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="Times to park and resume"><style>{STYLE}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _bar(y: int, longest: float, kind: str, label: str, seconds: float) -> list[str]:
    width = max((WIDTH - LABEL - VALUE) * seconds / longest, 1.5)
    text = f"{seconds:.2f} s" if seconds >= 0.995 else f"{seconds * 1e3:.0f} ms"
    return [
        f'<text x="0" y="{y + 14}">{escape(label)}</text>',
        f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        f'<text x="{LABEL + width + 8:.1f}" y="{y + 14}">{text}</text>',
    ]

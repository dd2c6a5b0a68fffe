"""Sizes, durations, numbers and tables as users read and write them: the one place that formats and parses them.

Numbers on command lines have bounds: without them `1e300`, `nan` or a count of many digits would be taken for a number
that some loop goes up to.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence

SHOWN = 40  # characters of what was given
DIGITS_MAX = 25  # of a whole number; more digits are no size that is meant
LARGEST = 1 << 60  # of any size, in bytes
_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]iB)?", re.IGNORECASE | re.ASCII)


def number(least: float, most: float, *, above: bool = False) -> Callable[[str], float]:
    """For `add_argument(type=…)`: a number from `least` to `most`; with `above`, more than `least`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least < value if above else least <= value) or not value <= most:
            raise _refused(text, "a number", least, most, above=above)
        return value

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """The same for a whole number."""

    def parse(text: str) -> int:
        try:
            value = int(text) if len(text) <= DIGITS_MAX else None
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise _refused(text, "a whole number", least, most)
        return value

    return parse


def _refused(
    text: str, what: str, least: float, most: float, *, above: bool = False
) -> argparse.ArgumentTypeError:
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    bounds = f"more than {_plain(least)} and at most" if above else f"from {_plain(least)} to"
    return argparse.ArgumentTypeError(f"must be {what} {bounds} {_plain(most)}, not {shown!r}")


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def size_in_bytes(text: str) -> int:
    """Return the bytes of `40GiB`, `512 MiB` or `1048576`. Raises ValueError, with words that a user can act on."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:SHOWN]!r} is no size; write 40GiB, 512MiB or a number of bytes")
    size = float(match[1]) * _UNITS[(match[2] or "").upper()]
    if size > LARGEST:
        raise ValueError(f"{text!r} is more than any GPU has; a size is at most {LARGEST} bytes")
    return int(size)


def bytes_in_words(size: int) -> str:
    """`12 GiB`, `1.5 GiB`, `300 MiB`, `12 KiB`, `0 bytes`."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            value = size / unit
            return f"{value:.1f} {name}".replace(".0 ", " ") if value < 10 else f"{value:.0f} {name}"
    return f"{size} bytes"


def duration_in_words(seconds: float) -> str:
    """`40 s`, `6 min`, `1 h`, `1 h 30 min`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s".replace(".0 ", " ")
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def bound_in_words(seconds: float | None) -> str:
    """How much longer a wait lasts at most, rounded up: `at most 3 min more`; None: that is not known."""
    if seconds is None:
        return "how long cannot be said"
    unit = 1 if seconds <= 119 else 60
    return f"at most {duration_in_words(max(math.ceil(seconds / unit), 1) * unit)} more"


def sentence(text: str) -> str:
    """Return a text with a capital letter, unless it begins with a file's name."""
    return text if "." in text.split(" ", 1)[0] else text[:1].upper() + text[1:]


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `11th`."""
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def in_columns(rows: Sequence[Sequence[str]], *, figures: bool = False) -> list[str]:
    """Return a line for each row, its cells below each other; `figures`: all but the first column to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if figures and number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]

"""Numbers on command lines, with their bounds: argparse names the option, the message what it takes.

Without bounds `1e300`, `nan` or a count of many digits would be taken for a number that some loop goes up to.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

SHOWN = 40  # characters of what was given
DIGITS_MAX = 25  # of a whole number; more are none that anybody means


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

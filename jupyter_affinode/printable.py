"""Text that may be shown in logs, terminals and pages: it begins no new line and moves no cursor.

Control characters, the marks that reverse a text's direction or are invisible, and lone surrogates are not printable.
`openapi.json` has the same characters.
"""

from __future__ import annotations

import re

TEXT_MAX = 256  # characters of an id, a name or a path
UNPRINTABLE = re.compile(
    "[\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ud800-\\udfff\\ufeff]"
)


def is_printable(text: str) -> bool:
    """Return whether a text may be shown as it is."""
    return UNPRINTABLE.search(text) is None


def printable(text: str) -> str:
    """Return a text with a mark for each character that is not printable."""
    return UNPRINTABLE.sub("\ufffd", text)


def fitting(text: str, *, keeps_end: bool = False) -> str:
    """Return a text as the controller takes it: printable and short; of a path the end is kept."""
    shown = printable(text)
    if len(shown) <= TEXT_MAX:
        return shown
    return f"…{shown[1 - TEXT_MAX :]}" if keeps_end else f"{shown[: TEXT_MAX - 1]}…"

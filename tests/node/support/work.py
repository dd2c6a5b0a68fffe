"""What a function does, counted in steps, so that no clock can spoil it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def work_of(function: Callable[..., object], *arguments: Any) -> int:
    """How many lines are run, and how many built-in functions called."""
    count = 0

    def note_line(frame, event, argument):
        nonlocal count
        count += event == "line"
        return note_line

    def note_call(frame, event, argument):
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace()  # a debugger's, or that of a coverage tool
    sys.settrace(note_line)
    sys.setprofile(note_call)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return count

"""Settings that differ by user or group, as text: `alice=80GiB, hub:bob=20GiB, @staff=1TiB, *=40GiB`.

`alice` is a user of this machine, `hub:alice` one that a grant names: they may be two people. `@staff` is a group of
this machine, `@hub:staff` one that grants name. `*` is every user that is not named, `@*` every such group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from ..units import LARGEST as LARGEST
from ..units import size_in_bytes

PRIORITY_MIN, PRIORITY_MAX = -5, 5
EVERYBODY = "*"
EVERY_GROUP = "@*"
FOLDER_MAX = 160  # bytes of a path
GRANTED = "hub:"  # before the names that grants say


class RuleError(ValueError):
    """A text is no valid rule; the message names the invalid part and gives an example."""


@lru_cache(maxsize=64)
def sizes(text: str) -> Mapping[str, int]:
    """Return bytes by name. Raises RuleError."""
    return {name: _size(value) for name, value in _pairs(text)}


@lru_cache(maxsize=64)
def numbers(text: str) -> Mapping[str, int]:
    """Return priority classes by name. Raises RuleError."""
    rules = {}
    for name, value in _pairs(text):
        if not re.fullmatch(r"[+-]?[0-9]{1,3}", value) or not PRIORITY_MIN <= int(value) <= PRIORITY_MAX:
            raise RuleError(f"{value!r} is no whole number from {PRIORITY_MIN} to {PRIORITY_MAX}")
        rules[name] = int(value)
    return rules


def class_of(priority: int) -> int:
    """Return the class that a priority means: what grants and kernelspecs say may be beyond the last one."""
    return min(max(priority, PRIORITY_MIN), PRIORITY_MAX)


@lru_cache(maxsize=64)
def names(text: str) -> frozenset[str]:
    """Return the names in a list. Raises RuleError."""
    parts = frozenset(part.strip() for part in text.split(",") if part.strip())
    for part in parts:
        if "=" in part or " " in part:
            raise RuleError(f"{part!r} is no name; names are separated by commas, groups are written @group")
        _check_name(part.removeprefix("@"))
    return parts


def folder(text: str) -> str:
    """Return an absolute path that a command on the link can carry, or "". Raises RuleError."""
    if text and (not text.startswith("/") or "\0" in text or len(text.encode()) > FOLDER_MAX):
        raise RuleError(f"write an absolute path of at most {FOLDER_MAX} bytes, not {text[:40]!r}")
    return text


def rule_for(rules: Mapping[str, int], name: str) -> int | None:
    """Return the rule for a user, or a group (`@staff`); None if there is none."""
    return rules.get(name, rules.get(EVERY_GROUP if name.startswith("@") else EVERYBODY))


def is_named(listed: frozenset[str], user: str, groups: Iterable[str]) -> bool:
    """Return whether a list names the user, one of the user's groups, or all users."""
    return EVERYBODY in listed or user in listed or any(f"@{group}" in listed for group in groups)


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise RuleError(f"{part!r} is not of the form name=value")
        if any(name == known for known, _ in pairs):
            raise RuleError(f"{name!r} is named twice")
        _check_name(name.removeprefix("@"))
        pairs.append((name, value))
    return pairs


def _check_name(name: str) -> None:
    """Raise RuleError if a name could mean several users or groups, or none."""
    before, colon, rest = name.partition(":")
    if rest.startswith("@"):
        raise RuleError(f"{name!r} is no name: a group that grants name is written @{before}:{rest[1:]}")
    if not name or (colon and (f"{before}:" != GRANTED or not rest)):
        likely = rest or "alice"
        raise RuleError(
            f"{name!r} is no name: {likely} is a user or group of this machine,"
            f" {GRANTED}{likely} one that a grant names"
        )


def _size(text: str) -> int:
    try:
        return size_in_bytes(text)
    except ValueError as error:
        raise RuleError(str(error)) from None

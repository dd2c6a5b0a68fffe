"""The table of driver entry points refuses a call about which too little has been decided."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shim" / "tools"))

from entry_points import read_known
from prototypes import Prototype
from rules import Rule, RuleBook, TableError, read_rules


def rule(kind: str, pattern: str) -> Rule:
    return Rule(0, kind, re.compile(pattern))


def book(*prototypes: Prototype, rules: tuple[Rule, ...] = ()) -> RuleBook:
    known = read_known() | {prototype.name: prototype for prototype in prototypes}
    return RuleBook(known, [*rules, *read_rules()])


def test_every_known_call_is_decided() -> None:
    assert book().classes["cuLaunchKernel"] == "LAUNCH"
    assert book().traits["cuMemCreate"] == {"takes-described", "own-handle"}


@pytest.mark.parametrize(
    "signature, rules, complaint",
    [
        ("p", (), "no rule for cuMemLater"),
        ("pa", (rule("LAUNCH", "cuMemLater"),), "takes an address"),
        ("Al", (rule("ALLOC", "cuMemLater"),), "takes an address"),
        ("lh", (rule("HOST", "cuMemLater"),), "takes a handle"),
        ("H", (rule("HOST", "cuMemLater"), rule("own-handle", "cuMemLater")), "has no hook"),
        ("a", (rule("HOST", "cuMemLater"), rule("uses-address", "cuMemLater")), "does not wait"),
        (
            "a",
            (
                rule("FREE", "cuMemLater"),
                rule("own-address", "cuMemLater"),
                rule("other-address", "cuMemLater"),
            ),
            "say one of",
        ),
        ("p", (rule("HOST", "cuMemLater"), rule("HOST", "cuMemL.*")), "decides nothing"),
    ],
)
def test_an_undecided_call_is_refused(signature: str, rules: tuple[Rule, ...], complaint: str) -> None:
    with pytest.raises(TableError, match=complaint):
        book(Prototype("cuMemLater", signature, 14000), rules=rules)


def test_a_decided_call_is_accepted() -> None:
    rules = (rule("LAUNCH", "cuMemLater"), rule("uses-address", "cuMemLater"))
    assert book(Prototype("cuMemLater", "apl", 14000), rules=rules).traits["cuMemLater"] == {"uses-address"}


def test_a_new_version_of_a_hooked_call_needs_a_hook() -> None:
    """Programs that ask for the newest version would come past the shim."""
    with pytest.raises(TableError, match="cuStreamCreate since 14000 has no hook"):
        book(Prototype("cuStreamCreate_v2", "pi", 14000))
    with pytest.raises(TableError, match="cuMemUnmap"):
        book(Prototype("cuMemUnmap_v2", "al", 14000))


def test_a_base_name_is_answered_by_its_newest_hook() -> None:
    rows = [(row.function, row.version) for row in book().hooks if row.name == "cuCtxCreate" and row.version]
    assert rows == [("cuCtxCreate_v4", 12050), ("cuCtxCreate_v3", 11040), ("cuCtxCreate_v2", 1)]

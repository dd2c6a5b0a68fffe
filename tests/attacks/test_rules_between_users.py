"""Rules between users (docs/development/between-users.md) that all sources are held against."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupyter_affinode
from jupyter_affinode.node import api

ROOT = Path(__file__).parents[2]
PACKAGE, HUB, SHIM = Path(jupyter_affinode.__file__).parent, ROOT / "hub_spawner", ROOT / "shim" / "src"
SOURCES = sorted([*PACKAGE.rglob("*.py"), *HUB.rglob("*.py"), *SHIM.rglob("*.c")])

EVERY_USERS_FOLDER = re.compile(
    r"""["'](?:/tmp|/var/tmp|/dev/shm)\b[^"']*["']|\bgettempdir\b|\bTEMPORARY\b"""
)
MADE_AT_RANDOM = re.compile(r"mkdtemp|mkstemp|TemporaryDirectory")
NAMES_THERE = {  # why a name there that others can know is harmless
    "environment.py": "the user's folder is verified, and another one is used where it is taken",
    "discovery.c": "the same, in the shim",
    "handover.py": "the machine's controller looks there, and makes nothing",
    "semaphores.py": "names that Linux gives, linked with link(2), which replaces nothing",
}
TAKEN = re.compile(r"\bflock\([^;\n]*LOCK_(?:EX|SH)[^;\n]*")
NEED_NOT_WAIT = {"starting.py": "a lock that it has becomes one for readers"}
LISTED_WHOLE = re.compile(r"(?:listdir|iterdir|glob|scandir)\([^\n]*\)\)?\[:|list\((?:os\.)?scandir")


def found(pattern: re.Pattern[str], but: re.Pattern[str] | None = None) -> list[tuple[str, str]]:
    """The lines of all sources in which a pattern is, without comments; `but` excuses a line."""
    return [
        (path.name, line.strip())
        for path in SOURCES
        for line in path.read_text().splitlines()
        if pattern.search(line.partition("#")[0] if path.suffix == ".py" else line)
        and not (but is not None and but.search(line))
    ]


def test_no_name_that_others_can_know_is_made_where_all_users_make_names():
    assert {name for name, _ in found(EVERY_USERS_FOLDER, MADE_AT_RANDOM)} == NAMES_THERE.keys()


def test_no_part_waits_without_a_bound_for_a_lock_on_a_file():
    """Each asks for it without waiting, and asks again for as long as it will."""
    locks = found(TAKEN)
    assert len(locks) > 10, "the walk has found nothing"
    waiting = {name for name, line in locks if "LOCK_NB" not in line}
    assert waiting == NEED_NOT_WAIT.keys()


def test_no_folder_is_listed_whole_and_cut_afterwards():
    assert found(LISTED_WHOLE) == []


def resolved(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """What a `$ref` leads to."""
    while "$ref" in schema:
        found_at: Any = whole
        for part in schema["$ref"].lstrip("#/").split("/"):
            found_at = found_at[part]
        schema = found_at
    return schema


def unbounded(schema: dict[str, Any], where: str, whole: dict[str, Any]) -> Iterator[str]:
    """Yield where in a schema of a request there may be any number of characters, entries or names."""
    schema = resolved(schema, whole)
    types = schema.get("type")
    types = types if isinstance(types, list) else [types]
    if "string" in types and not schema.keys() & {"maxLength", "enum", "const"}:
        yield f"{where}: text"
    if "array" in types and "maxItems" not in schema:
        yield f"{where}: entries"
    if "object" in types and schema.get("additionalProperties", True) is not False:
        yield f"{where}: names"
    for name, part in schema.get("properties", {}).items():
        yield from unbounded(part, f"{where}.{name}", whole)
    if "items" in schema:
        yield from unbounded(schema["items"], f"{where}[]", whole)


def test_whatever_a_request_may_say_has_a_bound():
    whole = json.loads((Path(api.__file__).parent / "openapi.json").read_text())
    bodies = {
        f"{method} {path}": resolved(told["requestBody"], whole)["content"]["application/json"]["schema"]
        for path, methods in whole["paths"].items()
        for method, told in methods.items()
        if method != "parameters" and "requestBody" in told
    }
    assert len(bodies) > 5, "the walk has found nothing"
    assert [place for name, schema in bodies.items() for place in unbounded(schema, name, whole)] == []

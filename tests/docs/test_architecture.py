"""What the pages for developers name is there: files, and the functions on the way of a park request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clean_place import REPOSITORY

PAGES = [REPOSITORY / "ARCHITECTURE.md", *sorted((REPOSITORY / "docs/development").glob("*.md"))]
# Paths begin at the repository, or below one of these.
PACKAGE, NODE = "jupyter_affinode", "jupyter_affinode/node"
FOLDERS = ("", PACKAGE, NODE, f"{NODE}/state", f"{NODE}/policy", f"{NODE}/execution", "hub_spawner", "shim")
FOLDERS += (
    "shim/src",
    "shim/sim",
    "labextension/src",
    "labextension",
    "tests",
    "tests/shim/c",
    f"{PACKAGE}/planner",
)
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/[\w.-]+\.(?:py|c|h|S|ts|tsx|md|json|rules|preamble|service))`")
STEP = re.compile(r"`([A-Za-z_.]+)` \((?:`([\w./]+)`|the same file)\)")


def places(path: str) -> list[Path]:
    return [there for folder in FOLDERS if (there := REPOSITORY / folder / path).is_file()]


def walk() -> list[tuple[str, str]]:
    """Return the functions on the way of a park request, each with its file."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text()
    section = text.split("## The way of a park request")[1].split("\n## ")[0]
    steps, file = [], ""
    for name, path in STEP.findall(section):
        file = path or file
        steps.append((name, file))
    return steps


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    named = set(PATH.findall(page.read_text()))
    assert [path for path in sorted(named) if not places(path)] == []


def test_each_step_of_a_park_request_is_a_function_of_its_file():
    steps = walk()
    assert len(steps) >= 18
    for name, path in steps:
        (file,) = places(path)
        *kind, function = name.split(".")
        defined = rf"\b{function}\(.*\)\n{{" if file.suffix == ".c" else rf"^\s*(async )?def {function}\("
        assert re.search(defined, file.read_text(), re.MULTILINE), f"{name} is not in {path}"
        assert all(f"class {each}" in file.read_text() for each in kind), f"{name} is not in {path}"

"""What users read outside JupyterLab has the panel's words: free, get back, keep, waiting; never the schedulers' words.

Looked at are the texts of the command line, the magics, the controller, the shim and the Hub's pages. Logs, metrics,
settings and what developers run may use the glossary.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from clean_place import REPOSITORY

NOT_SHOWN = re.compile(
    r"\b(park(s|ed|ing|able)?|resum(e|es|ed|ing)|held|holds? (the|its|a) gpu|evict\w*|victims?|residen\w+|reclaim\w*"
    r"|preempt\w*|unmovable|wish\w*|probably|nobody|whoever|somebody)\b",
    re.IGNORECASE,
)
TYPED = re.compile(r"`[^`]*`|jupyter affinode \w+|%gpu_\w+")
FOR_ADMINISTRATORS = (  # and developers
    *("bench/", "planner/", "monitoring/", "settings/", "node/ledger/", "node/metrics/", "node/system/"),
    *("node/model/", "node/app.py", "cli/machine/monitoring.py", "environment.py"),
)
LOGGING = {"debug", "info", "warning", "error", "exception", "log"}
PYTHON = [
    path
    for folder in ("jupyter_affinode", "hub_spawner")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
    if not str(path.relative_to(REPOSITORY / folder)).startswith(FOR_ADMINISTRATORS)
]
TEMPLATES = sorted((REPOSITORY / "hub_spawner/service/templates").glob("*.html"))
SHIM = sorted((REPOSITORY / "shim/src").rglob("*.c")) + sorted((REPOSITORY / "shim/src").rglob("*.h"))


def texts(source: Path) -> Iterator[str]:
    """Yield the texts in a file that a user may read: those with a space in them."""
    content = source.read_text("utf-8")
    if source.suffix == ".py":
        found = _python_texts(ast.parse(content))
    elif source.suffix == ".html":
        found = (re.sub(r"\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", "\n", content, flags=re.DOTALL)).splitlines()
    else:
        found = _c_texts(content)
    for text in found:
        if " " in text.strip() or source.suffix == ".html":
            yield text


def _python_texts(tree: ast.AST) -> Iterator[str]:
    """Yield a module's strings but docstrings, what is logged, and the help of settings."""
    left_out: set[int] = set()

    def leave_out(part: ast.AST) -> None:
        left_out.update(id(each) for each in ast.walk(part))

    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            leave_out(body[0].value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGGING:
            leave_out(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):  # traits, not argparse
            for keyword in node.keywords:
                if keyword.arg == "help":
                    leave_out(keyword)
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            leave_out(node)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _c_texts(content: str) -> Iterator[str]:
    """Yield a C file's strings but comments and what is logged."""
    content = re.sub(r"/\*.*?\*/", "", content, flags=re.DOTALL)
    for statement in content.split(";"):
        if not re.search(r"\b(log_line|DESCRIBE|_Static_assert|#include)\b", statement):
            yield "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', statement))


FOUND = {  # in each kind of files, so that each is known to be read
    "python": (PYTHON, ["is kept on the GPU", "Longest wait"]),
    "templates": (TEMPLATES, ["What administrators did"]),
    "shim": (SHIM, ["host memory is short", "Restart the kernel."]),
}


@pytest.mark.parametrize("kind", FOUND)
def test_no_word_of_the_schedulers_is_shown(kind):
    sources, expected = FOUND[kind]
    found = {source: list(texts(source)) for source in sources}
    shown = [
        (source, text)
        for source, all_of_it in found.items()
        for text in all_of_it
        if NOT_SHOWN.search(TYPED.sub("", text))
    ]
    assert not shown
    everything = " ".join(itertools.chain(*found.values()))
    assert [words for words in expected if words not in everything] == []


def test_a_word_that_must_not_be_shown_would_be():
    assert NOT_SHOWN.search("already parked") and not NOT_SHOWN.search(TYPED.sub("", "`park KERNEL` frees"))

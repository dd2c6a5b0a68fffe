#!/usr/bin/env python3
"""Write shim/src/entry_points.h, the shim's one list of CUDA driver entry points, and check that it is right.

    entry_points.py --headers DIR [--headers DIR …]
        Take new prototypes from cuda.h and its companions into signatures.tsv, then write the table. Nothing is ever
        removed: programs built years ago still look old names up.
    entry_points.py
        Write the table from signatures.tsv and classes.rules.
    entry_points.py --check [--headers DIR …]
        Write nothing; fail if the committed table is not what would be written, or if a header declares something
        that signatures.tsv lacks.

For the developer who meets a new CUDA version, and (`--check` without headers) for the tests. Python's standard
library only; `--headers` also needs a C compiler.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import prototypes

TOOLS = Path(__file__).resolve().parent
SIGNATURES = TOOLS / "signatures.tsv"
RULES = TOOLS / "classes.rules"
PREAMBLE = TOOLS / "entry_points.preamble"
TABLE = TOOLS.parent / "src" / "entry_points.h"

CLASSES = ("HOST", "QUERY", "FREE", "LAUNCH", "COPY", "ALLOC", "SYNC", "MODULE")
MAX_INT_WORDS = 11  # of the INT thunks, shim/src/thunks.c
MAX_WIDE_WORDS = 24  # stack words that the WIDE thunks copy: enough if every argument were on the stack

_SUFFIXES = re.compile(r"(_v\d+)?(_pt[sd][zs])?$")
_CODE = re.compile(r"[csilpfd]|\{\d+\}")


class TableError(Exception):
    """The table cannot be made, or the committed one is wrong; the message says what to do."""


@dataclass(frozen=True)
class Rule:
    """One line of classes.rules."""

    line: int
    class_name: str
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class EntryPoint:
    """One row of the table. `words` counts eight-byte argument words, those of by-value structs included."""

    name: str
    class_name: str
    shape: str
    words: int

    def row(self) -> str:
        return f"ENTRY({self.name}, {self.class_name}, {self.shape}, {self.words})"


def base_name(name: str) -> str:
    """Return what cuGetProcAddress calls this entry point: without version and per-thread-stream suffix."""
    return _SUFFIXES.sub("", name)


def codes(signature: str) -> list[str]:
    """Return a signature's codes, one per argument; TableError if it holds anything else."""
    found = _CODE.findall(signature)
    if "".join(found) != signature:
        raise TableError(f"'{signature}' is not a signature; prototypes.py tells the codes")
    return found


def word_count(signature: str) -> int:
    """Return how many eight-byte words the arguments fill when every by-value struct is copied whole."""
    return sum((int(code[1:-1]) + 7) // 8 if code[0] == "{" else 1 for code in codes(signature))


def needs_wide(signature: str) -> bool:
    """Return whether eleven integer words would not carry every argument."""
    return word_count(signature) > MAX_INT_WORDS or any(code[0] in "fd{" for code in codes(signature))


def read_signatures(path: Path = SIGNATURES) -> dict[str, str]:
    """Return name → signature from signatures.tsv."""
    signatures = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, signature = line.partition("\t")
            signatures[name] = signature
    return signatures


def write_signatures(signatures: dict[str, str]) -> None:
    """Write signatures.tsv."""
    header = "# Arguments of every CUDA driver entry point; prototypes.py tells the codes. Written by entry_points.py.\n"
    SIGNATURES.write_text(header + "".join(f"{name}\t{signatures[name]}\n" for name in sorted(signatures)))


def read_rules(path: Path = RULES) -> list[Rule]:
    """Return the rules in order; TableError names the line that is not one."""
    rules = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        class_name, _, pattern = text.partition(" ")
        if class_name not in CLASSES:
            raise TableError(f"{path.name}:{number}: no class {class_name}")
        rules.append(Rule(number, class_name, re.compile(pattern.strip())))
    return rules


def classify(names: set[str], rules: list[Rule]) -> dict[str, str]:
    """Return base name → class. TableError for a name that no rule matches, and for a rule that decides nothing."""
    classes, used = {}, set()
    for name in sorted(names):
        rule = next((rule for rule in rules if rule.pattern.fullmatch(name)), None)
        if rule is None:
            raise TableError(f"{RULES.name}: no rule for {name}: does it wait at a closed gate?")
        used.add(rule)
        classes[name] = rule.class_name
    idle = [f"{RULES.name}:{rule.line}: decides nothing" for rule in rules if rule not in used]
    if idle:
        raise TableError("\n".join(idle))
    return classes


def make_table(signatures: dict[str, str], rules: list[Rule]) -> list[EntryPoint]:
    """Return every entry point in strcmp order.

    A base name stands for whichever version the driver picks for the caller, so its row is wide enough for all of them.
    """
    versions: dict[str, list[str]] = {}
    for name, signature in signatures.items():
        versions.setdefault(base_name(name), []).append(signature)
    classes = classify(set(versions), rules)
    table = []
    for name in sorted(signatures.keys() | versions.keys()):
        forms = versions.get(name) or [signatures[name]]
        shape = "WIDE" if any(needs_wide(form) for form in forms) else "INT"
        words = max(word_count(form) for form in forms)
        if words > MAX_WIDE_WORDS:
            raise TableError(f"{name} has {words} argument words, more than the WIDE thunks carry")
        table.append(EntryPoint(name, classes[base_name(name)], shape, words))
    return table


def render(table: list[EntryPoint]) -> str:
    """Return the text of entry_points.h."""
    return PREAMBLE.read_text() + "\n" + "".join(f"{entry.row()}\n" for entry in table) + "\n#undef ENTRY\n"


def with_headers(signatures: dict[str, str], folders: list[Path], compiler: str) -> dict[str, str]:
    """Return the signatures with those that the headers declare added."""
    pairs = list(signatures.items())
    for folder in folders:
        pairs += prototypes.read_signatures(folder, compiler).items()
    return prototypes.merge_signatures(pairs)


def check(signatures: dict[str, str], text: str) -> None:
    """TableError when what is committed is not what the signatures and rules give."""
    missing = sorted(signatures.keys() - read_signatures().keys())
    if missing:
        raise TableError(
            f"{SIGNATURES.name} lacks {', '.join(missing)}: run entry_points.py --headers and review"
        )
    if TABLE.read_text() != text:
        raise TableError(
            f"{TABLE.name} is not what {SIGNATURES.name} and {RULES.name} give: run entry_points.py"
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--headers", action="append", default=[], type=Path, metavar="DIR", help="folder with cuda.h"
    )
    parser.add_argument("--check", action="store_true", help="write nothing, fail if something would change")
    parser.add_argument("--compiler", default="cc", help="C compiler that reads the headers (default: cc)")
    options = parser.parse_args(arguments)
    try:
        known = read_signatures() if SIGNATURES.exists() else {}
        signatures = with_headers(known, options.headers, options.compiler)
        text = render(make_table(signatures, read_rules()))
        if options.check:
            check(signatures, text)
        else:
            write_signatures(signatures)
            TABLE.write_text(text)
    except (TableError, prototypes.PrototypeError) as error:
        print(f"entry_points.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

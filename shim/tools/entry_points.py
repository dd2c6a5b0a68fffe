#!/usr/bin/env python3
"""Write driver/entry_points.h, the shim's one list of CUDA driver entry points, and refuse one that cannot be right.

    entry_points.py --headers DIR [--headers DIR …]
        Take new prototypes from cuda.h and its companions into signatures.tsv. Nothing is ever removed:
        programs built years ago still look old names up.
    entry_points.py FILE
        Write the table from signatures.tsv and entry_points.rules. The shim's Makefile does so.

Needs nothing but Python; `--headers` also needs a C compiler.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from prototypes import Prototype, PrototypeError, base_name, read_prototypes
from rules import TRAITS, HookRow, RuleBook, TableError, read_rules

TOOLS = Path(__file__).resolve().parent
SIGNATURES = TOOLS / "signatures.tsv"
PREAMBLE = TOOLS / "entry_points.preamble"

MAX_INT_WORDS = 11  # of the INT thunks, shim/src/hooks/call_thunks.c
MAX_WIDE_WORDS = 24  # stack words that the WIDE thunks copy: enough if every argument were on the stack

_CODE = re.compile(r"[csilpfdaAhH]|\{\d+\}")


@dataclass(frozen=True)
class EntryPoint:
    """One row of the table. `words` counts eight-byte argument words, those of by-value structs included."""

    name: str
    class_name: str
    shape: str
    words: int
    traits: frozenset[str]

    def row(self) -> str:
        said = (f"TRAIT_{trait.upper().replace('-', '_')}" for trait in TRAITS if trait in self.traits)
        return f"ENTRY({self.name}, {self.class_name}, {self.shape}, {self.words}, {' | '.join(said) or 0})"


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


def read_known(path: Path = SIGNATURES) -> dict[str, Prototype]:
    """Return name → prototype from signatures.tsv; nothing when there is none yet."""
    known = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        if line and not line.startswith("#"):
            name, since, signature = line.split("\t")
            known[name] = Prototype(name, signature, int(since))
    return known


def write_known(known: dict[str, Prototype]) -> None:
    """Write signatures.tsv."""
    lines = [
        "# CUDA driver entry points: name, driver version since which its base name means it, arguments.",
        "# prototypes.py tells the codes. Written by entry_points.py; nothing is ever removed.",
        *(f"{name}\t{known[name].since}\t{known[name].signature}" for name in sorted(known)),
    ]
    SIGNATURES.write_text("\n".join(lines) + "\n")


def make_table(known: dict[str, Prototype], rules: RuleBook) -> list[EntryPoint]:
    """Return every entry point in strcmp order.

    A base name stands for whichever version the driver picks for the caller, so its row is wide enough for
    all.
    """
    versions: dict[str, list[str]] = {}
    for name, prototype in known.items():
        versions.setdefault(base_name(name), []).append(prototype.signature)
    table = []
    for name in sorted(known.keys() | versions.keys()):
        signatures = versions.get(name) or [known[name].signature]
        shape = "WIDE" if any(needs_wide(signature) for signature in signatures) else "INT"
        words = max(word_count(signature) for signature in signatures)
        if words > MAX_WIDE_WORDS:
            raise TableError(f"{name} has {words} argument words, more than the WIDE thunks carry")
        base = base_name(name)
        table.append(EntryPoint(name, rules.classes[base], shape, words, rules.traits[base]))
    return table


def render(table: list[EntryPoint], hooks: list[HookRow]) -> str:
    """Return the text of entry_points.h: one section for each macro that an includer may define."""
    sections = {"ENTRY": [entry.row() for entry in table]}
    for row in hooks:
        macro = f"{row.kind.upper()}_ROW"
        sections.setdefault(macro, []).append(f'{macro}({row.function}, "{row.name}", {row.version})')
    text = [
        f"#ifdef {macro}\n{chr(10).join(rows)}\n#undef {macro}\n#endif\n" for macro, rows in sections.items()
    ]
    return "\n".join([PREAMBLE.read_text(), *text])


def with_headers(known: dict[str, Prototype], folders: list[Path], compiler: str) -> dict[str, Prototype]:
    """Return the prototypes with those of the headers added; TableError where two contradict each other."""
    known = dict(known)
    for folder in folders:
        for name, prototype in read_prototypes(folder, compiler).items():
            if known.setdefault(name, prototype) != prototype:
                raise TableError(f"{folder} declares {prototype}, but so far it was {known[name]}")
    return known


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--headers", action="append", default=[], type=Path, metavar="DIR", help="folder with cuda.h"
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="where the table is written")
    parser.add_argument("--compiler", default="cc", help="C compiler that reads the headers (default: cc)")
    options = parser.parse_args(arguments)
    try:
        known = with_headers(read_known(), options.headers, options.compiler)
        rules = RuleBook(known, read_rules())
        text = render(make_table(known, rules), rules.hooks)
        if options.headers:
            write_known(known)
        if options.file:
            options.file.write_text(text)
    except (TableError, PrototypeError) as error:
        print(f"entry_points.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

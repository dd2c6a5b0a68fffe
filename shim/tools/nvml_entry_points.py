#!/usr/bin/env python3
"""Write nvml_entry_points.txt, the names under which programs are linked to NVML.

    nvml_entry_points.py --headers NVML_H [NVML_H …]
        Take what these headers declare into the table. Nothing is ever removed: programs built years ago
        still ask for old names.

Run it for a new NVML. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

TABLE = Path(__file__).resolve().with_suffix(".txt")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
PROTOTYPE = re.compile(r"\bnvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(([^)]*)\)\s*;")
ROW = re.compile(r"^(nvml\w+)$", re.MULTILINE)
MAX_WORDS = 11  # what call_signatures.h carries as INT

PREAMBLE = """\
# NVML's functions: all that nvml.h of CUDA 12.9 or 13.5 declares and that return an nvmlReturn_t. They take integers
# and pointers alone, {words} at most (call_signatures.h: INT). Written by nvml_entry_points.py.
"""


class HeaderError(Exception):
    """A header declares what the shim's wrappers cannot carry."""


def declared(header: str) -> dict[str, int]:
    """The functions that a header declares, with their numbers of arguments."""
    found = {}
    for name, arguments in PROTOTYPE.findall(COMMENT.sub("", header)):
        listed = [] if arguments.strip() in ("", "void") else arguments.split(",")
        if len(listed) > MAX_WORDS or re.search(r"\b(float|double)\b(?![^,]*\*)", arguments):
            raise HeaderError(f"{name} takes what no INT wrapper carries: {arguments}")
        found[name] = len(listed)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--headers", nargs="+", type=Path, required=True)
    arguments = parser.parse_args()
    names = set(ROW.findall(TABLE.read_text())) if TABLE.exists() else set()
    words = 0
    for path in arguments.headers:
        functions = declared(path.read_text())
        if not functions:
            raise HeaderError(f"{path} declares no function of NVML's")
        names |= set(functions)
        words = max(words, *functions.values())
    TABLE.write_text(PREAMBLE.format(words=words) + "".join(f"{name}\n" for name in sorted(names)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

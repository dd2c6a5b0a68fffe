"""The newest GLIBC symbol version that a library asks for; `python symbol_floor.py LIBRARY…` checks it.

The wheel may be called manylinux_2_17 only if no library asks for more than GLIBC_2.17.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

FLOOR = (2, 17)
NEEDED = re.compile(r"\bGLIBC_(\d+(?:\.\d+)+)\b")


def newest_glibc(library: Path) -> tuple[int, ...]:
    """The highest version among the undefined symbols, (0,) if there is none; objdump reads any machine's."""
    objdump = shutil.which("objdump") or "objdump"
    table = subprocess.run([objdump, "-T", str(library)], check=True, capture_output=True, text=True).stdout
    undefined = [line for line in table.splitlines() if "*UND*" in line]
    versions = [found.group(1) for line in undefined if (found := NEEDED.search(line))]
    return max((tuple(map(int, version.split("."))) for version in versions), default=(0,))


def main(libraries: list[str]) -> int:
    """0 if none of the libraries asks for more than the floor."""
    worst = 0
    for library in libraries:
        newest = newest_glibc(Path(library))
        above = newest > FLOOR
        print(f"{library}: GLIBC_{'.'.join(map(str, newest))}{' is above the floor' if above else ''}")
        worst |= above
    return int(worst)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

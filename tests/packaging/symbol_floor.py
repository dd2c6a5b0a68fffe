"""The newest GLIBC symbol version that a library or program asks for; `python symbol_floor.py FILE|WHEEL…` checks it.

A wheel may be called manylinux_2_17 only if nothing native in it asks for more than GLIBC_2.17.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FLOOR = (2, 17)
ELF = b"\x7fELF"
NEEDED = re.compile(r"\bGLIBC_(\d+(?:\.\d+)+)\b")


def newest_glibc(library: Path) -> tuple[int, ...]:
    """The highest version among the undefined symbols, (0,) if there is none; objdump reads any machine's."""
    objdump = shutil.which("objdump") or "objdump"
    table = subprocess.run([objdump, "-T", str(library)], check=True, capture_output=True, text=True).stdout
    undefined = [line for line in table.splitlines() if "*UND*" in line]
    versions = [found.group(1) for line in undefined if (found := NEEDED.search(line))]
    return max((tuple(map(int, version.split("."))) for version in versions), default=(0,))


def libraries_of(path: Path, folder: Path) -> list[Path]:
    """A library or program itself, or those that a wheel carries, unpacked into `folder`."""
    if path.suffix != ".whl":
        return [path]
    with zipfile.ZipFile(path) as wheel:
        native = [name for name in wheel.namelist() if wheel.read(name).startswith(ELF)]
        return [Path(wheel.extract(name, folder)) for name in native]


def main(paths: list[str]) -> int:
    """0 if none of the libraries asks for more than the floor."""
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        for library in [one for path in paths for one in libraries_of(Path(path), Path(folder))]:
            newest = newest_glibc(library)
            above = newest > FLOOR
            version = ".".join(map(str, newest))
            print(f"{library.name}: GLIBC_{version}{' is above the floor' if above else ''}")
            worst |= above
    return int(worst)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

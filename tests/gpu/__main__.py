"""Run one of the scripts beside this file: `python tests/gpu NAME …`; without a name, list them.

They share modules across folders, and some start themselves again.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = [HERE / name for name in ("frameworks", "sharing", "driver")]


def main() -> int:
    """Run the script that the command line names; its exit status."""
    sys.path += map(str, [*FOLDERS, HERE.parent])
    scripts = {path.stem: path for folder in [HERE, *FOLDERS] for path in sorted(folder.glob("*.py"))}
    runnable = {name: path for name, path in scripts.items() if "\nif __name__ ==" in path.read_text()}
    del runnable[Path(__file__).stem]
    if len(sys.argv) < 2 or sys.argv[1] not in runnable:
        print("python tests/gpu NAME, where NAME is one of:", ", ".join(sorted(runnable)), file=sys.stderr)
        return 2
    del sys.argv[0]
    runpy.run_path(str(runnable[sys.argv[0]]), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())

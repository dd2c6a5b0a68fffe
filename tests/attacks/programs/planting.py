"""A folder with a module of every name that a program of ours may import; each writes down which user runs it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from attacking import goes_on, under_way

THEIRS = {"jupyter_affinode", "jupyter_client", "jupyter_core", "tornado", "traitlets", "usercustomize"}
PLANTED = """import os, sys
with open({trace!r}, 'a') as file:
    print(os.getuid(), __name__, sys.orig_argv, file=file)
"""


def main() -> None:
    """Make it, and wait for a program that is started in it."""
    folder = Path(tempfile.mkdtemp(prefix="planted-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        trace = folder / "trace"
        trace.touch()
        trace.chmod(0o666)
        for name in THEIRS | sys.stdlib_module_names:
            (folder / f"{name}.py").write_text(PLANTED.format(trace=str(trace)))
        under_way(folder=str(folder), trace=str(trace))
        while goes_on(0.1):
            pass
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""Commands that start a Python of our own without code from the caller's current folder.

`python -m` and `python -c` look there first for whatever is imported, and others may be able to write to it.
"""

from __future__ import annotations

import sys

SAFE_PATH = sys.version_info >= (3, 11)  # Python knows the option -P
FORGET_FOLDER = "import sys; sys.path[:] = filter(None, sys.path)"
RUN_MODULE = f"{FORGET_FOLDER}; import runpy; runpy.run_module(sys.argv.pop(1), None, '__main__', True)"


def module_command(module: str, *arguments: str, has_safe_path: bool = SAFE_PATH) -> list[str]:
    """Return the command that runs a module as `python -m` does; PYTHONPATH and the user's packages count."""
    if has_safe_path:
        return [sys.executable, "-P", "-m", module, *arguments]
    return [sys.executable, "-c", RUN_MODULE, module, *arguments]


def code_command(code: str) -> list[str]:
    """Return the command that runs a piece of code as `python -c` does."""
    return [sys.executable, "-c", f"{FORGET_FOLDER}\n{code}"]

"""`python -m jupyter_affinode.slurm VERB FOLDER`: what the scripts of a site call; see `files.py`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from . import hooks

# As the controller's unit has it, for one that is started here.
CONTROLLER = {"JUPYTER_CONFIG_DIR": "/etc/affinode", "JUPYTER_PLATFORM_DIRS": "0"}


def main(arguments: list[str]) -> int:
    """Do what a script is for; always return 0."""
    verb, folder = arguments[0], Path(arguments[1])
    try:
        if verb == "task-prolog":
            hooks.task_prolog(folder)
        else:
            os.umask(0o022)
            for name, value in CONTROLLER.items():
                os.environ.setdefault(name, value)
            {
                "prolog": lambda: hooks.prolog(folder),
                "epilog": hooks.epilog,
                "health-check": hooks.see_to_controller,
            }[verb]()
    except Exception:  # Slurm drains a node, or ends a job, whose script fails
        traceback.print_exc()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

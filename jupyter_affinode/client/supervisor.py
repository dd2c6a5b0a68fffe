"""`python -m jupyter_affinode.client.supervisor MODULE …`: runs a user's controller or keeper, and starts it again when
it was killed.

Front ends without a server of ours, and kernels that no server has, have no other process that would. It imports next
to nothing, since it lives as long as what it runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from .. import environment
from ..python_command import module_command

CONTROLLER = "jupyter_affinode.node"
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
STEADY_S = 10.0  # a process that lived for that long was not killed by what it found at its start
MOST_FAILURES = 10
START_LASTS_S = 60.0  # at most, on a machine with other work
LOOK_EVERY_S = 0.05
REQUESTS_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervise(module: str, arguments: list[str], announced: Path | None = None) -> int:
    """Run a module, one process after the other, until one ends by itself or on request; return its status.

    `announced`: the socket for which each start is announced (`announced_start`), until a process listens there.
    """
    failures, pause_s = 0, 0.0
    while True:
        with announced_start(announced) if announced is not None else contextlib.nullcontext():
            time.sleep(pause_s)
            began = time.monotonic()
            child = subprocess.Popen(module_command(module, *arguments), start_new_session=True)
            _pass_requests_on(child)
            if announced is not None:
                while child.poll() is None and not environment.listens(announced) and not _is_late(began):
                    time.sleep(LOOK_EVERY_S)
        status = child.wait()
        failures = failures + 1 if time.monotonic() - began < STEADY_S else 0
        if status >= 0 or -status in REQUESTS_TO_END or failures > MOST_FAILURES:
            return status if status >= 0 else 128 - status
        for request in REQUESTS_TO_END:
            signal.signal(request, signal.SIG_DFL)
        print(
            f"{module} was killed by signal {-status}, and is started again",
            file=sys.stderr,
            flush=True,
        )
        pause_s = min(FIRST_PAUSE_S * 2**failures, LONGEST_PAUSE_S)


@contextlib.contextmanager
def announced_start(path: Path) -> Iterator[None]:
    """Show processes that have met no controller that one is being started for a socket: they wait for it."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # they do not wait
            descriptor = os.open(path.with_name(environment.START_LOCK_NAME), environment.LOCK_FLAGS, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def _pass_requests_on(child: subprocess.Popen[bytes]) -> None:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    for request in REQUESTS_TO_END:
        signal.signal(request, pass_on)


def _is_late(began: float) -> bool:
    return time.monotonic() - began > START_LASTS_S


def main() -> int:
    """Run what the command line names."""
    module, *arguments = sys.argv[1:]
    announced = Path(os.environ[environment.SOCKET]) if module == CONTROLLER else None
    return supervise(module, arguments, announced)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m jupyter_affinode.client.supervisor MODULE …`: runs a user's controller or keeper, and starts it again when
it was killed.

Front ends without a server of ours, and kernels that no server has, have no other process that would. It imports next
to nothing, since it lives as long as what it runs.

A controller ends on request. A keeper does so only with nothing in its hands: what ends all of a unit's or a job's
processes sends SIGTERM to supervisor and keeper alike, and kernels may still need both.
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

CONTROLLER, KEEPER = "jupyter_affinode.node", "jupyter_affinode.keeping.keeper"
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
STEADY_S = 10.0  # a process that lived for that long was not killed by what it found at its start
MOST_FAILURES = 10
START_LASTS_S = 60.0  # at most, on a machine with other work
LOOK_EVERY_S = 0.05
REQUESTS_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Requests:
    """Requests to end, which go to the process that runs."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None

    def follow(self, child: subprocess.Popen[bytes]) -> None:
        """Pass requests on to a process that was just started."""
        self.child = child
        for request in REQUESTS_TO_END:
            signal.signal(request, self._pass_on)

    def are_met(self, status: int) -> bool:
        """Return whether a process that ended with this status is the last. Until the next one a request ends this."""
        self.child = None
        if status >= 0 or -status in REQUESTS_TO_END:
            return True
        for request in REQUESTS_TO_END:
            signal.signal(request, signal.SIG_DFL)
        return False

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self.child is not None:
            self.child.send_signal(number)


class RequestsToKeeper(Requests):
    """What a keeper is told: SIGTERM, which it heeds when it can. One that comes while it starts would kill it."""

    def __init__(self) -> None:
        super().__init__()
        self._is_untold = False  # a SIGTERM came, and no keeper has heeded one since
        for request in REQUESTS_TO_END:
            signal.signal(request, self._pass_on)

    def follow(self, child: subprocess.Popen[bytes]) -> None:
        """Pass requests on to a keeper that was just started, also one that the keeper before did not live to hear."""
        self.child = child
        self._tell()

    def are_met(self, status: int) -> bool:
        """Return whether a keeper that ended with this status is the last: it had nothing to keep."""
        self.child = None
        return status == 0

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self._is_untold = True
            self._tell()
        elif number == signal.SIGINT:
            super()._pass_on(number, frame)
        # SIGHUP is left out: a login session that ends sends SIGTERM, too

    def _tell(self) -> None:
        """Send SIGTERM once the keeper has a handler for it; leave it to the next one if this one ends before."""
        while self._is_untold and self.child is not None and _lives(self.child.pid):
            if _catches(self.child.pid, signal.SIGTERM):
                self._is_untold = False
                self.child.send_signal(signal.SIGTERM)
            else:
                time.sleep(LOOK_EVERY_S)


def supervise(module: str, arguments: list[str], announced: Path | None = None) -> int:
    """Run a module, one process after the other, until one ends by itself or on request; return its status.

    `announced`: the socket for which each start is announced (`announced_start`), until a process listens there.
    """
    failures, pause_s = 0, 0.0
    requests = RequestsToKeeper() if module == KEEPER else Requests()
    while True:
        with announced_start(announced) if announced is not None else contextlib.nullcontext():
            time.sleep(pause_s)
            began = time.monotonic()
            child = subprocess.Popen(module_command(module, *arguments), start_new_session=True)
            requests.follow(child)
            if announced is not None:
                while child.poll() is None and not environment.listens(announced) and not _is_late(began):
                    time.sleep(LOOK_EVERY_S)
        status = child.wait()
        failures = failures + 1 if time.monotonic() - began < STEADY_S else 0
        if requests.are_met(status) or failures > MOST_FAILURES:
            return status if status >= 0 else 128 - status
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        print(f"{module} {how}, and is started again", file=sys.stderr, flush=True)
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


def _lives(pid: int) -> bool:
    """Return whether a child of this process lives; one that waits to be reaped does not."""
    return _status(pid, "State")[:1] not in ("", "Z", "X")


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    return bool(int(_status(pid, "SigCgt") or "0", 16) >> (number - 1) & 1)


def _status(pid: int, field: str) -> str:
    """Return a field of /proc/PID/status, see proc(5); "" for a process that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return line.partition(":")[2].strip()
    return ""


def _is_late(began: float) -> bool:
    return time.monotonic() - began > START_LASTS_S


def main() -> int:
    """Run what the command line names."""
    module, *arguments = sys.argv[1:]
    announced = Path(os.environ[environment.SOCKET]) if module == CONTROLLER else None
    return supervise(module, arguments, announced)


if __name__ == "__main__":
    sys.exit(main())

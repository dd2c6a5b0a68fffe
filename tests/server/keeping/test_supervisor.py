"""What starts a keeper again, and signals that reach it: a real supervisor of a small program in the keeper's place."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from waiting import wait_until

# Each start is a line with its pid. What it does is in a file: "defenceless" stands for a keeper that starts.
CHILD = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def heed(*_):
    note("SIGTERM")
    if (folder / "may-end").exists():
        os._exit(0)
def note(words):
    with (folder / "said").open("a") as said:
        said.write(f"{words} {os.getpid()}\\n")
note("start")
while (folder / "defenceless").exists():
    time.sleep(0.01)
signal.signal(signal.SIGTERM, heed)
signal.signal(signal.SIGINT, signal.SIG_IGN)
note("ready")
if (folder / "status").exists():
    (folder / "status").unlink()
    os._exit(3)
while True:
    time.sleep(600)
"""
BEGIN = "import sys; from jupyter_affinode.client import supervisor; supervisor.KEEPER = 'child';" + (
    "sys.argv[1:] = ['child', sys.argv[1]]; sys.exit(supervisor.main())"
)


class Supervised:
    """A supervisor and its child."""

    def __init__(self, machine):
        self.folder: Path = machine.folder / "supervised"
        self.folder.mkdir()
        (self.folder / "child.py").write_text(CHILD)
        self._machine = machine

    def start(self) -> None:
        env = {**self._machine.environment, "PYTHONPATH": str(self.folder)}
        self.process = self._machine.start(sys.executable, "-c", BEGIN, str(self.folder), env=env)

    def said(self, what: str) -> list[int]:
        """The pids of the children that have said something, one for each time."""
        path = self.folder / "said"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(what)]

    def wait_for(self, what: str, times: int) -> int:
        """The child that says it for the so-manieth time."""
        return wait_until(lambda: self.said(what)[times - 1 : times])[0]


@pytest.fixture
def supervised(machine):
    made = Supervised(machine)
    yield made
    made.process.kill()
    for pid in set(made.said("start")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_keeper_that_goes_on_after_sigterm_is_started_again_when_it_is_killed(supervised):
    supervised.start()
    first = supervised.wait_for("ready", 1)
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.wait_for("SIGTERM", 1) == first
    supervised.process.send_signal(signal.SIGHUP)  # as at the end of a login session
    os.kill(first, signal.SIGKILL)
    second = supervised.wait_for("ready", 2)
    (supervised.folder / "may-end").touch()
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.wait_for("SIGTERM", 2) == second
    assert supervised.process.wait(60) == 0


def test_sigterm_to_all_while_a_keeper_starts_reaches_the_next_one(supervised):
    (supervised.folder / "defenceless").touch()
    supervised.start()
    first = supervised.wait_for("start", 1)
    supervised.process.send_signal(signal.SIGTERM)
    os.kill(first, signal.SIGTERM)
    second = supervised.wait_for("start", 2)
    assert second != first
    (supervised.folder / "defenceless").unlink()
    assert supervised.wait_for("SIGTERM", 1) == second


def test_sigterm_waits_for_a_keeper_that_starts(supervised):
    (supervised.folder / "defenceless").touch()
    supervised.start()
    first = supervised.wait_for("start", 1)
    supervised.process.send_signal(signal.SIGTERM)
    supervised.process.send_signal(signal.SIGTERM)
    (supervised.folder / "defenceless").unlink()
    assert supervised.wait_for("SIGTERM", 1) == first
    assert supervised.said("start") == [first]


def test_a_keeper_that_fails_is_started_again(supervised):
    (supervised.folder / "status").touch()
    supervised.start()
    supervised.wait_for("ready", 2)
    assert supervised.process.poll() is None

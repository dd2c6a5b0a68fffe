"""A controller of its own for each test, and fake shims that connect to it."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from fake_shim import FakeShim
from live_machine import Machine
from model_node import Clock
from people import Person, needs_root, open_to_everyone
from thread_controller import ThreadController
from waiting import wait_until

from jupyter_affinode.node import controller
from jupyter_affinode.node.api import clients
from jupyter_affinode.node.controller import Controller
from jupyter_affinode.node.link import listener
from jupyter_affinode.node.state import registry, servers
from jupyter_affinode.node.system import lot_memory, peers

STOPPABLE = Path(__file__).parent / "support" / "stoppable_process.py"


@pytest.fixture
def node(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    """`node(park_when="idle")`: the machine's controller with these settings, on a thread of this process.

    It is `node.running[-1]`, and `node.stop()` ends it. What a test changes on the GPU it sees soon.
    """
    monkeypatch.setattr(controller, "NVML_EVERY_S", 0.15)
    running: list[ThreadController] = []

    def start(*, nvml: Any = None, history: Any = None, **settings: Any) -> Machine:
        running.append(ThreadController(machine.socket, nvml, history, **settings))
        return machine

    start.running, start.stop = running, lambda: running.pop().stop()  # type: ignore[attr-defined]
    yield start
    while running:
        start.stop()  # type: ignore[attr-defined]
    log = machine.controller_log()
    print(log)  # pytest shows it for a test that failed
    assert "a pass failed" not in log, log
    assert "Traceback" not in log, log


@pytest.fixture
def connect(machine: Machine) -> Iterator[Callable[..., FakeShim]]:
    """`connect(FakeShim, "kernel-1", resident=…)`: a process of a kernel, connected to the machine's controller."""
    made: list[FakeShim] = []

    def of(kind: type[FakeShim], *arguments: Any, **options: Any) -> FakeShim:
        made.append(kind(machine.socket.parent, *arguments, **options))
        machine.node()  # answered after what the controller was doing, which welcomes a shim before it takes it in
        return made[-1]

    yield of
    for each in made:
        each.close()


@pytest.fixture
def shim(connect: Callable[..., FakeShim]) -> Callable[..., FakeShim]:
    """`shim("kernel-1", resident=…)`."""
    return partial(connect, FakeShim)


@pytest.fixture
def stoppable(machine: Machine) -> Callable[[str], subprocess.Popen[Any]]:
    """`stoppable("k")`: a process of its own with a fake shim, known to the controller."""

    def start(kernel_id: str) -> subprocess.Popen[Any]:
        made = machine.start(sys.executable, str(STOPPABLE), str(machine.socket.parent), kernel_id)
        wait_until(lambda: machine.processes_of(kernel_id))
        return made

    return start


@pytest.fixture
def shared_machine(machine: Machine) -> Machine:
    """The machine, open to all its users; skips where this process cannot become another user."""
    needs_root()
    open_to_everyone(machine)
    return machine


@pytest.fixture
def person(machine: Machine) -> Iterator[Callable[..., Person]]:
    """`person(uid, *groups, grant=None)`: a user on the machine. The user's processes end with the test."""
    with contextlib.ExitStack() as people:

        def make(uid: int | None, *groups: int, grant: str | None = None) -> Person:
            made = Person(machine, uid, *groups, grant=grant)
            people.callback(made.close)
            return made

        yield make


@pytest.fixture
def births(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of these tests are one; each that connects is younger than the last."""
    moments = itertools.count(1000)
    monkeypatch.setattr(registry, "started_at", lambda pid, default: float(next(moments)))
    # A process that describes a kernel is a server.
    monkeypatch.setattr(servers, "os", SimpleNamespace(getpid=lambda: 0, pidfd_open=os.pidfd_open))


@pytest.fixture
def unseen_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's peers live in pid namespaces that it cannot see."""
    real = peers.peer_of
    for module in (listener, clients):
        monkeypatch.setattr(module, "peer_of", lambda connected: replace(real(connected), pid=0))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`passes(3)`: wait until controllers that are started from now on have begun and ended so many passes more."""
    one_pass, ended = Controller._pass, []

    def counted(passing: Controller) -> None:
        one_pass(passing)
        ended.append(passing)

    def wait(count: int) -> None:
        wanted = len(ended) + 1 + count  # one may be under way
        wait_until(lambda: len(ended) >= wanted, message=f"{count} passes")

    monkeypatch.setattr(Controller, "_pass", counted)
    return wait


@pytest.fixture(scope="module")
def virtual_time() -> Iterator[Clock]:
    """The clock that the controller's modules about moves read."""
    with pytest.MonkeyPatch.context() as patch:
        yield Clock.for_moves(patch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """As `virtual_time`, from its beginning for each test."""
    return Clock.for_moves(monkeypatch)


@pytest.fixture
def residency(machine: Machine) -> Callable[[str], str | None]:
    """`residency("k")`: as the API says."""

    def of(kernel_id: str) -> str | None:
        kernel = machine.kernel(kernel_id)
        return kernel and kernel["residency"]

    return of


@pytest.fixture
def ordinary_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has set aside: how many huge pages are behind a file is not shown."""
    monkeypatch.setattr(lot_memory, "free_huge_bytes", lambda: 0)

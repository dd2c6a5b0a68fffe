"""A machine whose keeper is its own, and CRIU."""

from __future__ import annotations

import contextlib

import pytest
from fetched_criu import fetched_criu
from hibernating import end_kernels, prepare
from keepers import end_keepers
from live_machine import new_machine
from live_server import JupyterServer


@contextlib.contextmanager
def with_own_keeper(machine):
    """Have the machine's keeper be its own."""
    machine.environment["AFFINODE_FOLDER"] = str(machine.folder / "own")
    yield
    end_keepers(machine)


@pytest.fixture
def keeping_machine(machine):
    """A machine whose keeper is its own."""
    with with_own_keeper(machine):
        yield machine


@pytest.fixture(scope="module")
def keeping_server():
    """A server on such a machine for a module's tests, which start it, end it and start it again."""
    with new_machine() as machine, with_own_keeper(machine):
        made = JupyterServer(machine)
        yield made
        made.stop()


@pytest.fixture(scope="session")
def criu() -> str:
    """How CRIU is called."""
    return fetched_criu()


@pytest.fixture
def unstarted(keeping_machine, criu):
    """A server whose kernels hibernate, not started; they end with it."""
    made = prepare(JupyterServer(keeping_machine), criu)
    yield made
    if made.process is not None and made.process.poll() is None:
        end_kernels(made)
        made.stop()

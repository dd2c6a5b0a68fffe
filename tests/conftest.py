"""Fixtures that every test may use: the native parts, a machine of one's own, its controller, a Jupyter
server.

A `machine` is a folder with its own sockets, simulated GPU and Jupyter folders, so that tests run side by
side and leave nothing behind: at its end every process that was started on it is killed, by its environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
if str(TESTS) not in sys.path:  # live_machine and live_server are imported by tests of every folder
    sys.path.insert(0, str(TESTS))

import waiting  # noqa: E402
from live_machine import Machine, new_machine  # noqa: E402
from live_server import JupyterServer  # noqa: E402

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell. What is ignored stays so in programs that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytest_jupyter.jupyter_server"]

with contextlib.suppress(ImportError):  # the oldest promised releases are tested without it
    import hypothesis

    hypothesis.settings.register_profile("quick", derandomize=True)

AARCH64_COMPILER = "aarch64-linux-gnu-gcc"
# The folders whose modules take longest: one that a worker begins last is one that the others wait for.
FIRST = ("lab", "chaos", "attacks", "shim", "story", "server", "hub", "slurm", "hibernation")


gc.disable()  # what is imported and collected stays: looking for cycles in it is a tenth of the time


def pytest_collection_finish() -> None:
    """Look for cycles again, among what tests make."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Try the same random examples at each `make test`: it fails by what changed. `make test-all` draws new ones."""
    if config.getoption("markexpr") == "not long" and "hypothesis" in sys.modules:
        hypothesis.settings.load_profile("quick")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first; together with `--no-loadscope-reorder`."""
    order = {folder: place for place, folder in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.relative_to(TESTS).parts[0], len(order)))


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """Takes the place of pytest-jupyter's, which makes a server's application for each test, to clean it up."""


def _make(*arguments: str) -> None:
    """Run `make -C shim`; several pytest processes build once."""
    build = REPOSITORY / "shim" / "build"
    build.mkdir(exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "-j2", "-C", REPOSITORY / "shim", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
        )
    if made.returncode != 0:
        pytest.fail(
            f"make -C shim {' '.join(arguments)} failed:\n{made.stdout}\n{made.stderr}", pytrace=False
        )


@pytest.fixture(scope="session")
def native() -> Path:
    """The folder with the freshly built shim and simulator, also installed into the package; builds what is
    stale.
    """
    _make("install", f"DESTDIR={REPOSITORY / 'jupyter_affinode' / 'lib'}")
    return REPOSITORY / "shim" / "build"


@pytest.fixture(scope="session")
def aarch64_shim() -> Path:
    """The folder with the shim built for aarch64; skips where there is no compiler for it."""
    if shutil.which(AARCH64_COMPILER) is None:
        pytest.skip(f"no {AARCH64_COMPILER} here")
    build = REPOSITORY / "shim" / "build" / "aarch64"
    # Where arguments go and which symbols are asked for does not depend on it, and it takes a third of the time.
    _make("shim", f"CC={AARCH64_COMPILER}", f"BUILD={build}", "CFLAGS=-O0")
    return build


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine without a GPU: own sockets and Jupyter folders."""
    with new_machine() as made:
        yield made


@pytest.fixture(scope="module")
def shared_server(native: Path) -> Iterator[JupyterServer]:
    """A running server for a module's tests that leave it as they find it; on a machine without a GPU."""
    with new_machine() as made:
        server = JupyterServer(made).start()
        yield server
        server.stop()


@pytest.fixture(scope="module")
def shared_gpu_server(
    native: Path, wait_until: Callable[..., Any], request: pytest.FixtureRequest
) -> Iterator[JupyterServer]:
    """The same on a machine with a simulated GPU of 128 MiB, where a kernel is idle after a second.

    A module's `IS_PATIENT` is for its controller: see `live_machine.PATIENT`.
    """
    with new_machine() as made:
        made.simulate(memory="128MiB")
        made.environment["AFFINODE_SIM_CONTEXT"] = "8MiB"
        # A quarter of the usual margin beside a small GPU: memory that is touched is what these tests would cost.
        settings = {"idle_timeout_s": 1, "margin_bytes": 16 << 20}
        if getattr(request.module, "IS_PATIENT", False):
            given = [f"--NodeController.{name}={value}" for name, value in settings.items()]
            made.start_controller(*given, patient=True)
        server = JupyterServer(made)
        server.start(*(f"--AffinodeExtension.{name}={value}" for name, value in settings.items()))
        wait_until(lambda: server.affinode()[1]["available"])
        yield server
        server.stop()


@pytest.fixture
def gpu_machine(native: Path, machine: Machine) -> Machine:
    """A machine with one simulated GPU of 1 GiB; change it through `machine.simulate()` before anything
    starts.
    """
    machine.simulate(memory="1GiB")
    return machine


@pytest.fixture
def controller(machine: Machine) -> Machine:
    """The machine with its controller running."""
    machine.start_controller()
    return machine


@pytest.fixture
def server(machine: Machine) -> Iterator[JupyterServer]:
    """A real `jupyter server` on the machine; started by the test's first use of it, or by `start(...)`."""
    made = JupyterServer(machine)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., Any]:
    """`waiting.wait_until`, for tests."""
    return waiting.wait_until

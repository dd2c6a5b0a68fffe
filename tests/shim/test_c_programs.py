"""The C tests (tests/shim/c), each program plain under the preloaded shim, and under the sanitizers.

They spend their time waiting, so a few run at once; `make -C shim test` runs them one by one. A failure names its
seed: run it again with TEST_SEED.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

SHIM = Path(__file__).resolve().parents[2] / "shim"
FLAVOURS = ("plain", "address", "thread")
AT_ONCE = 3
TIMEOUT_S = 200  # more than any program's own deadline and what it says when that has passed

Completed = subprocess.CompletedProcess[str]


def make(*arguments: str, timeout: float = TIMEOUT_S) -> Completed:
    command = ["make", "-s", "-C", str(SHIM), *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )


PROGRAMS = make("test-list").stdout.split()


@pytest.fixture(scope="session")
def test_programs(native: Path) -> None:
    """All programs in all flavours, built."""
    with (Path(tempfile.gettempdir()) / "affinode-native-build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = make("-j2", "test-programs", timeout=600)
    assert made.returncode == 0, made.stdout


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, test_programs: None
) -> Iterator[dict[tuple[str, str], Future[Completed]]]:
    """The programs that were selected, on their way."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wanted = [
            (item.callspec.params["program"], item.callspec.params["flavour"])
            for item in request.session.items
            if getattr(item, "originalname", "") == "test_c_program"
        ]
        started = {
            (program, flavour): pool.submit(make, "test-run", f"PROGRAM={program}", f"FLAVOUR={flavour}")
            for program, flavour in wanted
        }
        yield started
        for run in started.values():
            run.cancel()


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_c_program(
    request: pytest.FixtureRequest, runs: dict[tuple[str, str], Future[Completed]], program: str, flavour: str
) -> None:
    if getattr(request.node, "execution_count", 1) > 1:  # tried once more (--reruns), and named
        ran = make("test-run", f"PROGRAM={program}", f"FLAVOUR={flavour}")
    else:
        ran = runs[program, flavour].result()
        if ran.returncode != 0:  # a second try that passes hides what the first one said
            warnings.warn(f"{program}, {flavour}: {ran.stdout[-4000:]}", stacklevel=1)
    assert ran.returncode == 0, ran.stdout
    assert "WARNING: ThreadSanitizer" not in ran.stdout, ran.stdout


def test_there_are_programs() -> None:
    assert len(PROGRAMS) > 15, "make test-list found nothing"


def test_the_message_parser_survives_a_fuzzer(test_programs: None) -> None:
    if not shutil.which("clang"):
        pytest.skip("no clang here; storm.c fuzzes without it")
    fuzzed = make("fuzz", "FUZZ_S=4")
    if "fuzzer" in fuzzed.stdout and "cannot find" in fuzzed.stdout:
        pytest.skip("clang has no fuzzer runtime here; storm.c fuzzes without it")
    assert fuzzed.returncode == 0, fuzzed.stdout

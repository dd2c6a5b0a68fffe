"""The C tests (tests/shim/c), each program plain under the preloaded shim, and under the sanitizers.

They spend their time waiting, so a few run at once. `make test` runs the quick ones beside pytest (`make -C shim
test-quick`). A failure names its seed: run it again with TEST_SEED.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

SHIM = Path(__file__).resolve().parents[2] / "shim"
AT_ONCE = 3
AT_LENGTH = bool(os.environ.get("TEST_STRIDE") or os.environ.get("TEST_ROUNDS"))
# more than any program's own deadline (support/harness/watcher.c) and what it says when that has passed
TIMEOUT_S = 2000 if AT_LENGTH else 200

Completed = subprocess.CompletedProcess[str]


def make(*arguments: str, timeout: float = TIMEOUT_S) -> Completed:
    command = ["make", "-s", "-C", str(SHIM), *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )


CASES = make("test-list").stdout.split()  # flavour/program


@pytest.fixture(scope="session")
def test_programs(request: pytest.FixtureRequest, native: Path) -> None:
    """Build the programs that were selected, in their flavours."""
    selected = " ".join(case for case in CASES if case in _selected(request))
    with (Path(tempfile.gettempdir()) / "affinode-native-build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = make("-j2", "test-programs", f"TEST_SELECTED={selected}", timeout=600)
    assert made.returncode == 0, made.stdout


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, test_programs: None) -> Iterator[dict[str, Future[Completed]]]:
    """The programs that were selected, on their way."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = {case: pool.submit(_run, case) for case in CASES if case in _selected(request)}
        yield started
        for run in started.values():
            run.cancel()


def _selected(request: pytest.FixtureRequest) -> set[str]:
    items = [item for item in request.session.items if getattr(item, "originalname", "") == "test_c_program"]
    return {item.callspec.params["case"] for item in items}


def _run(case: str) -> Completed:
    flavour, program = case.split("/")
    return make("test-run", f"PROGRAM={program}", f"FLAVOUR={flavour}")


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S + 100)
@pytest.mark.parametrize("case", CASES)
def test_c_program(runs: dict[str, Future[Completed]], case: str) -> None:
    ran = runs[case].result()
    assert ran.returncode == 0, ran.stdout
    assert "WARNING: ThreadSanitizer" not in ran.stdout, ran.stdout


def test_there_are_programs() -> None:
    assert len(CASES) > 45, "make test-list found nothing"


def test_the_message_parser_survives_a_fuzzer(test_programs: None) -> None:
    if not shutil.which("clang"):
        pytest.skip("no clang here; storm.c fuzzes without it")
    fuzzed = make("fuzz", "FUZZ_S=4")
    if "fuzzer" in fuzzed.stdout and "cannot find" in fuzzed.stdout:
        pytest.skip("clang has no fuzzer runtime here; storm.c fuzzes without it")
    assert fuzzed.returncode == 0, fuzzed.stdout

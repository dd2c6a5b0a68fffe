"""A shim that was built without context depth parks at memory depth, and says so where more is asked of it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from shim_machine import Machine

SHIM = Path(__file__).resolve().parents[2] / "shim"
BUILD = SHIM / "build" / "memory-depth"
# Both builds of the whole shim: a minute of CPU.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def make(*arguments: str) -> str:
    command = ["make", "-s", "-j2", "-C", str(SHIM), "CONTEXT_DEPTH=0", *arguments]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert made.returncode == 0, made.stdout
    return made.stdout


@pytest.fixture(scope="module")
def library() -> Path:
    make("shim", "sim")
    return BUILD / "libaffinode.so"


def test_it_says_what_it_lacks(library: Path, native: Path) -> None:
    assert ctypes.CDLL(str(library)).affinode_has_context_depth() == 0
    assert ctypes.CDLL(str(native / "libaffinode.so")).affinode_has_context_depth() == 1


def test_it_holds_nothing_of_context_depth(library: Path) -> None:
    assert b"cuCheckpointProcessRestore\0" in library.read_bytes(), (
        "the driver's name, for programs that call it"
    )
    symbols = subprocess.run(["nm", str(library)], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in symbols.splitlines()}
    assert not {name for name in names if name.startswith(("nvml", "shadow_", "books_below", "gpu_memory_"))}
    assert not (BUILD / "affinode-gpu-memory").exists()


def test_asked_for_context_depth_it_says_what_to_do(library: Path, gpu: Machine) -> None:
    program = gpu.compile("small.c", "-Wl,--no-as-needed", f"-L{gpu.driver}", "-l:libcuda.so.1", name="small")
    environment = {**gpu.environment, "LD_PRELOAD": str(library), "AFFINODE_DEPTH": "context"}
    ran = subprocess.run([program], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "0 wrong\n"), ran.stderr
    assert "built without context depth" in ran.stderr
    assert "make CONTEXT_DEPTH=1" in ran.stderr
    del environment["AFFINODE_DEPTH"]
    ran = subprocess.run([program], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("program", ["queries", "prepared", "migration", "stopped_lock"])
def test_programs_pass_or_skip_themselves(library: Path, program: str) -> None:
    make("test-programs", f"TEST_SELECTED=plain/{program}")
    said = make("test-run", f"PROGRAM={program}", "FLAVOUR=plain")
    assert ("skipped" in said) == (program in ("migration", "stopped_lock"))

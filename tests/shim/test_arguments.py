"""Every argument of every entry point arrives through the shim as it was passed, however a program got at it.

A driver built for this writes down what it is given; a program calls each of its functions by its prototype.
Which functions and prototypes there are is in shim/tools/signatures.tsv, so no CUDA header is needed here.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "arguments"
SHIM = HERE.parents[2] / "shim"
ROUNDS = 20
ROUNDS_EMULATED = 4  # under an emulator the same takes thirty times as long
C_FLAGS = [
    "-std=gnu11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-missing-field-initializers",
    f"-I{HERE}",
]

AARCH64_CC = shutil.which("aarch64-linux-gnu-gcc")
AARCH64_RUN = shutil.which("qemu-aarch64-static")
AARCH64_ROOT = Path("/usr/aarch64-linux-gnu")


def run(command: list[str | Path], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, env=env)


def build(command: list[str | Path]) -> None:
    made = run(command)
    assert made.returncode == 0, f"{' '.join(map(str, command))}\n{made.stdout}{made.stderr}"


@dataclass(frozen=True)
class Rig:
    """The recording driver and the program that calls it, for one architecture."""

    folder: Path
    compiler: str
    emulator: list[str] = field(default_factory=list)

    def make(self) -> Rig:
        (self.folder / "lib").mkdir(parents=True)
        build([sys.executable, HERE / "generate.py", self.folder])
        driver = self.folder / "lib" / "libcuda.so.1"
        shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
        sources = [HERE / "driver.c", self.folder / "driver_entry_points.c"]
        build([self.compiler, *C_FLAGS, *shared, *sources, "-o", driver])
        sources = [HERE / "caller.c", self.folder / "caller_entry_points.c"]
        build([self.compiler, *C_FLAGS, *sources, driver, "-ldl", "-o", self.folder / "caller"])
        return self

    def call(self, how: str, preload: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the program; `how` is "shim" or "bare" (see caller.c)."""
        seed = str(random.randrange(2**32))
        variables = {"LD_LIBRARY_PATH": str(self.folder / "lib")}
        if preload:
            variables["LD_PRELOAD"] = str(preload)
        # No controller: nothing may listen at the socket.
        variables["AFFINODE_SOCKET"] = str(self.folder / "nobody" / "node.sock")
        rounds = ROUNDS_EMULATED if self.emulator else ROUNDS
        command: list[str | Path] = [self.folder / "caller", seed, str(rounds), how]
        if not self.emulator:
            clean = {name: value for name, value in os.environ.items() if not name.startswith("AFFINODE_")}
            return run(command, env={**clean, **variables})
        passed = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        return run([*self.emulator, *passed, *command])


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("arguments") / "rig", os.environ.get("CC", "cc")).make()


@pytest.fixture(scope="module")
def aarch64_rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    if not AARCH64_CC or not AARCH64_RUN or not AARCH64_ROOT.is_dir():
        pytest.skip("no aarch64 compiler and emulator here")
    emulator = [AARCH64_RUN, "-L", str(AARCH64_ROOT)]
    return Rig(tmp_path_factory.mktemp("arguments-aarch64") / "rig", AARCH64_CC, emulator).make()


@pytest.mark.long
def test_without_the_shim_every_argument_arrives(rig: Rig) -> None:
    """The rig itself is right; otherwise the tests below would say nothing about the shim."""
    called = rig.call("bare")
    assert called.returncode == 0, called.stdout + called.stderr


@pytest.mark.long
def test_one_changed_argument_is_noticed(rig: Rig) -> None:
    """The rig can fail."""
    meddler = rig.folder / "meddler.so"
    build([rig.compiler, *C_FLAGS, "-shared", "-fPIC", HERE / "meddler.c", "-ldl", "-o", meddler])
    called = rig.call("bare", meddler)
    assert called.returncode == 1
    assert "cuMemsetD8_v2(lcl) by linking" in called.stdout


@pytest.mark.long
def test_a_function_that_passes_the_gate_by_is_noticed(rig: Rig) -> None:
    """The rig can tell a shim that wraps nothing from one that wraps everything that waits."""
    called = rig.call("shim")
    assert called.returncode == 1
    assert "the gate is passed by" in called.stdout


def test_every_argument_arrives_through_the_shim(rig: Rig, native: Path) -> None:
    called = rig.call("shim", native / "libaffinode.so")
    assert called.returncode == 0, called.stdout + called.stderr


@pytest.mark.long
def test_every_argument_arrives_on_aarch64_too(aarch64_rig: Rig, aarch64_shim: Path) -> None:
    """Other registers, other by-value structs; the emulator runs the real instructions."""
    called = aarch64_rig.call("shim", aarch64_shim / "libaffinode.so")
    assert called.returncode == 0, called.stdout + called.stderr

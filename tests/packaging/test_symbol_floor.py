"""The native libraries load on any Linux of the last twelve years: no symbol newer than GLIBC_2.17."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from symbol_floor import FLOOR, libraries_of, newest_glibc

SHIM_FILES = ("libaffinode.so", "affinode-gpu-memory")
NATIVE = (*SHIM_FILES, "libaffinode-sim-cuda.so", "libaffinode-sim-nvml.so")
ELF_MACHINE_AARCH64 = 183


@pytest.mark.parametrize("library", NATIVE)
def test_what_is_native_asks_for_nothing_newer_than_the_floor(native: Path, library: str) -> None:
    assert newest_glibc(native / library) <= FLOOR


def test_the_check_looks_at_everything_native_in_a_wheel(wheel: Path, tmp_path: Path) -> None:
    assert {path.name for path in libraries_of(wheel, tmp_path)} == set(NATIVE)


def test_the_check_sees_a_newer_symbol(tmp_path: Path) -> None:
    source, library = tmp_path / "newer.c", tmp_path / "newer.so"
    source.write_text("#include <sys/random.h>\nlong newer(void *to) { return getrandom(to, 1, 0); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)  # getrandom came with 2.25
    assert newest_glibc(library) > FLOOR


@pytest.mark.long
def test_the_aarch64_shim_asks_for_nothing_newer_than_the_floor(aarch64_shim: Path) -> None:
    for name in SHIM_FILES:
        made = aarch64_shim / name
        assert int.from_bytes(made.read_bytes()[18:20], "little") == ELF_MACHINE_AARCH64
        assert newest_glibc(made) <= FLOOR

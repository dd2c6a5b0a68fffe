"""A pytest plugin for numba_suite.py: a block of GPU memory of our own beside whatever the tests hold.

numba's tests use arrays of a few KiB, which the driver keeps where they are; with 16 MiB there is something to park.
The block is made before a test if the process has a CUDA context by then, and its contents are looked at before the
next.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import types
import unittest
from typing import Any, NoReturn

import pytest

SIZE = 16 << 20
PATTERN = bytes(range(1, 252)) * (SIZE // 251 + 1)


class Ballast:
    """The block, if there is one; made again when a test has reset the device."""

    def __init__(self) -> None:
        self.driver: ctypes.CDLL | None = None
        self.pointer = ctypes.c_uint64()
        self.host = ctypes.create_string_buffer(SIZE)

    def has_context(self) -> bool:
        if self.driver is None:
            with open("/proc/self/maps") as maps:
                loaded = maps.read()
            if "libcuda.so" not in loaded and "libaffinode-sim-cuda" not in loaded:
                return False
            self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        return self.driver.cuCtxGetCurrent(ctypes.byref(context)) == 0 and bool(context.value)

    def check(self) -> str | None:
        """What is wrong with the block, or None."""
        if not self.has_context():
            return None
        assert self.driver is not None
        size = ctypes.c_size_t(SIZE)
        if self.pointer.value:
            if self.driver.cuMemcpyDtoH_v2(self.host, self.pointer, size) == 0:
                return None if self.host.raw == PATTERN[:SIZE] else "16 MiB came back other than they went"
            self.pointer = ctypes.c_uint64()  # the device was reset, or another is current
        if self.driver.cuMemAlloc_v2(ctypes.byref(self.pointer), size) == 0:
            self.driver.cuMemcpyHtoD_v2(self.pointer, PATTERN[:SIZE], size)
        else:
            self.pointer = ctypes.c_uint64()
        return None


class Absent:
    """Stands for what a missing package has: a test that uses it is skipped."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.__call__()

    def __call__(self) -> NoReturn:
        raise unittest.SkipTest("the package filecheck is not installed")


def stand_in_for_filecheck() -> None:
    """numba.cuda.testing imports it for a few tests; without it none could run."""
    names = {"matcher": "Matcher", "options": "Options", "parser": "Parser", "finput": "FInput"}
    sys.modules["filecheck"] = types.ModuleType("filecheck")
    for module, name in names.items():
        made = types.ModuleType(f"filecheck.{module}")
        setattr(made, name, Absent)
        made.pattern_for_opts = Absent  # type: ignore[attr-defined]
        sys.modules[f"filecheck.{module}"] = made


if importlib.util.find_spec("filecheck") is None:
    stand_in_for_filecheck()
ballast = Ballast()


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    """numba-cuda's test classes ask for it; it lies in a file of their repository that their wheel does not have."""
    request.cls._dump_failed_filechecks = False


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    wrong = ballast.check()
    if wrong:
        pytest.fail(f"before {item.nodeid}: {wrong}", pytrace=False)

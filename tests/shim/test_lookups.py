"""However a program gets at the driver, it does so through the shim: linked, looked up, or in a library of its own."""

from __future__ import annotations

import subprocess

import pytest
from link_peer import OK, LinkPeer, bytes_of
from shim_machine import Machine, Running
from small_programs import SMALL_BYTES, linked_to_driver, plugin, small_program

NO_DEVICE, NOT_FOUND = 100, 500


@pytest.mark.parametrize(
    "how",
    ["linked", "dlsym", "cuGetProcAddress", "plugin", "plugin by RTLD_DEFAULT", "plugin by RTLD_NEXT"],
)
def test_a_small_program_is_tracked_and_parked(gpu: Machine, how: str) -> None:
    """A plugin's driver is in no scope but its own."""
    with Running(gpu, *small_program(gpu, how)) as running:
        peer: LinkPeer = running.peer
        assert running.answer() == "0 wrong"
        for _ in range(3):
            peer.wait(lambda page: page.calls_in_flight == 0 and bytes_of(page) == (SMALL_BYTES, 0))
            assert peer.park().status == OK
            assert bytes_of(peer.page()) == (0, SMALL_BYTES)
            running.say("?")
            assert running.answer() == "0 wrong"
        peer.wait(lambda page: page.resumes == 3)  # it is counted after calls go on
        assert running.process.stdin
        running.process.stdin.close()
        assert running.process.wait(60) == 0


def test_a_library_preloaded_after_the_shim_reaches_the_driver(gpu: Machine) -> None:
    """It looks for what comes after itself: the driver's function, not its own once more."""
    between = gpu.compile("interposer.c", "-shared", "-fPIC", "-ldl", name="interposer.so")
    gpu.environment["LD_PRELOAD"] += f":{between}"
    program = gpu.compile("small.c", *linked_to_driver(gpu), name="small")
    with Running(gpu, program) as running:
        assert running.answer() == "0 wrong"
        running.peer.wait(lambda page: page.calls_in_flight == 0 and bytes_of(page) == (SMALL_BYTES, 0))
        assert running.peer.park().status == OK
        running.say("?")
        assert running.answer() == "0 wrong"


def test_without_a_driver_errors_have_their_names(gpu: Machine) -> None:
    """A library that may run without the driver meets the shim's names of it, and prints what they return."""
    gpu.environment["LD_LIBRARY_PATH"] = str(gpu.folder)
    program = plugin(gpu, "no_driver.c")
    ran = subprocess.run(program, env=gpu.environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        f"cuInit: {NO_DEVICE}",
        f"cuParamSetSize: {NO_DEVICE}",
        "0: 0 CUDA_SUCCESS, 0 no error",
        "2: 0 CUDA_ERROR_OUT_OF_MEMORY, 0 out of memory",
        "100: 0 CUDA_ERROR_NO_DEVICE, 0 no CUDA-capable device is detected",
        "-1: 1 nothing, 1 nothing",
        "nowhere to write: 1, 1",
    ]


def test_a_function_that_the_driver_lacks_is_not_found(gpu: Machine) -> None:
    """There is a device; a library built for a newer driver, or an older one, must not hear that there is none."""
    program = plugin(gpu, "no_driver.c", *linked_to_driver(gpu))
    ran = subprocess.run(program, env=gpu.environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[:2] == ["cuInit: 0", f"cuParamSetSize: {NOT_FOUND}"]

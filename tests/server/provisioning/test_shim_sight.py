"""Kernels whose commands only show when they run: what they preload themselves, and how they lose the shim."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jupyter_affinode.provisioning import provisioner, shim_sight

KERNEL = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
DROP = "import os, sys; del os.environ['LD_PRELOAD']; "
EXEC = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
CHILD = "import subprocess; subprocess.run([sys.executable, *sys.argv[1:]])"
DROPPING = {
    "by itself": [sys.executable, "-c", DROP + EXEC, *KERNEL[1:]],
    "and starts the kernel as a child": [sys.executable, "-c", DROP + CHILD, *KERNEL[1:]],
}
NOT_SEEN = "runs without the shim"


@pytest.fixture
def has_begun():
    """Set by a test: kernels are looked at from then on."""
    return threading.Event()


@pytest.fixture
def sights(monkeypatch, has_begun):
    """Kernels are looked at every 0.1 s; a list of what was seen each time."""
    seen: list[bool] = []

    def look(pid: int, word: str) -> bool:
        if not has_begun.is_set():
            return False
        seen.append(shim_sight.lacks_shim(pid, word))
        return seen[-1]

    monkeypatch.setattr(provisioner, "SIGHT_AFTER_S", (0.1,) * 600)
    monkeypatch.setattr(provisioner, "lacks_shim", look)
    return seen


async def until(condition) -> None:
    while not condition():  # until the time-out
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", DROPPING)
async def test_a_kernel_that_lost_the_shim_is_reported_once(
    native, kernelspec, kernel_manager, has_begun, sights, caplog, how
):
    has_begun.set()
    manager = await kernel_manager(kernel_name=kernelspec("drops", argv=DROPPING[how]))
    assert manager.provisioner.managed
    await until(lambda: NOT_SEEN in caplog.text)
    assert sights.count(True) == 1 and sights[-1]


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(KERNEL, id="python", marks=pytest.mark.long),
        pytest.param(["sh", "-c", '"$0" "$@"; exit $?', *KERNEL], id="a shell"),
    ],
)
async def test_a_kernel_that_has_it_is_not_although_it_never_used_the_gpu(
    native, kernelspec, kernel_manager, has_begun, sights, caplog, argv
):
    manager = await kernel_manager(kernel_name=kernelspec("keeps", argv=argv))
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    has_begun.set()  # not before: a program that has just been started has no libraries yet
    await until(lambda: len(sights) > 2)
    client.stop_channels()
    assert not any(sights) and NOT_SEEN not in caplog.text


def test_a_process_that_is_gone_tells_nothing():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not shim_sight.lacks_shim(ended.pid, "kernel-1.json")


@pytest.mark.long
async def test_a_kernelspec_that_preloads_address_sanitizer_starts_with_the_shim(
    native, kernelspec, kernel_manager, caplog
):
    asked = ["cc", "-print-file-name=libasan.so"]
    asan = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()).resolve()
    if not asan.is_file():
        pytest.skip("the compiler has no AddressSanitizer here")
    env = {"LD_PRELOAD": str(asan), "ASAN_OPTIONS": "detect_leaks=0"}
    manager = await kernel_manager(kernel_name=kernelspec("asan", env=env))
    assert manager.provisioner.managed, caplog.text
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=120)
    client.stop_channels()
    maps = Path(f"/proc/{manager.provisioner.pid}/maps").read_text()
    assert asan.name in maps and "libaffinode.so" in maps

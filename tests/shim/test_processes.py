"""Fork, subprocess, multiprocessing, libraries that compute when loaded, and programs that are not Python: at random
moments of park and resume nothing hangs and nothing is lost.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from link_peer import BUSY, NOTHING, OK, PARK, PARKED, RESUME, REVOKED
from namespaces import needs_namespaces
from shim_machine import HERE, Machine, Running

ROUNDS = 6


def moments(seed: int) -> Iterator[tuple[bool, float]]:
    """(whether to come while it resumes, seconds after the command), at random; the first is exactly while parked."""
    chance = random.Random(seed)
    yield False, -1.0
    for i in range(ROUNDS - 1):
        yield i % 2 == 1, chance.uniform(0, 0.025)


def meanwhile(running: Running, coming_back: bool, after_s: float, line: str) -> object:
    """Ask while a park (or the resume after one) is under way; the answer."""
    peer = running.peer
    epoch = peer.command(PARK)
    waits = coming_back or after_s < 0
    if waits and peer.reply_to(epoch).status == OK and after_s >= 0:
        running.resuming = peer.command(RESUME)
    # Not waiting for anything: the moment is the point.
    until = time.monotonic() + max(after_s, 0)
    while time.monotonic() < until:
        peer.pump(0.001)
    answer = running.ask(line)
    if not coming_back and after_s >= 0:
        assert peer.reply_to(epoch).status in (OK, BUSY, REVOKED, NOTHING)
    assert running.ask("check") is True
    return answer


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("fork_exit", 5),
        ("fork_cuda", ["CUDA_ERROR_NOT_INITIALIZED"] * 3),
        ("subprocess", "ab0"),
        ("mp_fork", "CUDA_ERROR_NOT_INITIALIZED"),
    ],
)
def test_children_live_and_die_at_any_moment(worker: Running, action: str, expected: object) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for coming_back, after_s in moments(seed):
        assert meanwhile(worker, coming_back, after_s, action) == expected
    assert worker.peer.page().parks > 0


def test_a_forked_child_sees_what_it_would_without_the_shim(gpu: Machine) -> None:
    """The expectation of the test above is the driver's behaviour, not ours."""
    del gpu.environment["LD_PRELOAD"]
    worker = subprocess.run(
        [sys.executable, str(HERE / "worker.py")],
        env=gpu.environment,
        input="fork_cuda\nmp_fork\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [json.loads(line) for line in worker.stdout.splitlines()] == [
        "ready",
        ["CUDA_ERROR_NOT_INITIALIZED"] * 3,
        "CUDA_ERROR_NOT_INITIALIZED",
    ]


def test_a_spawned_worker_is_a_process_of_its_own(gpu: Machine, worker: Running) -> None:
    assert worker.peer.park().status == OK
    worker.say("mp_spawn\n")
    child = gpu.listener.accept()
    try:
        assert child.hello.pid != worker.process.pid
        assert json.loads(worker.answer()) is True
        page = worker.peer.page()
        assert page.state == PARKED  # the parent had no part in it
    finally:
        child.close()
    assert worker.ask("check") is True


def test_a_library_that_computes_when_loaded(gpu: Machine, worker: Running) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    library = gpu.compile("constructor.c", "-shared", "-fPIC", "-ldl", name="constructor.so")
    for i, (coming_back, after_s) in enumerate(moments(seed)):
        fresh = gpu.folder / f"constructor-{i}.so"  # loaded once each
        shutil.copy(library, fresh)
        assert meanwhile(worker, coming_back, after_s, f"dlopen {fresh}") == 1


# A file stands for a device of the driver: the shim goes by the name.
NVIDIA_DEV = """
set -e
for name in null zero urandom; do touch $1/$name; mount --bind /dev/$name $1/$name; done
head -c 16384 /dev/zero > $1/nvidia7
mount --move $1 /dev
"""
FORKS = """
import ctypes, mmap, os
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
device = os.open("/dev/nvidia7", os.O_RDWR)
shared = mmap.mmap(device, 16384)
shared[0] = 7
def seen():
    with open("/proc/self/maps") as maps:
        mapped = sum("/dev/nvidia" in line for line in maps)
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return mapped, sum(path.startswith("/dev/nvidia") for path in opened), shared[0]
child = os.fork()
if child == 0:
    found = seen()
    shared[0] = 9
    print(*found, os.readlink(f"/proc/self/fd/{device}"), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(*seen())
"""


@pytest.mark.parametrize(
    ("depth", "in_child"), [("context", "0 0 0 /dev/null"), ("memory", "1 2 7 /dev/nvidia7")]
)
def test_a_forked_child_has_no_device_of_the_driver_where_the_process_may_become_an_image(
    gpu: Machine, depth: str, in_child: str
) -> None:
    """The parent's stay, and so do all where nothing will write the process to a disk."""
    new_dev = gpu.folder / "dev"
    new_dev.mkdir()
    through = ["unshare", "--mount", "sh", "-c"]
    mounts = f'mount -t tmpfs none "$1" && {NVIDIA_DEV.strip()}'
    needs_namespaces(*through, 'mount -t tmpfs none "$1"', "sh", str(new_dev))
    ran = subprocess.run(
        [*through, f'{mounts}\nshift; exec "$@"', "sh", str(new_dev), sys.executable, "-c", FORKS],
        env={**gpu.environment, "AFFINODE_DEPTH": depth},
        capture_output=True,
        text=True,
        timeout=60,
    )
    parent = "1 2 7" if depth == "context" else "1 2 9"
    assert ran.stdout.splitlines() == [in_child, parent], ran.stderr

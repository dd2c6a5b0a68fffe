"""Threads that wait in calls of Linux: a wake is no signal, so none of these calls is cut short."""

from __future__ import annotations

import platform

import pytest
from live_machine import Machine
from lone_kernel import LoneKernel

LASTS_S = 1.5
WAIT = """
import ctypes, os, select, signal, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
whole, part = divmod(LASTS_S, 1)
lasts = struct.pack("@qq", int(whole), int(part * 1e9))
semaphore = ctypes.create_string_buffer(64)
libc.sem_init(semaphore, 0, 0)
poll = select.epoll()
room = ctypes.create_string_buffer(64)

def until():
    return struct.pack("@qq", int(time.time() + LASTS_S), 0)

ms = int(LASTS_S * 1000)
WAITS = {
    "poll": lambda: libc.poll(None, 0, ms),
    "nanosleep": lambda: libc.nanosleep(lasts, None),
    "clock_nanosleep": lambda: libc.clock_nanosleep(1, 0, lasts, None),
    "sem_timedwait": lambda: libc.sem_timedwait(semaphore, until()),
    "futex": lambda: libc.syscall(202, semaphore, 0, 0, lasts, None, 0),
    "epoll_wait": lambda: libc.epoll_wait(poll.fileno(), room, 1, ms),
    "epoll_pwait": lambda: libc.epoll_pwait(poll.fileno(), room, 1, ms, None),
    "ppoll": lambda: libc.ppoll(None, 0, lasts, None),
    "sigtimedwait": lambda: libc.sigtimedwait(struct.pack("16Q", 1 << 40, *[0] * 15), None, lasts),
}
counts, cut_short = dict.fromkeys(WAITS, 0), set()

def wait(name):
    while True:
        ctypes.set_errno(0)
        began = time.monotonic()
        result = WAITS[name]()
        if 4 in (result, ctypes.get_errno()):  # EINTR
            cut_short.add(name)
        counts[name] += 1

for name in WAITS:
    threading.Thread(target=wait, args=(name,), daemon=True).start()
while min(counts.values()) < 1:
    time.sleep(0.01)
print("all")
""".replace("LASTS_S", str(LASTS_S))
AFTER = """
before = dict(counts)
while any(counts[name] < before[name] + 2 for name in counts):
    time.sleep(0.01)
print(sorted(cut_short))
"""


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="registers of x86-64")
def test_a_wake_cuts_no_wait_short(gpu_machine_with_criu: Machine) -> None:
    with LoneKernel(gpu_machine_with_criu, uses_gpu=False) as kernel:
        assert kernel.run(WAIT) == "all\n"
        for _ in range(2):
            kernel.hibernate()
            kernel.wake()
            assert kernel.run(AFTER) == "[]\n"

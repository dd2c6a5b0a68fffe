"""What a kernel has of Linux beside memory and files: all of it is there when it wakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
HAS = """
import ctypes, os, subprocess, sys
own = open(f"/proc/{os.getpid()}/status")
own.read(6)
processors = {min(os.sched_getaffinity(0))}
os.sched_setaffinity(0, processors)
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: at its wake its parent is CRIU, which ends
libc.sem_open.restype = ctypes.c_void_p
libc.sem_post.argtypes = libc.sem_trywait.argtypes = [ctypes.c_void_p]
name = b"/SEMAPHORE"
mine = libc.sem_open(name, os.O_CREAT | os.O_EXCL, 0o600, 0)
by_name = '''
import ctypes, sys
libc = ctypes.CDLL(None)
libc.sem_open.restype = ctypes.c_void_p
libc.sem_post.argtypes = [ctypes.c_void_p]
semaphore = libc.sem_open(sys.argv[1].encode(), 0)
for line in sys.stdin:
    libc.sem_post(semaphore)
    print("posted", flush=True)
'''
command = [sys.executable, "-c", by_name, name.decode()]
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

def posted():
    child.stdin.write("\\n")
    child.stdin.flush()
    child.stdout.readline()
    return libc.sem_trywait(mine) == 0

print(posted())
"""
STILL_HAS = "print(len(own.read(20)), os.sched_getaffinity(0) == processors, posted())"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: no thread can be bound to less")
def test_what_linux_keeps_of_a_process_comes_back(lone):
    name = f"affinode-{os.getpid()}-{lone.id}"
    path = SHARED_MEMORY / f"sem.{name}"
    try:
        assert lone.run(HAS.replace("SEMAPHORE", name)) == "True\n"
        lone.hibernate()
        assert path.stat().st_nlink == 1
        lone.wake()
        assert lone.run(STILL_HAS).split() == ["20", "True", "True"]
        lone.hibernate()
        path.unlink()  # as a restart of the machine does
        lone.wake()
        assert lone.run(STILL_HAS).split() == ["20", "True", "True"]
        lone.check()
    finally:
        path.unlink(missing_ok=True)

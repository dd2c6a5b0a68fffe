"""What processes have open: each kind works on after the process was woken.

test_checks.py has what cannot be written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from waiting import until, wait_until

from jupyter_affinode.hibernation import criu as criu_module
from jupyter_affinode.hibernation import tree
from jupyter_affinode.hibernation.checks import objection_to_writing

BEGIN = """
import ctypes, fcntl, json, mmap, multiprocessing, os, select, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
folder = sys.argv[1]
def child(code=None):
    pid = os.fork()
    if not pid:
        os._exit(code) if code is not None else time.sleep(600)
    return pid
def readable(descriptor):
    return bool(select.select([descriptor], [], [], 10)[0])
"""
# What is made before, and what must be true afterwards.
KEPT = {
    "memfd": (
        "memory = os.memfd_create('m', 2); os.write(memory, b'word'); fcntl.fcntl(memory, 1033, 4 | 8)",
        "os.pread(memory, 4, 0) == b'word' and fcntl.fcntl(memory, 1034) == 12",
    ),
    "pipe": ("r, w = os.pipe(); os.write(w, b'word')", "os.read(r, 4) == b'word'"),
    "fifo": (
        "os.mkfifo(folder + '/fifo'); fifo = os.open(folder + '/fifo', os.O_RDWR); os.write(fifo, b'q')",
        "os.read(fifo, 1) == b'q'",
    ),
    "eventfd": ("event = libc.eventfd(5, 0)", "os.read(event, 8) == struct.pack('Q', 5)"),
    "signalfd": (
        "signal.pthread_sigmask(0, [10]); signals = libc.signalfd(-1, struct.pack('Q', 1 << 9), 0)",
        "os.kill(os.getpid(), 10) is None and os.read(signals, 128)[0] == 10",
    ),
    "timerfd": (
        "timer = libc.timerfd_create(1, 0)\n"
        "libc.timerfd_settime(timer, 0, struct.pack('4q', 0, 10**7, 0, 10**7), None)",
        "readable(timer)",
    ),
    "epoll": (
        "r2, w2 = os.pipe(); poll = select.epoll(); poll.register(r2, 1)",
        "os.write(w2, b'x') == 1 and poll.poll(10) == [(r2, 1)]",
    ),
    "inotify": (
        "os.mkdir(folder + '/watched'); watch = libc.inotify_init()\n"
        "libc.inotify_add_watch(watch, (folder + '/watched').encode(), 0x100)",
        "os.mkdir(folder + '/watched/new') is None and readable(watch)",
    ),
    "pidfd": (
        "watched = child(); pidfd = os.pidfd_open(watched)",
        "os.kill(watched, 9) is None and readable(pidfd) and os.waitpid(watched, 0)[1] == 9",
    ),
    "a child that has ended": (
        "ended = child(3); os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)",
        "os.waitpid(ended, 0)[1] >> 8 == 3",
    ),
    "memory of parent and child": (
        "shared = mmap.mmap(-1, 4096)\nif not os.fork():\n    shared[0] = 7; time.sleep(600)\n"
        "while not shared[0]: time.sleep(0.001)",
        "shared[0] == 7",
    ),
    "UDP": (
        "one = socket.socket(2, 2); one.bind(('127.0.0.1', 0)); two = socket.socket(2, 2)\n"
        "two.connect(one.getsockname())",
        "two.send(b'x') == 1 and one.recv(9) == b'x'",
    ),
    "a server": (
        # At an address that no other program takes a port of, while this one is on disk.
        "server = socket.create_server(('127.0.0.77', 0))",
        "socket.create_connection(server.getsockname()).fileno() > 0",
    ),
    "netlink": ("net = socket.socket(16, 3, 0); net.bind((0, 0))", "net.getsockname()[0] > 0"),
    "Unix sockets": ("pair = socket.socketpair()", "pair[0].send(b'x') == 1 and pair[1].recv(1) == b'x'"),
    "a deleted folder": (
        "os.mkdir(folder + '/gone'); gone = os.open(folder + '/gone', os.O_RDONLY); os.rmdir(folder + '/gone')",
        "os.listdir(gone) == []",
    ),
    "a deleted file": (
        "deleted = os.open(folder, os.O_TMPFILE | os.O_RDWR); os.write(deleted, b'word')",
        "os.pread(deleted, 4, 0) == b'word'",
    ),
    "a forked semaphore": (
        "semaphore = multiprocessing.get_context('fork').Semaphore(2); semaphore.acquire()",
        "semaphore.acquire(timeout=10) and not semaphore.acquire(block=False)",
    ),
    "a clock that ticks": (
        "ticks = []; signal.signal(14, lambda *_: ticks.append(1)); signal.setitimer(0, 0.01, 0.01)",
        "[ticks.clear(), time.sleep(0.2)] and bool(ticks)",
    ),
    "what Linux tells of itself": ("status = open('/proc/self/status')", "'python' in status.read()"),
}
SERVE = """
uses = {uses!r}
with open(folder + "/to-do", "rb", buffering=0) as told:  # until a writer has closed it
    print("up", flush=True)
    for number in (0, 1, 2):
        os.dup2(os.open("/dev/null", os.O_RDWR), number)
    while True:
        try:
            told.read()
            break
        except InterruptedError:
            pass
def outcome(code):
    try:
        return eval(code)
    except Exception as error:
        return repr(error)
with open(folder + "/.done", "w") as file:
    json.dump({{name: outcome(code) for name, code in uses.items()}}, file)
os.rename(folder + "/.done", folder + "/done")
time.sleep(600)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="as a user CRIU needs capabilities")
async def test_what_a_process_has_open_works_on_after_it_was_woken(criu, monkeypatch, tmp_path):
    monkeypatch.setenv("AFFINODE_CRIU", criu)
    os.mkfifo(tmp_path / "to-do")
    uses = {name: use for name, (_, use) in KEPT.items()}
    code = "\n".join([BEGIN, *(make for make, _ in KEPT.values()), SERVE.format(uses=uses)])
    started = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert started.stdout is not None and started.stderr is not None
    writer = os.open(tmp_path / "to-do", os.O_RDWR)
    processes = []
    try:
        assert started.stdout.readline() == b"up\n", started.stderr.read()
        wait_until(lambda: os.readlink(f"/proc/{started.pid}/fd/2") == "/dev/null")
        processes = tree.tree_of(started.pid)
        assert objection_to_writing(each.pid for each in processes) is None
        image = tmp_path / "image" / "process"
        image.mkdir(parents=True)
        lock = os.open(tmp_path, os.O_RDONLY)
        await criu_module.dump(started.pid, image, lock)
        await tree.end(processes)
        started.wait()
        assert await tree.free([each.pid for each in processes]) is None
        await criu_module.restore(image, lock)
        os.close(lock)
        processes = tree.tree_of(started.pid)
        tree.go_on(processes)
        os.close(writer)
        await until((tmp_path / "done").exists)
        assert json.loads((tmp_path / "done").read_text()) == dict.fromkeys(KEPT, True)
    finally:
        await tree.end(processes)
        started.kill()
        started.wait()
        started.stdout.close()
        started.stderr.close()

"""Which servers speak for kernels, and what is left when they end."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time

from fake_shim import MIB
from open_files import open_files
from waiting import until

from jupyter_affinode.node import controller
from jupyter_affinode.node.state import registry as state
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.state.servers import ServerWatch
from jupyter_affinode.node.system.host_memory import host_memory
from jupyter_affinode.settings.policy import Settings

SPEAKS = """
import sys
from pathlib import Path
from live_machine import UnixConnection
connection = UnixConnection(Path(sys.argv[1]))
connection.request("PUT", "/api/v1/kernels/k", '{"name": "a notebook", "server": "a server"}')
print(connection.getresponse().status, flush=True)
input()
"""
PIDFD = "anon_inode:[pidfd]"
WAITS = [sys.executable, "-c", "input()"]


def with_watch(body):
    """Run `body(state, watch)` on a loop."""

    async def run():
        state = NodeState(Settings(), host_memory())
        watch = ServerWatch(state, logging.getLogger("test"), lambda: None)
        try:
            await body(state, watch)
        finally:
            watch.close()

    asyncio.run(run())


def server():
    """A process that lives until its input ends."""
    return subprocess.Popen(WAITS, stdin=subprocess.PIPE)


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()


def test_when_a_server_ends_its_kernels_lose_their_description():
    async def body(state, watch):
        process = server()
        kernel = state.kernel("k", time.monotonic())
        kernel.describe(name="a notebook")
        kernel.cell.is_open = True
        watch.speaks_for(process.pid, kernel)
        assert kernel.server.pid == process.pid
        end(process)
        await until(lambda: kernel.server.pid is None)
        assert kernel.server.description is None and not kernel.cell.is_open

    with_watch(body)


def test_what_was_shut_down_is_forgotten_with_its_last_process_though_its_server_lives(
    node, shim, wait_until, monkeypatch
):
    monkeypatch.setattr(controller, "EMPTY_KERNEL_LASTS_S", 0.1)
    monkeypatch.setattr(state, "HUNG_UP_FORGOTTEN_S", 0.1)
    machine = node()
    left = shim("k", resident=300 * MIB)
    speaker = subprocess.Popen(
        [sys.executable, "-c", SPEAKS, machine.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert speaker.stdout.readline() == b"200\n"
        assert machine.ask("DELETE", "/kernels/k")[0] == 204
        assert machine.kernel("k")["processes"]
        left.hang_up()
        wait_until(lambda: machine.kernel("k") is None)
    finally:
        end(speaker)
        speaker.stdout.close()


def test_a_server_that_has_ended_before_its_word_is_heard_keeps_no_kernel_alive():
    async def body(state, watch):
        process = server()
        end(process)
        kernel = state.kernel("k", time.monotonic())
        kernel.describe(name="a notebook")
        kernel.cell.is_open = True
        watch.speaks_for(process.pid, kernel)
        assert kernel.server.pid is None and kernel.server.description is None and not kernel.cell.is_open

    with_watch(body)


def test_a_server_that_could_not_be_watched_at_once_is_watched_later(monkeypatch):
    def no_descriptors(pid):
        raise OSError(24, "Too many open files")

    async def body(state, watch):
        process = server()
        kernel = state.kernel("k", time.monotonic())
        with monkeypatch.context() as patch:
            patch.setattr(os, "pidfd_open", no_descriptors)
            watch.speaks_for(process.pid, kernel)
            watch.watch_all()
        assert kernel.server.pid == process.pid
        watch.watch_all()
        end(process)
        await until(lambda: kernel.server.pid is None)

    with_watch(body)


def test_a_server_without_kernels_takes_no_descriptor():
    async def body(state, watch):
        kernel = state.kernel("k", time.monotonic())
        processes = [server() for _ in range(3)]
        try:
            before = open_files(PIDFD)
            for process in processes:
                watch.speaks_for(process.pid, kernel)
            watch.watch_all()
            assert open_files(PIDFD) == before + 1
            del state.kernels["k"]
            watch.watch_all()
            assert open_files(PIDFD) == before
        finally:
            for process in processes:
                end(process)

    with_watch(body)

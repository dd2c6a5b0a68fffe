"""The execution tracker on real kernels, through its own channels."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from live_server import ENDLESS
from waiting import until

from jupyter_affinode.client.errors import ControllerRefused
from jupyter_affinode.server import execution_tracker as tracker_module
from jupyter_affinode.server import kernels
from jupyter_affinode.server.execution_tracker import ExecutionTracker

LOG = logging.getLogger(__name__)


class Heard:
    """What a tracker reported."""

    def __init__(self) -> None:
        self.cells: list[tuple[bool, str | None]] = []
        self.interrupts = 0

    def cell(self, is_open: bool, cell_id: str | None, began_at: float | None) -> None:
        self.cells.append((is_open, cell_id))

    def interrupt(self) -> None:
        self.interrupts += 1


@pytest.fixture
def tracked(kernel_manager):
    """`await tracked(**)`: (manager, ready client, tracker, what it heard) of a new kernel."""
    closing: list[Any] = []

    async def start(**options: Any) -> tuple[Any, Any, ExecutionTracker, Heard]:
        manager = await kernel_manager("local-provisioner", **options)
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=60)
        heard = Heard()
        tracker = ExecutionTracker(manager, on_cells=heard.cell, on_interrupt=heard.interrupt, log=LOG)
        tracker.start()
        closing.extend([tracker.close, client.stop_channels])
        await until(lambda: tracker._greeting.done())
        heard.cells.clear()
        return manager, client, tracker, heard

    yield start
    for close in closing:
        close()


def in_subshell(client: Any, subshell: str, code: str) -> str:
    """Send a cell to a subshell; its message id."""
    content = {"code": code, "silent": False, "store_history": False}
    message = client.session.msg("execute_request", content)
    message["header"]["subshell_id"] = subshell
    client.shell_channel.send(message)
    return message["header"]["msg_id"]


async def test_a_cell_opens_and_closes_and_what_is_no_execution_is_no_cell(tracked):
    _, client, tracker, heard = await tracked()
    seen = tracker.cells.messages
    client.is_complete("import this")
    client.kernel_info()
    await until(lambda: tracker.cells.messages >= seen + 4)
    assert heard.cells == []
    message_id = client.execute("input_ = 1")
    await until(lambda: len(heard.cells) == 2)
    assert heard.cells == [(True, message_id), (False, None)]


async def test_a_subshells_cell_does_not_close_the_main_shells(tracked):
    pytest.importorskip("ipykernel", minversion="7", reason="there are no subshells in this ipykernel")
    _, client, tracker, heard = await tracked()
    request = client.session.msg("create_subshell_request")
    client.control_channel.send(request)
    reply = await client.get_control_msg(timeout=60)
    subshell = reply["content"]["subshell_id"]
    main = client.execute("import threading; go = threading.Event(); go.wait(30)")
    await until(lambda: tracker.cells.current == main)
    side = in_subshell(client, subshell, "go.is_set()")
    await until(lambda: (True, side) in heard.cells and tracker.cells.current == main)
    assert heard.cells[-1] == (True, main)
    in_subshell(client, subshell, "go.set()")
    await until(lambda: tracker.cells.current is None)


FLOOD = """
import sys
kernel, parent = get_ipython().kernel, get_ipython().parent_header
send = kernel.session.send

def lose_the_end(stream, what, content=None, *others, **named):
    if stream is kernel.iopub_socket and content == {"execution_state": "idle"}:
        kernel.session.send = send
        return None
    return send(stream, what, content, *others, **named)

for i in range(20_000):  # several times what queues and sockets hold
    send(kernel.iopub_socket, "stream", {"name": "stdout", "text": "x" * 2000}, parent=parent)
kernel.session.send = lose_the_end
"""


@pytest.mark.long
async def test_a_flood_of_outputs_with_a_stalled_reader_leaves_nothing_open(tracked, monkeypatch):
    """The loop does not read while the kernel floods, and the cell's end is lost: one question finds out.

    iopub drops what comes while its queue is full. Whether that is so at the very end depends on when Linux lets the
    kernel's threads run, so the kernel itself leaves the end out.
    """
    _, client, tracker, heard = await tracked()
    ask = tracker._ask
    message_id = client.execute(FLOOD, store_history=False)
    await until(lambda: tracker.cells.current == message_id)
    tracemalloc.start()
    client.kernel_info()  # is answered after the cell's end, which comes after its reply
    shell = zmq.Socket.shadow(client.shell_channel.socket)
    for _ in range(2):
        assert shell.poll(120_000), "the flood did not end"  # blocks this thread, and the tracker with it
        shell.recv_multipart()
    await until(lambda: tracker.cells.messages >= 1000)
    questions = []
    monkeypatch.setattr(tracker, "_ask", lambda *of: questions.append(ask(*of)))
    while tracker.cells.current is not None:  # until the test's own limit
        tracker.gpu_idle(10.0)
        await asyncio.sleep(0.05)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(questions) == 1
    assert peak < 50 * 2**20
    assert heard.cells[-1] == (False, None)


@pytest.mark.long
async def test_a_flood_that_is_read_costs_little(tracked, monkeypatch):
    """Of a cell's 20,000 outputs none is parsed, and none is lost."""
    _, client, tracker, heard = await tracked()
    came, parsed = [], []
    count, parse = tracker.cells.count_message, tracker._deserialized
    monkeypatch.setattr(tracker.cells, "count_message", lambda: came.append(count()))
    monkeypatch.setattr(tracker, "_deserialized", lambda *of, **how: parsed.append(of) or parse(*of, **how))
    message_id = client.execute("for i in range(20_000): print(i, flush=i % 100 == 0)", store_history=False)
    await until(lambda: (False, None) in heard.cells)
    assert heard.cells[0] == (True, message_id)
    assert len(came) >= 200 and len(parsed) < 5


def ends_with(file: Path) -> str:
    """A cell that runs until a file exists."""
    begin = "import pathlib, time\nprint('on', flush=True)\n"
    return begin + f"while not pathlib.Path({str(file)!r}).exists(): time.sleep(0.01)"


async def test_a_busy_cell_is_not_closed_by_the_question(tracked, tmp_path):
    _, client, tracker, heard = await tracked()
    message_id = client.execute(ends_with(tmp_path / "end"))
    await until(lambda: tracker.cells.current == message_id)
    tracker._probe()
    tracker._probe()
    assert len(tracker._probes) == 1, "one question at a time"
    assert tracker.cells.current == message_id
    (tmp_path / "end").touch()
    await until(lambda: tracker.cells.current is None)
    await until(lambda: not tracker._probes)
    assert heard.cells == [(True, message_id), (False, None)]


async def test_a_restart_closes_the_open_cell_and_the_next_one_is_seen(tracked, tmp_path):
    manager, client, tracker, heard = await tracked()
    client.execute(ENDLESS)
    await until(lambda: tracker.cells.current is not None)
    await manager.restart_kernel(now=True)
    tracker.restarted()
    assert heard.cells[-1] == (False, None)
    await client.wait_for_ready(timeout=60)
    client.execute(ends_with(tmp_path / "end"))
    await until(lambda: tracker.cells.current is not None)
    (tmp_path / "end").touch()
    await until(lambda: tracker.cells.current is None)


@pytest.mark.long
async def test_a_kernel_that_starts_slowly_is_not_taken_for_one_that_runs_a_cell(tracked, monkeypatch):
    """It says that it starts after it was asked, and answers when it has been taken for busy."""
    _, _, tracker, heard = await tracked()
    monkeypatch.setattr(tracker_module, "GREETING_S", 0)
    tracker.start()
    await asyncio.sleep(0)  # it asks
    tracker._take_status("starting", {})
    await until(lambda: tracker._greeting.done())
    assert heard.cells == [(True, tracker._greeted), (False, None)]


async def test_no_restart_makes_the_tracker_deaf(tracked):
    """A new channel gets the descriptor's number of the old one, whose reader must not be taken off afterwards."""
    _, client, tracker, heard = await tracked()
    for _ in range(10):
        tracker.restarted()
        await until(lambda: tracker._greeting.done())
        heard.cells.clear()
        client.execute("1")
        await until(lambda: [is_open for is_open, _ in heard.cells] == [True, False])


@pytest.mark.long
async def test_a_closed_tracker_leaves_other_readers_of_the_loop_alone(tracked):
    """The numbers of its descriptors may belong to the server's own sockets at once."""
    _, client, tracker, _ = await tracked()
    client.stop_channels()  # its heartbeat's thread opens sockets, too
    loop = asyncio.get_running_loop()
    numbers = [tracker._iopub.sock.FD, tracker._shell.sock.FD]
    tracker.close()
    mine, other = socket.socketpair()
    heard: set[int] = set()
    for number in numbers:
        while Path(f"/proc/self/fd/{number}").exists():
            time.sleep(0.001)  # ZMQ closes on a thread of its own; the loop must not turn meanwhile
        os.dup2(mine.fileno(), number)
        loop.add_reader(number, heard.add, number)
    for _ in range(5):
        await asyncio.sleep(0)
    other.send(b"x")
    try:
        await until(lambda: heard == set(numbers))
    finally:
        for number in numbers:
            loop.remove_reader(number)
            os.close(number)
        mine.close()
        other.close()


@pytest.mark.long
async def test_following_that_ended_by_an_error_begins_again(tracked):
    _, client, tracker, heard = await tracked()
    task = tracker._following[0]
    task.cancel()
    await asyncio.wait([task])
    tracker.keep_following()
    await until(lambda: tracker._greeting.done())
    client.execute("1")
    await until(lambda: [is_open for is_open, _ in heard.cells][-2:] == [True, False])


async def test_a_cell_that_began_before_the_tracker_came_is_seen(tracked, tmp_path):
    """As after a restart, when a front end is ready before the tracker's subscription is."""
    _, client, tracker, heard = await tracked()
    tracker.close()
    client.execute(ends_with(tmp_path / "end"))
    while (await client.get_iopub_msg(timeout=60))["msg_type"] != "stream":
        pass
    tracker.start()
    await until(lambda: tracker.cells.current is not None)
    (tmp_path / "end").touch()
    await until(lambda: tracker.cells.current is None)
    await until(lambda: tracker._greeting.done())
    message_id = client.execute("1")
    await until(lambda: (True, message_id) in heard.cells and heard.cells[-1] == (False, None))


SILENT = """
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp

class Silent(IPythonKernel):
    def _publish_status(self, *args, **kwargs):
        # Something else, since clients wait for a first message.
        self.session.send(self.iopub_socket, "stream", {"name": "stdout", "text": "on"}, ident=b"stream")

IPKernelApp.launch_instance(kernel_class=Silent)
"""


async def test_a_kernel_that_sends_no_status_is_not_asked_for_ever(tracked, kernelspec, monkeypatch):
    monkeypatch.setattr(tracker_module, "HEARING_S", 0.002)
    kernelspec("silent", argv=[sys.executable, "-c", SILENT, "-f", "{connection_file}"])
    _, _, tracker, _ = await tracked(kernel_name="silent")  # waits for the greeting's end
    assert not tracker._heard.is_set() and not tracker._probes, "every question was answered"


async def test_an_interrupt_request_is_heard(tracked, kernelspec):
    kernelspec("by-message", interrupt_mode="message")
    manager, client, tracker, heard = await tracked(kernel_name="by-message")
    message_id = client.execute(f"print('on', flush=True)\n{ENDLESS}")
    await until(lambda: tracker.cells.current == message_id)
    while (await client.get_iopub_msg(timeout=60))["msg_type"] != "stream":
        pass
    await manager.interrupt_kernel()
    await until(lambda: heard.interrupts == 1 and tracker.cells.current is None)


async def test_a_kernel_in_another_language_is_tracked(tracked, kernelspec):
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    kernelspec("shell", argv=argv, language="bash")
    _, client, _, heard = await tracked(kernel_name="shell")
    message_id = client.execute("echo hello")
    await until(lambda: heard.cells == [(True, message_id), (False, None)])


async def test_a_cells_end_that_came_too_fast_is_told_again(monkeypatch):
    """Else the kernel would seem to compute until its next cell."""
    monkeypatch.setattr(kernels, "SAY_AGAIN_S", 0.0)
    told: list[bool] = []

    async def cell(kernel_id: str, is_open: bool, **_: object) -> None:
        if not is_open and not told.count(False):
            told.append(False)
            raise ControllerRefused(429, "too-many-requests", "you ask too often")
        told.append(is_open)

    watch: Any = SimpleNamespace(available=True, client=SimpleNamespace(cell=cell))
    messages = kernels.KernelMessages("k", watch, logging.getLogger(__name__))
    messages.cell(True, None)
    await until(lambda: told == [True])
    messages.cell(False, None)
    await until(lambda: told == [True, False, False])

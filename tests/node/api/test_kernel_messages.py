"""What a provisioner tells the controller, without an event loop."""

from __future__ import annotations

import contextlib
import re
import socket
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from jupyter_affinode.client.controller_socket import connect_in_line
from jupyter_affinode.client.errors import ControllerRefused, ControllerUnavailable
from jupyter_affinode.client.kernel_messages import KernelMessages

NONE = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture
def listening(tmp_path):
    """A socket at which no controller listens."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.listen(1)
        yield made


def answer(listening, words):
    """Read a request, if there is one, and answer it."""
    connected, _ = listening.accept()
    with connected:
        if connected.recv(65536):
            connected.sendall(words)


def test_a_kernel_is_described_told_and_forgotten(controller, wait_until):
    kernel = KernelMessages("a b/c", controller.socket)
    kernel.describe(name="odd\n", path="x" * 300 + ".ipynb", priority=None)
    known = controller.kernels()["a b/c"]
    assert known["name"] == "odd\ufffd"
    assert known["path"].endswith("x.ipynb")
    kernel.tell_cancel(7)
    kernel.tell_dying(7)
    wait_until(lambda: ": what waits for the GPU fails" in controller.controller_log())
    kernel.tell_forget()
    wait_until(lambda: "a b/c" not in controller.kernels())


def test_a_client_waits_in_line_until_one_before_it_is_accepted(listening, tmp_path):
    path, others = tmp_path / "s", contextlib.ExitStack()
    late = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with others, late, ThreadPoolExecutor(1) as thread:
        with pytest.raises(BlockingIOError):
            while True:
                other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                connect_in_line(others.enter_context(other), path, 0)
        with pytest.raises(BlockingIOError):
            connect_in_line(late, path, 0.01)
        waiting = thread.submit(connect_in_line, late, path, 60)
        listening.accept()[0].close()
        waiting.result()
        assert not late.getblocking()
        assert late.getpeername() == str(path)


def test_a_refusal_has_the_controllers_words(controller):
    with pytest.raises(ControllerRefused, match="priority") as refused:
        KernelMessages("k", controller.socket).describe(priority="high")
    assert (refused.value.status, refused.value.slug) == (400, "bad-request")


def test_without_a_controller_it_is_said_where_none_answers(tmp_path):
    abandoned = tmp_path / "abandoned.sock"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(abandoned))
    for path in (tmp_path / "none.sock", abandoned):
        for message in (KernelMessages.describe, KernelMessages.place, KernelMessages.tell_forget):
            with pytest.raises(ControllerUnavailable, match=re.escape(str(path))):
                message(KernelMessages("k", path))


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\n",
        b'HTTP/1.1 200 OK\r\n\r\n{"id"',
        b"220 mail\r\n",
    ],
)
def test_an_answer_that_is_cut_off_is_none(listening, words):
    with ThreadPoolExecutor(1) as threads:
        answered = threads.submit(answer, listening, words)
        with pytest.raises(ControllerUnavailable, match=re.escape(listening.getsockname())):
            KernelMessages("k", listening.getsockname()).describe(name="n")
        answered.result(timeout=60)


def test_a_full_line_at_the_socket_is_waited_for_and_a_message_that_never_blocks_is_not_sent(listening):
    path, before = listening.getsockname(), []
    try:
        with pytest.raises(BlockingIOError):
            while True:
                before.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                before[-1].connect(path)
        with pytest.raises(ControllerUnavailable):
            KernelMessages("k", path).tell_forget()
        with ThreadPoolExecutor(1) as threads:
            described = threads.submit(KernelMessages("k", path).describe, name="n")
            assert not wait([described], 0.05).done
            for each in before:
                each.close()
            for _ in before:  # the last of them had no place
                answer(listening, NONE)
            described.result(timeout=60)
    finally:
        for each in before:
            each.close()

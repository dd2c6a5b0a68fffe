"""How much of a pass each process is, however many a user connects: all others wait for it."""

from __future__ import annotations

import contextlib

import pytest
from fake_shim import GPU, HEARTBEAT, MIB, FakePage, connect, hello, message, send
from thread_controller import ThreadController
from work import work_of

from jupyter_affinode.node.controller import Controller
from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.identity.identity import Identity

MOST_FOR_A_PROCESS = 1500  # lines and calls of built-in functions; it was 3,140


class Crowd:
    """Processes of this user, each of a kernel of its own, with pages that show something new in each pass."""

    def __init__(self, folder):
        self._folder = folder
        self._pages, self._links = [], []

    def grow(self, count):
        for _ in range(count):
            page = FakePage()
            page.memory = {GPU: [MIB, 0, 0]}
            page.write()
            link = connect(self._folder / "link.sock")
            send(link, hello(f"crowd-{len(self._links)}"), page.descriptor)
            assert link.recv(4096)  # WELCOME
            self._links.append(link)
            self._pages.append(page)

    def move_on(self):
        for page, link in list(zip(self._pages, self._links, strict=False)):
            page.calls_in_flight += 1
            page.write()
            link.send(message(HEARTBEAT, b""))

    def __len__(self):
        return len(self._links)

    def close(self):
        for link in self._links:
            link.close()
        for page in self._pages:
            page.close()


@pytest.fixture
def work_of_passes(machine, monkeypatch):
    """`work_of_passes(crowd)`: the least work of some passes with all its processes."""
    crowd = Crowd(machine.socket.parent)
    works: list[tuple[int, int]] = []  # of each pass: how many kernels had processes, and its work
    one_pass = Controller._pass

    def counted(controller):
        crowd.move_on()
        kernels = sum(bool(kernel.processes) for kernel in controller.state.kernels.values())
        works.append((kernels, work_of(one_pass, controller)))

    monkeypatch.setattr(Controller, "_pass", counted)
    controller = ThreadController(machine.socket, access=EveryUserAccess())

    def least(wait_until):
        works.clear()
        known = len(crowd)
        wait_until(lambda: sum(kernels == known for kernels, _ in list(works)) >= 5)
        return min(work for kernels, work in works if kernels == known)

    with contextlib.closing(crowd):
        yield crowd, controller, least
        controller.stop()


def of_each(crowd, least, wait_until):
    """The work that 40 more processes are, divided by them."""
    crowd.grow(10)
    few = least(wait_until)
    crowd.grow(40)
    return (least(wait_until) - few) / 40


def test_a_pass_does_little_for_each_process(work_of_passes, wait_until):
    crowd, _, least = work_of_passes
    assert of_each(crowd, least, wait_until) < MOST_FOR_A_PROCESS


def test_a_user_who_follows_the_events_has_no_json_made_of_others_kernels(work_of_passes, wait_until):
    crowd, controller, least = work_of_passes
    made = controller._controller
    controller._loop.call_soon_threadsafe(made.events.subscribe, Identity("uid-4711", "another"))
    wait_until(lambda: made.events.subscribers)
    assert of_each(crowd, least, wait_until) < MOST_FOR_A_PROCESS

"""How much of a pass each process is, however many a user connects: all others wait for it."""

from __future__ import annotations

import threading

import pytest
from fake_shim import GPU, HEARTBEAT, MIB, FakePage, connect, hello, message, send
from thread_controller import ThreadController
from work import work_of

from jupyter_affinode.node.controller import Controller
from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.identity.identity import Identity

MOVES_EVERY_S = 0.1  # fifty messages each time, and a user may send a thousand a second
MOST_FOR_A_PROCESS = 1500  # lines and calls of built-in functions; it was 3,140


class Crowd:
    """Processes of this user, each of a kernel of its own, with pages that show something new all the time."""

    def __init__(self, folder):
        self._folder = folder
        self._pages, self._links = [], []
        self._is_over = threading.Event()
        self.moves = 0
        self._mover = threading.Thread(target=self._move_on)
        self._mover.start()

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

    def _move_on(self):
        while not self._is_over.wait(MOVES_EVERY_S):
            crowd = list(zip(self._pages, self._links, strict=False))
            for page, _ in crowd:
                page.calls_in_flight += 1
                page.write()
            self.moves += 1
            for _, link in crowd:
                link.send(message(HEARTBEAT, b""))

    def __len__(self):
        return len(self._links)

    def close(self):
        self._is_over.set()
        self._mover.join()
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

    seen = 0  # moves of the crowd: a pass that sees none is not counted

    def counted(controller):
        nonlocal seen
        if crowd.moves == seen:
            return one_pass(controller)
        seen = crowd.moves
        kernels = sum(bool(kernel.processes) for kernel in controller.state.kernels.values())
        works.append((kernels, work_of(one_pass, controller)))

    monkeypatch.setattr(Controller, "_pass", counted)
    controller = ThreadController(machine.socket, access=EveryUserAccess())

    def least(wait_until):
        works.clear()
        known = len(crowd)
        wait_until(lambda: sum(kernels == known for kernels, _ in list(works)) >= 5)
        return min(work for kernels, work in works if kernels == known)

    yield crowd, controller, least
    crowd.close()  # it speaks to the controller
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

"""An attacker who takes more than a share of the GPU, or room without using it, keeps nobody else from it."""

from __future__ import annotations

import threading

import pytest
from people import needs_root
from scene import ATTACKER, HONEST, Scene

FINE = {"took_s": 0, "wrong": 0, "error": None}


def test_a_kernel_comes_back_while_another_users_processes_reserve_the_gpu_and_never_take_it(
    scene, wait_until
):
    program = scene.program(HONEST, "thesis", 200)
    assert program.hear()["error"] is None
    assert scene.honest.ask("POST", "/kernels/thesis/park", {})[1]["residency"] == "parked"
    with scene.attack("reserving"):
        wait_until(lambda: f"resume uid-{ATTACKER}/" in scene.machine.controller_log())
        for _ in range(2):
            assert program.ask("use") | {"took_s": 0} == FINE
            assert scene.honest.ask("POST", "/kernels/thesis/park", {})[1]["residency"] == "parked"
        wait_until(lambda: "did not take the GPU memory" in scene.machine.controller_log())


@pytest.fixture
def quick_scene(gpu_machine):
    """A scene in which a kernel that pauses for a second yields."""
    needs_root()
    made = Scene(gpu_machine, "--NodeController.queue_idle_timeout_s=1")
    yield made
    made.check()
    made.close()


def test_another_users_kernels_keep_a_waiter_waiting_for_one_turn(quick_scene, wait_until):
    """And for the one that began before: all four had asked for the GPU earlier."""
    scene, over = quick_scene, threading.Event()
    program = scene.program(HONEST, "thesis", 600)
    assert program.hear()["error"] is None
    greedy = [scene.program(ATTACKER, f"greedy-{number}", 600) for number in range(4)]

    def compute(told):
        assert told.hear()["error"] is None
        while not over.wait(1.2):
            assert told.ask("use") | {"took_s": 0} == FINE

    def served():
        log = scene.machine.controller_log()
        return log.count(f"resume uid-{ATTACKER}/") + log.count(f"to uid-{ATTACKER}/")

    threads = [threading.Thread(target=compute, args=[told]) for told in greedy]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            wait_until(lambda: len(scene.machine.ask("GET", "/node")[1]["queue"]) >= len(greedy) - 1)
            before = served()
            assert program.ask("use") | {"took_s": 0} == FINE
            assert served() - before <= 2
    finally:
        over.set()
        for thread in threads:
            thread.join()

"""An attacker who takes more than a share of the GPU, or room without using it, keeps no other user from it."""

from __future__ import annotations

import threading

import pytest
from scene import ATTACKER, HONEST, scene_on


@pytest.mark.long
def test_a_kernel_comes_back_while_another_users_processes_reserve_the_gpu_and_never_take_it(
    scene, wait_until
):
    program = scene.program(HONEST, "thesis", 50)
    assert program.is_well()
    scene.park("thesis")
    with scene.attack("reserving"):
        wait_until(lambda: f"resume uid-{ATTACKER}/" in scene.machine.controller_log())
        for _ in range(2):
            assert program.uses_gpu()
            scene.park("thesis")
        wait_until(lambda: "did not take the GPU memory" in scene.machine.controller_log())


@pytest.fixture
def quick_scene(gpu_machine):
    """A scene in which a kernel that pauses for a moment yields."""
    gpu_machine.simulate(memory="512MiB")
    gpu_machine.environment["AFFINODE_SIM_CONTEXT"] = "16MiB"
    with scene_on(gpu_machine, "--NodeController.contended_idle_timeout_s=0.3") as made:
        yield made


@pytest.mark.long  # thirty seconds
def test_a_kernel_used_for_a_moment_now_and_then_keeps_no_other_user_from_the_gpu(quick_scene):
    scene, over = quick_scene, threading.Event()
    program = scene.program(HONEST, "thesis", 300)
    assert program.is_well()
    beats = scene.program(ATTACKER, "beats", 300)
    assert beats.is_well()

    def beat():
        """Never pause for longer than two seconds."""
        while not over.wait(2.0):
            assert beats.uses_gpu()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        for _ in range(3):
            assert program.uses_gpu()
    finally:
        over.set()
        thread.join()


@pytest.mark.long  # its rounds count only on a machine that has nothing else to do
def test_another_users_kernels_keep_a_waiter_waiting_for_one_turn(quick_scene, wait_until):
    """And for the one that began before: all four had asked for the GPU earlier."""
    scene, over = quick_scene, threading.Event()
    program = scene.program(HONEST, "thesis", 300)
    assert program.is_well()
    greedy = {}
    for number in range(4):  # one after the other, so that none takes room that another was granted
        greedy[f"greedy-{number}"] = scene.program(ATTACKER, f"greedy-{number}", 300)
        assert greedy[f"greedy-{number}"].is_well()

    def compute(kernel_id, told):
        """Ask for the GPU again as soon as it was taken."""
        while not over.wait(0.3):
            if scene.attacker.ask("GET", f"/kernels/{kernel_id}")[1]["residency"] == "parked":
                assert told.uses_gpu()

    def residency():
        return scene.honest.ask("GET", "/kernels/thesis")[1]["residency"]

    def is_quick(said):
        """Whether no move failed or came to nothing since the log said so much: its kernel may lose its turn then."""
        return " W " not in scene.machine.controller_log()[said:]

    threads = [threading.Thread(target=compute, args=each) for each in greedy.items()]
    for thread in threads:
        thread.start()
    rounds = 0
    try:
        for _ in range(4):
            began = len(scene.machine.controller_log())
            wait_until(lambda: residency() == "parked")
            wait_until(lambda: len(scene.machine.ask("GET", "/node")[1]["queue"]) >= len(greedy) - 1)
            program.tell("use")
            wait_until(lambda: residency() != "parked")
            said = len(scene.machine.controller_log())
            assert program.is_well()
            log, is_later, _ = scene.machine.controller_log()[said:].partition(f"resume uid-{HONEST}/thesis")
            if is_quick(began):
                rounds += 1
                assert not is_later or log.count(f"resume uid-{ATTACKER}/") <= 2, log
            if rounds == 2:
                break
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if not rounds:
        pytest.skip("in each round a move failed or took too long: this machine is too busy to tell")

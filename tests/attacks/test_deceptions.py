"""An attacker who forges, lies or lies in wait neither misleads an administrator nor takes what others need."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from people import command_of
from scene import ATTACKER, HERE, HONEST, Told, scene_on

from jupyter_affinode import environment
from jupyter_affinode.client.grant_signing import make_keys
from jupyter_affinode.node.api.handler import REFUSED_AFTER_S
from jupyter_affinode.printable import UNPRINTABLE

LOG_LINE = re.compile(r"(?!2026-01-01 )\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z] ")
LOT_BYTES = 64 << 20


def test_no_text_of_a_user_forges_a_line_of_the_log_or_reaches_a_terminal(scene, wait_until):
    with scene.attack("unprintable") as said:
        assert {status for statuses in said["statuses"] for status in statuses} == {400}
        wait_until(lambda: scene.machine.controller_log().count("forged") > 20)
        for command in ("status", "clean"):
            shown = scene.machine.affinode(command)
            assert shown.returncode == 0, shown.stderr
            assert not UNPRINTABLE.search(shown.stdout.replace("\n", "")), shown.stdout
            assert ("forged" in shown.stdout) == (command == "status")
        log = (scene.machine.folder / "controller.log").read_bytes().decode()
        assert [line for line in log.splitlines() if not LOG_LINE.match(line)] == []
        assert not UNPRINTABLE.search(log.replace("\n", ""))
        scene.bystander.wait_for(10)


@pytest.fixture
def lending_scene(gpu_machine):
    """A scene in which one lot may be lent."""
    lends = f"--NodeController.lot_bytes={LOT_BYTES}"
    with scene_on(gpu_machine, lends, "--park-when=idle", "--idle-timeout=0.1") as made:
        yield made


@pytest.mark.long
def test_one_user_is_lent_no_more_host_memory_than_there_is_to_lend(lending_scene, wait_until):
    scene = lending_scene

    def lots():
        return scene.machine.node()["host"]["lots"]

    with scene.attack("taking_lots") as said:
        assert (said["handed"], said["lied"], said["kept"]) == (3, 3, 1)
        assert said["held"] <= LOT_BYTES
        scene.bystander.wait_for(10)
        assert (lots()["ready_bytes"], lots()["given_bytes"]) == (0, LOT_BYTES)
    wait_until(lambda: lots()["ready_bytes"] == LOT_BYTES, message="what it held is there for others")


@pytest.fixture
def granting_scene(gpu_machine):
    """A scene whose controller looks at grants, and knows no key."""
    keys = gpu_machine.folder / "keys"
    keys.mkdir()
    (keys / "hub.pem").write_bytes(make_keys()[1])
    with scene_on(gpu_machine, f"--NodeController.grant_keys={keys}") as made:
        yield made


@pytest.mark.long  # several seconds
def test_refusals_are_not_to_be_had_faster_than_one_a_second(granting_scene):
    scene = granting_scene
    with scene.attack("asking_refused") as said:
        for refused in (said["forged"], said["often"]):
            assert sum(refused["counts"]) > 0
            assert max(refused["counts"]) <= refused["within_s"] / REFUSED_AFTER_S, refused
        scene.bystander.wait_for(20)


@pytest.mark.long  # several seconds
def test_a_stopped_process_that_fills_the_gpu_is_shown_and_an_administrator_ends_it(scene, wait_until):
    filling = scene.program(ATTACKER, "filling", 600)
    assert filling.is_well()
    stuck = f"uid-{ATTACKER}/filling"
    # Its shim says HELLO, and is looked at, from time to time.
    wait_until(lambda: scene.machine.kernels().get(stuck, {}).get("resident_bytes"))
    os.kill(filling.process.pid, signal.SIGSTOP)
    program = scene.program(HONEST, "thesis", 600)
    wait_until(lambda: "it is stopped and holds" in scene.machine.affinode("clean").stdout)
    # It may not have come so far as to be known.
    assert scene.honest.ask("GET", "/kernels/thesis")[1].get("residency") != "resident"
    refused = scene.honest.ask("POST", f"/kernels/{stuck.replace('/', '%2F')}/end", {"process": 1})
    assert refused[0] == 404
    scene.bystander.wait_for(10)
    ended = scene.machine.affinode("clean", stuck)
    assert "ended: it is stopped and holds" in ended.stdout, ended.stderr
    assert program.is_well()
    assert filling.process.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.long
def test_a_users_own_controller_lives_on_whatever_another_user_puts_in_its_place(scene):
    if environment.listens(environment.NODE_SOCKET):
        pytest.skip("this machine has a controller of its own")
    environ = scene.environment_of(HONEST)
    for name in ("AFFINODE_SOCKET", "AFFINODE_FOLDER", "AFFINODE_SIM"):
        environ.pop(name)
    command = command_of(HONEST, sys.executable, str(HERE / "own_controller.py"), starts_others=True)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    looking = Told(scene.machine.start(*command, env=environ, cwd="/", **pipes))
    with scene.attack("taking_folder", str(HONEST), "folder"):
        first = looking.ask("look")
        assert first["socket"].startswith(environ["HOME"])
        scene.bystander.wait_for(10)
    assert looking.ask("look") == first
    for way in ("link", "file", "fifo", "folder"):
        with scene.attack("taking_folder", str(HONEST), way):
            assert looking.ask("look") == first
    looking.end()

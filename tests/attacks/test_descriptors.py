"""Descriptors that an attacker passes delay no other user, whatever their close does, and none is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scene import HONEST, PATIENCE_S, PROGRAMS, scene_on

RECEIVER_CLOSES_FIRST = """
import socket
import attacking

class HungUp:
    def sendmsg(self, *message):
        ours, theirs = socket.socketpair()
        ours.sendmsg(*message)
        theirs.close()

attacking.INTERRUPT_EVERY_S = 0.001  # also while Python ends
attacking.Lingering().give(HungUp(), b"x", 2)
"""


@pytest.fixture(
    params=[pytest.param(False, id="this-linux"), pytest.param(True, id="old-linux", marks=pytest.mark.long)]
)
def any_scene(gpu_machine, request):
    """A scene on this Linux, and as on one that cannot refuse descriptors."""
    with scene_on(gpu_machine, old_linux=request.param) as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize("attack", ["lingering_on_link", "lingering_on_api"])
def test_a_bystander_is_answered_while_descriptors_linger(any_scene, attack, wait_until):
    before = any_scene.descriptors()
    with any_scene.attack(attack):
        any_scene.bystander.wait_for(20)
    wait_until(lambda: any_scene.descriptors() <= before + 2, message="no descriptor is left behind")


def test_an_attacker_goes_on_where_the_receiver_closed_first(tmp_path):
    command = [sys.executable, "-c", RECEIVER_CLOSES_FIRST, str(tmp_path)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(PROGRAMS)}, check=True, timeout=PATIENCE_S)


def abstract_sockets(pid):
    """The names of a process's abstract sockets."""
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link.strip("socket:[]") for link in links if link.startswith("socket:")}
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return [row[7][1:] for row in rows if row[6] in inodes and len(row) > 7 and row[7].startswith("@")]


@pytest.mark.long
def test_a_users_kernel_parks_and_resumes_while_descriptors_linger_on_its_own_socket(any_scene):
    program = any_scene.program(HONEST, "thesis", 200)
    program.hear()
    assert program.ask("export")["error"] is None
    assert program.ask("allocate 100")["error"] is None
    names = abstract_sockets(program.process.pid)
    assert names
    with any_scene.attack("lingering_on_ipc", *names):
        for _ in range(2):
            any_scene.park("thesis")
            assert program.uses_gpu()

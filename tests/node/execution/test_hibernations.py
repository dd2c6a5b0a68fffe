"""Kernels that hibernate, as the controller sees them: asked, written, told, woken."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import threading
import time
from uuid import UUID

import pytest
from fake_shim import (
    CONTEXT_DEPTH,
    GPU,
    HIBERNATE,
    NOTHING,
    OK,
    PARKED,
    REFUSED,
    RESIDENT,
    RESUME,
    FakePage,
    FakeShim,
)
from live_machine import Machine
from waiting import wait_until

from jupyter_affinode.client.errors import ControllerRefused
from jupyter_affinode.client.kernel_messages import KernelMessages
from jupyter_affinode.node.execution import hibernations
from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.ledger import writer
from jupyter_affinode.node.metrics.history_options import HistoryOptions
from jupyter_affinode.node.policy.resources import disk
from jupyter_affinode.node.state import registry
from jupyter_affinode.node.state.records import kernel as kernel_record
from jupyter_affinode.settings.policy import GIB, MIB

IMAGE = 3 * GIB


@pytest.fixture
def messages(machine):
    """What a server, or a keeper, says of the kernel."""
    return KernelMessages("k", machine.socket)


def seen(machine: Machine, *names: str):
    kernel = machine.kernel("k")
    return None if kernel is None else tuple(kernel[name] for name in names)


def left(machine, shim, messages, folder) -> FakeShim:
    """A parked kernel whose processes have left for an image."""
    fake = shim("k", parked=5 * MIB)
    messages.describe(name="work.ipynb", server="s", hibernate_after_s=0)
    assert messages.hibernate(folder) == 1
    wait_until(lambda: fake.heard.ended)
    return fake


def test_a_kernel_is_hibernated_from_the_moment_its_processes_leave_until_one_connects(
    node, machine, shim, messages, tmp_path
):
    node()
    fake = left(machine, shim, messages, tmp_path)
    assert seen(machine, "residency", "text", "image_bytes") == ("hibernated", "Hibernating", None)
    fake.close()
    messages.describe(hibernated_bytes=IMAGE)
    words = "Hibernated, 3 GiB on disk"
    assert seen(machine, "residency", "text", "image_bytes") == ("hibernated", words, IMAGE)
    assert seen(machine, "parked_bytes", "disk_bytes", "resident_bytes") == (5 * MIB, 5 * MIB, 0)
    assert machine.node()["host"]["parked_bytes"] == 0
    woken = shim("k", parked=5 * MIB)
    assert seen(machine, "residency", "image_bytes") == ("parked", None)
    messages.describe(hibernated_bytes=IMAGE)  # said too late
    woken.touch()
    # Its page says so a moment before its reply, until which it keeps its place in the queue.
    wait_until(lambda: seen(machine, "residency", "image_bytes") == ("resident", None))


def test_what_a_hibernated_kernel_gave_back_of_gpus_goes_on_counting(
    node, machine, shim, messages, tmp_path, monkeypatch
):
    monkeypatch.setattr(registry, "HUNG_UP_FORGOTTEN_S", 0.5)
    monkeypatch.setattr(writer, "CLOSE_WAIT_S", 30.0)
    history = HistoryOptions(machine.socket.with_name("ledger.sqlite"))
    node(history=history)
    left(machine, shim, messages, tmp_path).close()
    messages.describe(hibernated_bytes=IMAGE)
    controller = node.running[-1]._controller

    def figure(name):
        lines = controller.metrics.text().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    wait_until(lambda: not machine.kernel("k")["processes"])
    assert figure('affinode_kernels{residency="hibernated"}') == 1
    assert figure("affinode_image_bytes") == IMAGE
    assert figure('affinode_hibernations_total{outcome="ok"}') == 1
    before = figure("affinode_gpu_memory_byte_seconds_total")

    def has_grown():
        messages.describe(hibernated_bytes=IMAGE)
        return figure("affinode_gpu_memory_byte_seconds_total") >= before + 5 * MIB

    wait_until(has_grown)
    node.stop()
    with contextlib.closing(sqlite3.connect(machine.socket.with_name("ledger.sqlite"))) as ledger:
        assert [kind for (kind,) in ledger.execute("SELECT kind FROM events")] == ["hibernation"]
        assert ledger.execute("SELECT ended FROM kernels").fetchall() == [(None,)]


@pytest.fixture
def told_for(monkeypatch):
    """For how long a telling lasts."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(kernel_record, "HIBERNATED_TOLD_S", seconds)

    return set_to


def given_back(node) -> float:
    """Bytes times seconds that kernels gave back so far."""
    lines = node.running[-1]._controller.metrics.text().decode().splitlines()
    named = (line for line in lines if line.startswith("affinode_gpu_memory_byte_seconds_total"))
    return sum(float(line.split()[-1]) for line in named if 'use="given_back"' in line)


def test_a_hibernated_kernel_that_no_program_tells_of_any_more_is_forgotten(
    node, machine, shim, messages, tmp_path, monkeypatch, told_for
):
    """It woke on another machine, or its image was deleted there. It gave GPU memory back until it was told of last."""
    monkeypatch.setattr(registry, "HUNG_UP_FORGOTTEN_S", 0.2)
    monkeypatch.setattr(writer, "CLOSE_WAIT_S", 30.0)
    told_for(3.0)
    node(history=HistoryOptions(machine.socket.with_name("ledger.sqlite")))
    left(machine, shim, messages, tmp_path).close()
    left_at = time.monotonic()
    before = given_back(node)
    messages.describe(hibernated_bytes=IMAGE)
    told_at, told_wall = time.monotonic(), time.time()
    assert seen(machine, "residency", "image_bytes") == ("hibernated", IMAGE)
    wait_until(lambda: machine.kernel("k") is None)
    assert time.monotonic() - told_at >= 3.0
    lines = node.running[-1]._controller.metrics.text().decode().splitlines()
    assert [line for line in lines if 'residency="hibernated"' in line and not line.endswith(" 0.0")] == []
    assert "affinode_image_bytes 0.0" in lines
    assert given_back(node) - before <= 5 * MIB * (told_at - left_at + 1.0)
    wait_until(lambda: not node.running[-1]._controller.history._began)
    node.stop()
    with contextlib.closing(sqlite3.connect(machine.socket.with_name("ledger.sqlite"))) as ledger:
        (gone,) = ledger.execute("SELECT at FROM events WHERE kind = 'gone'").fetchone()
        (ended,) = ledger.execute("SELECT ended FROM kernels").fetchone()
    assert max(gone, ended) <= told_wall + 0.1


def test_a_hibernated_kernel_is_known_for_as_long_as_it_is_told_of(
    node, machine, shim, messages, tmp_path, told_for
):
    told_for(3.0)
    node(history=HistoryOptions(machine.socket.with_name("ledger.sqlite")))
    left(machine, shim, messages, tmp_path).close()
    before, until = given_back(node), time.monotonic() + 7.0
    while time.monotonic() < until:
        messages.describe(hibernated_bytes=IMAGE)
        time.sleep(0.1)
        assert seen(machine, "residency", "parked_bytes") == ("hibernated", 5 * MIB)
    wait_until(lambda: given_back(node) - before >= 5 * MIB * 5.0)


def test_what_a_kernel_gave_back_counts_until_it_wakes(node, machine, shim, messages, tmp_path):
    node(history=HistoryOptions(machine.socket.with_name("ledger.sqlite")))
    left(machine, shim, messages, tmp_path).close()
    messages.describe(hibernated_bytes=IMAGE)
    until = time.monotonic() + 3.0
    before = given_back(node)
    wait_until(lambda: time.monotonic() > until)
    assert given_back(node) - before <= 5 * MIB * 2.0
    shim("k", parked=5 * MIB)
    wait_until(lambda: given_back(node) - before >= 5 * MIB * 2.5)


def test_what_an_earlier_controller_knew_of_a_hibernated_kernel_is_forgotten_unless_it_is_told_of(
    node, machine, shim, messages, tmp_path, births, told_for
):
    node()
    left(machine, shim, messages, tmp_path).close()
    messages.describe(hibernated_bytes=IMAGE)
    node.stop()
    told_for(1.0)
    node()
    messages.describe(
        name="work.ipynb"
    )  # of the kernel, and nothing of an image; perhaps after it was forgotten
    wait_until(lambda: (machine.kernel("k") or {"residency": None})["residency"] != "hibernated")


def test_processes_that_come_back_from_an_image_that_failed_are_parked_as_before(
    node, machine, shim, messages, tmp_path
):
    node()
    left(machine, shim, messages, tmp_path).reconnect()
    wait_until(lambda: seen(machine, "residency") == ("parked",))


def test_a_hibernated_kernel_is_known_after_its_keeper_ends_and_told_again_to_the_next_controller(
    node, machine, shim, messages, tmp_path, births
):
    """What it had of each GPU no keeper knows; the controller remembers that."""
    node()
    left(machine, shim, messages, tmp_path).close()
    told = "messages.describe(name='work.ipynb', server='s', hibernated_bytes=3 << 30)"
    keeper = machine.start(
        sys.executable,
        "-c",
        "import sys; from pathlib import Path\n"
        "from jupyter_affinode.client.kernel_messages import KernelMessages\n"
        f"messages = KernelMessages('k', Path({str(machine.socket)!r})); {told}",
    )
    assert keeper.wait(60) == 0
    wait_until(lambda: seen(machine, "residency", "image_bytes") == ("hibernated", IMAGE))
    time_of_two_passes = time.monotonic() + 0.6
    wait_until(lambda: time.monotonic() > time_of_two_passes)
    assert seen(machine, "residency", "name") == ("hibernated", "work.ipynb")
    node.stop()
    node()
    assert seen(machine, "residency") is None
    messages.describe(name="work.ipynb", server="s", hibernated_bytes=IMAGE)
    assert seen(machine, "residency", "parked_bytes") == ("hibernated", 5 * MIB)


def test_a_process_that_ends_while_it_is_written_is_not_waited_for(node, machine, shim, messages, tmp_path):
    node()
    fake = shim("k", parked=5 * MIB)
    fake.on_command = lambda command: fake.hang_up() if command.kind == HIBERNATE else None
    with pytest.raises(ControllerRefused, match="did not answer in time"):
        messages.hibernate(tmp_path)


@pytest.mark.parametrize("status", [NOTHING, OK])
def test_a_kernel_with_nothing_that_can_be_moved_hibernates(node, machine, shim, messages, tmp_path, status):
    """It has a context, and small allocations at most; also where one of its processes can be parked."""
    node()
    if status == OK:
        shim("k", resident=5 * MIB)
    fake = shim("k", park_status=NOTHING)
    fake.page.memory[GPU][2] = MIB
    fake.become(RESIDENT)
    messages.describe(name="work.ipynb", server="s", hibernate_after_s=0)
    assert messages.hibernate(tmp_path) == (2 if status == OK else 1)
    wait_until(lambda: fake.heard.ended)
    assert seen(machine, "residency") == ("hibernated",)


def test_a_kernel_that_was_moved_elsewhere_meanwhile_hibernates_again(node, machine, messages, tmp_path):
    """Its processes have not used CUDA, so none of them says that it was woken."""
    node()
    messages.describe(name="work.ipynb", server="s", hibernate_after_s=0, hibernated_bytes=IMAGE)
    assert seen(machine, "residency") == ("hibernated",)
    assert messages.hibernate(tmp_path) == 0


def test_a_context_that_comes_back_with_no_memory_has_room_reserved_on_its_own_gpu(
    node, machine, shim, wait_until
):
    other = bytes(range(16, 32))
    page = FakePage()
    page.memory = {GPU: [0, 0, 0], other: [0, 0, 0]}
    page.state, page.host[5], page.context_bytes, page.context_gpu = PARKED, CONTEXT_DEPTH, 600 * MIB, 2
    page.write()
    node()
    fake = shim("k", page=page, answers=False)
    fake.touch()
    wait_until(lambda: fake.heard.of(RESUME))
    reserved = node.running[-1]._controller.state.reservations.entries
    assert [(entry.gpu, entry.bytes) for entry in reserved] == [(f"GPU-{UUID(bytes=other)}", 2 * GIB)]


def test_a_kernel_that_refuses_stays_parked(node, machine, shim, messages, tmp_path):
    node()
    shim("k", parked=5 * MIB).hibernate_status = REFUSED
    with pytest.raises(ControllerRefused, match="it is a fake"):
        messages.hibernate(tmp_path)
    assert seen(machine, "residency") == ("parked",)


@pytest.fixture
def soon(monkeypatch):
    """Kernels hibernate a moment after they were parked, and have that moment to begin."""
    monkeypatch.setattr(disk, "LEAST_AWAKE_S", 0.0)
    monkeypatch.setattr(hibernations, "BEGINS_WITHIN_S", 1.0)


def test_a_kernel_is_asked_to_hibernate_until_it_has_or_is_used(
    node, machine, shim, messages, tmp_path, soon, monkeypatch
):
    monkeypatch.setattr(hibernations, "BEGINS_WITHIN_S", 600.0)
    node()
    fake = shim("k", parked=5 * MIB)
    messages.describe(name="work.ipynb", server="s", hibernate_after_s=0.1)
    wait_until(lambda: seen(machine, "hibernate_asked") == ("it was parked for long",))
    fake.touch()
    wait_until(lambda: seen(machine, "hibernate_asked", "residency") == (None, "resident"))


def test_what_a_server_does_not_begin_or_refuses_is_not_asked_again_for_a_while(
    node, machine, shim, messages, soon, monkeypatch
):
    node()
    shim("k", parked=5 * MIB)
    messages.describe(name="work.ipynb", server="s", hibernate_after_s=0.1)
    wait_until(lambda: "k is to hibernate" in machine.controller_log())  # it is shown for a second alone
    wait_until(lambda: seen(machine, "hibernate_asked") == (None,))
    assert "its server did not begin" in machine.controller_log()
    monkeypatch.setattr(hibernations, "BEGINS_WITHIN_S", 600.0)
    shim("l", parked=5 * MIB)
    other = KernelMessages("l", machine.socket)
    other.describe(name="l.ipynb", server="s", hibernate_after_s=0.1)
    wait_until(lambda: machine.kernel("l")["hibernate_asked"] is not None)
    other.refuse_to_hibernate("it uses io_uring")
    assert machine.kernel("l")["hibernate_asked"] is None
    assert "it uses io_uring" in machine.controller_log()


def test_a_controller_that_is_told_to_end_has_kernels_hibernate_at_once_and_waits_for_them(
    machine, shim, tmp_path
):
    controller = machine.start_controller("--hibernate-at-end=20", "--settle=0.1")
    fakes = {name: shim(name, parked=5 * MIB) for name in ("k", "l", "m")}
    talk = {name: KernelMessages(name, machine.socket) for name in fakes}
    for name in ("k", "l"):
        talk[name].describe(name=name, server="s", hibernate_after_s=0)
    talk["m"].describe(name="m", server="s")
    os.kill(controller.pid, signal.SIGTERM)
    wait_until(lambda: all(machine.kernel(name)["hibernate_asked"] == "the machine stops" for name in "kl"))
    assert machine.kernel("m")["hibernate_asked"] is None

    def hibernate(name):
        talk[name].hibernate(tmp_path)
        fakes[name].close()
        talk[name].describe(hibernated_bytes=IMAGE)

    threads = [threading.Thread(target=hibernate, args=(name,)) for name in "kl"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert controller.wait(30) == 0
    assert "the controller ends: 2 kernels are hibernated" in machine.controller_log()


@pytest.fixture
def alice_and_bob(node, shared_machine, person):
    """Two users of a machine's controller; Alice has a parked kernel."""
    node(access=EveryUserAccess())
    alice, bob = person(61001), person(61002)
    alice.shim("k", parked=5 * MIB)
    return alice, bob


def test_only_its_user_has_a_kernel_write_an_image(alice_and_bob, person, tmp_path, wait_until):
    alice, bob = alice_and_bob
    body = {"folder": str(tmp_path)}
    assert bob.ask("POST", "/kernels/k/hibernate", body)[0] == 404
    status, answer = person(0).ask("POST", "/kernels/uid-61001%2Fk/hibernate", body)
    assert (status, answer["error"]) == (403, "forbidden")
    for folder in ("images", "/" + "é" * 100, "/a\nb"):  # the shim takes a path of so many bytes, and logs it
        assert alice.ask("POST", "/kernels/k/hibernate", {"folder": folder})[0] == 400
    assert alice.ask("POST", "/kernels/k/hibernate", body)[0] == 200
    wait_until(lambda: alice.kernels()["k"]["residency"] == "hibernated")
    assert bob.ask("GET", "/node")[1]["others"]["parked_bytes"] == 0


def test_a_user_whose_kernels_say_that_they_hibernate_and_do_not_is_not_waited_for_again(
    alice_and_bob, node, soon
):
    """As one whose spills give nothing back: its kernels are not counted on, for longer each time."""
    alice, _ = alice_and_bob
    state = node.running[-1]._controller.state
    alice.ask("PUT", "/kernels/k", {"name": "n", "server": "s", "hibernate_after_s": 0.1})
    wait_until(lambda: state.failed_spills.until("uid-61001") > time.monotonic() + 30)
    assert alice.kernels()["k"]["hibernate_asked"] is None

"""Room asked for before a kernel needs it: idle kernels make it, nothing is reserved, and it ends with its client."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import json
import os
import re
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from api_answers import DOCUMENT
from fake_nvml import UUID, FakeNvml, FilledNvml
from fake_shim import GPU, MIB, PARK, RESIDENT, ROOM_ANSWER, ROOM_END, notify
from jsonschema import Draft202012Validator
from live_machine import UnixConnection
from people import Person

from jupyter_affinode.client.api import ControllerClient
from jupyter_affinode.node.identity.access import EveryUserAccess

TOTAL = 1024 * MIB
ALICE, BOB, CAROL = 61001, 61002, 61003
SCHEMA = Draft202012Validator({"$ref": "#/components/schemas/Room", "components": DOCUMENT["components"]})


class Asking:
    """A request for room on a connection of its own; its lines as they come."""

    def __init__(self, path, being=contextlib.nullcontext, **body):
        self._connection = UnixConnection(path, timeout=60)
        with being():
            self._connection.connect()
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/api/v1/room", json.dumps(body), headers)
        self.lines: list = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        with contextlib.suppress(OSError), self._connection.getresponse() as answer:
            while line := answer.readline():
                SCHEMA.validate(json.loads(line))
                self.lines.append(json.loads(line))
        self._connection.close()

    def last(self):
        """The last line, once there is no more."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.lines[-1]

    def hang_up(self):
        """Close the connection."""
        with contextlib.suppress(OSError, AttributeError):  # it may have ended
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)


@pytest.fixture
def gpus():
    return FilledNvml(TOTAL, pids={os.getpid()})


@pytest.fixture
def ours(shim, gpus):
    """`ours("k", resident=…)`: a process whose memory NVML shows."""

    def make(*arguments, **options):
        gpus.shims.append(shim(*arguments, **options))
        return gpus.shims[-1]

    return make


@pytest.fixture
def ask(machine):
    """`ask(bytes=…)`: a request for room; all hang up at the end."""
    asked = []

    def make(**body):
        asked.append(Asking(machine.socket, **body))
        return asked[-1]

    yield make
    for each in asked:
        each.hang_up()


def test_idle_kernels_are_parked_and_nothing_is_reserved(node, gpus, ours, ask):
    machine = node(nvml=gpus, contended_idle_timeout_s=0.1)
    idle = ours("idle", resident=900 * MIB)
    asked = ask(bytes=500 * MIB, timeout_s=60)
    last = asked.last()
    text = "there is room for 500 MiB, 1 idle kernel was freed"
    assert (last["state"], last["text"], last["code"]) == ("done", text, "")
    (command,) = idle.heard.of(PARK)
    assert command.reason == "room for 500 MiB"
    again = ask(bytes=900 * MIB, timeout_s=60)  # all that the first was told of is there for the next
    assert again.last()["state"] == "done"
    assert machine.node()["queue"] == []


def test_while_kernels_are_parked_that_is_told(node, gpus, ours, ask, wait_until):
    node(nvml=gpus, contended_idle_timeout_s=0.1)
    idle = ours("idle", resident=900 * MIB)
    idle.answers = False
    asked = ask(bytes=500 * MIB, timeout_s=60)
    told = "1 idle kernel is being freed: 900 MiB"
    wait_until(lambda: told in [line["text"] for line in asked.lines])
    idle._carry_out(idle.heard.of(PARK)[-1])
    assert asked.last()["state"] == "done"


def test_a_kernel_at_work_stays_and_the_request_ends_at_its_time(node, gpus, ours, ask):
    machine = node(nvml=gpus, when_full="time_slice", time_slice_s=0.1)
    busy = ours("busy", resident=900 * MIB, busy=True)
    assert machine.ask("PUT", "/kernels/busy", {"path": "work/train.ipynb"})[0] == 200
    last = ask(bytes=500 * MIB, timeout_s=1.5).last()
    assert (last["state"], last["code"]) == ("refused", "timeout")
    assert re.fullmatch(r"after [\d.]+ s, train\.ipynb is computing", last["text"])
    assert "train.ipynb" not in machine.controller_log()
    assert not busy.heard.of(PARK)
    assert busy.state == RESIDENT
    assert machine.node()["queue"] == []


def test_hanging_up_withdraws_the_request(node, gpus, ours, ask, wait_until):
    machine = node(nvml=gpus)
    gpus.foreign[UUID] = TOTAL - 10 * MIB
    ours("busy", resident=500 * MIB, busy=True)
    asked = ask(bytes=400 * MIB, timeout_s=600)
    wait_until(lambda: machine.node()["queue"] == ["a server that starts"])
    asked.hang_up()
    wait_until(lambda: machine.node()["queue"] == [])


def test_what_can_never_fit_is_refused_at_once(node, gpus, ours, ask):
    node(nvml=gpus)
    ours("k", resident=100 * MIB)
    last = ask(bytes=2 * TOTAL, timeout_s=600).last()
    assert (last["state"], last["code"]) == ("refused", "too-large")
    assert "cannot become free" in last["text"]


def test_a_gpu_that_can_never_have_the_room_is_left_for_another(node, ours, gpus, ask, wait_until):
    gpus.foreign = {"GPU-foreign": TOTAL - 400 * MIB, UUID: 0}
    node(nvml=gpus, contended_idle_timeout_s=0.1)
    busy = ours("busy", resident=900 * MIB, busy=True)  # so that the other GPU is taken for the better one
    asked = ask(bytes=600 * MIB, timeout_s=60)
    wait_until(lambda: any("computing" in line["text"] for line in asked.lines))
    busy.page.calls_in_flight = 0
    busy.page.write()
    assert asked.last()["state"] == "done"
    assert busy.heard.of(PARK)


def test_without_any_gpu_it_is_refused(node, ask):
    node(nvml=FakeNvml({}))
    assert ask(bytes=MIB).last()["code"] == "no-gpu"


@pytest.mark.parametrize(
    "body",
    [{}, {"bytes": 0}, {"bytes": 1 << 61}, {"bytes": 1, "timeout_s": 601}, {"bytes": 1, "priority": 6}],
)
def test_what_is_no_request_is_answered_in_words(node, machine, body):
    node()
    status, answer = machine.ask("POST", "/room", body)
    assert (status, answer["error"]) == (400, "bad-request")


def test_the_client_yields_each_line_and_withdraws_when_it_is_closed(node, gpus, ours, wait_until):
    machine = node(nvml=gpus)
    ours("busy", resident=900 * MIB, busy=True)

    async def story():
        lines = ControllerClient(machine.socket).room(500 * MIB, timeout_s=600)
        line = await anext(lines)
        await lines.aclose()
        return line

    assert asyncio.run(story())["state"] == "waiting"
    wait_until(lambda: machine.node()["queue"] == [])


def test_the_command_prints_the_story_and_its_status_says_how_it_ended(node, gpus, ours):
    machine = node(nvml=gpus, contended_idle_timeout_s=0.1)
    ours("idle", resident=900 * MIB)
    done = machine.affinode("room", "500MiB", "--timeout", "60")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "There is room for 500 MiB, 1 idle kernel was freed"
    refused = machine.affinode("room", "2GiB")
    assert refused.returncode == 1
    assert "cannot become free" in refused.stderr
    assert machine.affinode("room", "20 pounds").returncode == 2


def test_the_command_says_that_no_controller_runs(machine):
    alone = machine.affinode("room", "1GiB")
    assert alone.returncode == 3
    assert "No GPU controller is running" in alone.stderr


# ---- several users


@pytest.fixture
def shared(node, shared_machine, person, gpus):
    """The controller of all users; `TOTAL` of its GPU is a busy kernel's of Carol's."""
    node(nvml=gpus, access=EveryUserAccess(), contended_idle_timeout_s=0.1)
    gpus.shims.append(person(CAROL).shim("busy", resident=TOTAL - 8 * MIB, busy=True))
    return shared_machine


def test_a_second_request_replaces_the_same_users_first_alone(shared, wait_until):
    alice, bob = Person(shared, ALICE), Person(shared, BOB)
    first = Asking(shared.socket, alice.being, bytes=500 * MIB, timeout_s=600)
    other = Asking(shared.socket, bob.being, bytes=500 * MIB, timeout_s=600)
    wait_until(lambda: len(alice.ask("GET", "/node")[1]["queue"]) == 2)
    second = Asking(shared.socket, alice.being, bytes=400 * MIB, timeout_s=600)
    assert first.last()["code"] == "replaced"
    wait_until(lambda: second.lines and second.lines[-1]["place"])
    assert other.lines[-1]["state"] == second.lines[-1]["state"] == "waiting"
    second.hang_up()
    other.hang_up()


def test_administrators_name_a_user_others_only_themselves(shared, wait_until):
    alice, root = Person(shared, ALICE), Person(shared, 0)
    own = Asking(shared.socket, alice.being, bytes=500 * MIB, user=str(ALICE), timeout_s=600)
    wait_until(lambda: own.lines)
    refused = alice.ask("POST", "/room", {"bytes": 1, "user": str(BOB)})
    assert (refused[0], refused[1]["error"]) == (403, "forbidden")
    names = [str(ALICE), str(BOB), "jupyter-not-made-yet", "hub:ana"]
    asked = [Asking(shared.socket, bytes=500 * MIB, user=name, timeout_s=600) for name in names]
    assert own.last()["code"] == "replaced"
    wait_until(lambda: len(root.ask("GET", "/node")[1]["queue"]) == 4)
    assert alice.ask("GET", "/node")[1]["queue"] == ["a server that starts"] * 4
    for each in asked:
        each.hang_up()
    wait_until(lambda: root.ask("GET", "/node")[1]["queue"] == [])


def test_the_kernel_in_the_way_is_named_to_its_own_user_alone(shared, wait_until):
    alice, carol = Person(shared, ALICE), Person(shared, CAROL)
    assert carol.ask("PUT", "/kernels/busy", {"path": "work/train.ipynb"})[0] == 200

    def is_told(text, *being, **whose):
        asked = Asking(shared.socket, *being, bytes=500 * MIB, timeout_s=600, **whose)
        wait_until(lambda: asked.lines and asked.lines[-1]["text"] == text)
        asked.hang_up()

    is_told("train.ipynb is computing", carol.being)
    is_told("train.ipynb is computing", user=str(CAROL))  # on the page of the spawn, which the Hub asks for
    is_told("another user's notebook is computing", alice.being)
    is_told("another user's notebook is computing", user=str(ALICE))


def test_an_administrator_raises_the_class_and_a_user_only_lowers_it(shared, wait_until):
    alice, bob = Person(shared, ALICE), Person(shared, BOB)
    first = Asking(shared.socket, bob.being, bytes=500 * MIB, timeout_s=600)
    wait_until(lambda: first.lines and first.lines[-1]["place"] == 1)
    raised = Asking(shared.socket, alice.being, bytes=500 * MIB, priority=5, timeout_s=600)
    wait_until(lambda: raised.lines and raised.lines[-1]["place"] == 2)
    by_root = Asking(shared.socket, bytes=500 * MIB, user=str(ALICE), priority=5, timeout_s=600)
    wait_until(lambda: by_root.lines and by_root.lines[-1]["place"] == 1)
    by_root.hang_up()
    first.hang_up()


# ---- room that is asked for and not used


@pytest.fixture
def neighbours(node, shared_machine, wait_until):
    """A machine that Alice's kernel fills while idle, and Bob; `neighbours.back()`: she has used it again."""
    gpus = FilledNvml(TOTAL)
    machine = node(nvml=gpus, access=EveryUserAccess(), contended_idle_timeout_s=0.05)
    alice, bob = Person(machine, ALICE), Person(machine, BOB)
    idle = alice.shim("idle", resident=900 * MIB)
    gpus.shims.append(idle)
    wait_until(lambda: machine.node()["gpus"] and machine.node()["gpus"][0]["used_bytes"] >= 900 * MIB)

    def parks():
        return len(idle.heard.of(PARK))

    def back():
        if idle.state != RESIDENT:
            idle.touch()
            wait_until(lambda: idle.state == RESIDENT)

    yield SimpleNamespace(machine=machine, gpus=gpus, bob=bob, parks=parks, back=back)
    alice.close()
    bob.close()


def parked_within(neighbours, attack, seconds):
    """How often Alice's kernel made way for what Bob asks for again and again."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        attack()
        neighbours.back()
    return neighbours.parks()


def test_room_that_a_user_asks_for_again_and_again_is_not_made_each_time(neighbours):
    def attack():
        asked = Asking(neighbours.machine.socket, neighbours.bob.being, bytes=500 * MIB, timeout_s=2)
        asked.last()

    assert 1 <= parked_within(neighbours, attack, 8.0) <= 4  # at once, and after 1, 2 and 4 seconds


@pytest.mark.parametrize("way", [pytest.param("answers", marks=pytest.mark.long), "cancels", "ends"])
def test_room_for_allocations_that_never_take_it_is_not_made_each_time(neighbours, way, wait_until):
    numbers = itertools.count(1)
    shims = [neighbours.bob.shim("greedy", resident=1 * MIB)]
    neighbours.gpus.shims.append(shims[0])

    def attack():
        number, before = next(numbers), neighbours.parks()
        shims[0].allocate(500 * MIB, number)
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline and neighbours.parks() == before:
            time.sleep(0.02)
        if way == "answers":  # it says that it has its answer, and takes nothing
            while time.monotonic() < deadline and not shims[0].heard.of(ROOM_ANSWER):
                time.sleep(0.02)
        if way == "ends":
            neighbours.gpus.shims.remove(shims[0])
            shims.pop().close()
            shims.append(neighbours.bob.shim(f"greedy-{number}", resident=1 * MIB))
            neighbours.gpus.shims.append(shims[0])
        else:
            shims[0].send(notify(ROOM_END, 500 * MIB, number=number))

    began = time.monotonic()
    # On a slow machine a pause may be forgotten before the next one begins, which is of one second again then.
    pauses = []
    while [round(lasts_s) for _, lasts_s in pauses[-3:]] != [1, 2, 4]:
        assert time.monotonic() - began < 120, pauses
        attack()
        neighbours.back()
        pauses = given_no_room(neighbours.machine)
    # How soon each is judged depends on NVML's next look, so there are some parks before each pause. In it is none.
    parks = parked_at(neighbours.machine)
    assert parks
    for at, lasts_s in pauses:
        assert not [park for park in parks if at < park < at + lasts_s], neighbours.machine.controller_log()


STAMP = r"^(\d+-\d+-\d+ \d+:\d+:\d+,\d+) \w+"


def given_no_room(machine):
    """The pauses of users whose kernels did not use their room: when each began, and how long it lasts, in seconds."""
    found = re.findall(
        rf"{STAMP} .*: its user's kernels are given no room for ([\d.]+) s$", machine.controller_log(), re.M
    )
    return [(seconds_of(stamp), float(lasts)) for stamp, lasts in found]


def parked_at(machine):
    """When Alice's kernel was told to park."""
    return [
        seconds_of(stamp)
        for stamp in re.findall(rf"{STAMP} park \S+/idle \(", machine.controller_log(), re.M)
    ]


def seconds_of(stamp):
    """A moment of the log."""
    return datetime.datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()


def test_a_user_who_uses_the_room_that_others_made_is_not_kept_waiting(neighbours, wait_until):
    user = neighbours.bob.shim("user", resident=1 * MIB)
    neighbours.gpus.shims.append(user)
    for number in range(1, 4):
        user.allocate(300 * MIB, number)
        wait_until(lambda count=number: len(user.heard.of(ROOM_ANSWER)) == count)
        user.allocated(300 * MIB, number)
        looks = neighbours.gpus.reads + 3  # at the third the controller knows what the first one saw
        wait_until(lambda looks=looks: neighbours.gpus.reads >= looks)
        with user._lock:
            user.page.memory[GPU][0] = 1 * MIB
            user.page.write()
        wait_until(lambda: neighbours.machine.node()["gpus"][0]["free_bytes"] >= 900 * MIB)
        neighbours.back()
    assert neighbours.parks() == 3
    assert "are given no room" not in neighbours.machine.controller_log()

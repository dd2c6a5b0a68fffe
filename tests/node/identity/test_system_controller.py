"""The machine's controller: several users on it, none of which can harm another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_shim import MIB, NO_GPU_ROOM, PARK, QUEUED, RESUME, WANT, notify
from live_machine import UnixConnection
from namespaces import needs_namespaces
from people import command_of

from jupyter_affinode.client.grant_signing import make_keys, sign_grant
from jupyter_affinode.node.api import report as api_report
from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.metrics.history_options import HistoryOptions

ALICE, BOB, CAROL, STAFF = 61001, 61002, 61003, 61100
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture
def daemon(shared_machine):
    """The machine's controller of all users, a process of its own."""
    machine = shared_machine
    machine.start_controller("--system", "--settle=0.1", patient=True)
    yield machine
    assert "Traceback" not in machine.controller_log(), machine.controller_log()
    assert "a pass failed" not in machine.controller_log()


@pytest.fixture
def two(node, shared_machine, person):
    """Alice and Bob, each with a kernel that both call k1; `STAFF` are the administrators."""
    history = HistoryOptions(shared_machine.socket.with_name("ledger.sqlite"))
    node(access=EveryUserAccess(admin_group=str(STAFF)), history=history)
    return with_kernels(person(ALICE), person(BOB))


def with_kernels(alice, bob):
    """Give each a kernel k1."""
    alice.shim("k1", resident=300 * MIB)
    bob.shim("k1", resident=200 * MIB)
    assert alice.ask("PUT", "/kernels/k1", {"name": "thesis", "path": "a/thesis.ipynb"})[0] == 200
    return alice, bob


def test_two_kernels_of_one_id_are_two_kernels_of_two_people(two):
    alice, bob = two
    assert alice.kernels()["k1"]["resident_bytes"] == 300 * MIB
    assert bob.kernels()["k1"]["resident_bytes"] == 200 * MIB
    assert bob.kernels()["k1"]["name"] == "fake"
    assert alice.ask("POST", "/kernels/k1/park", {})[0] == 200
    assert alice.shims[0].heard.of(PARK)
    assert not bob.shims[0].heard.of(PARK)
    assert bob.kernels()["k1"]["residency"] == "resident"


def test_of_others_a_person_sees_sums_and_nothing_else(two, wait_until):
    alice, bob = two
    alice.ask("POST", "/kernels/k1/park", {})
    shim = alice.shims[0]
    shim.resume_status = NO_GPU_ROOM
    shim.become(QUEUED)
    shim.send(notify(WANT))
    wait_until(lambda: bob.ask("GET", "/node")[1]["queue"])
    node = bob.ask("GET", "/node")[1]
    assert node["queue"] == ["another user"]
    assert node["others"] == {"kernels": 1, "resident_bytes": 0, "parked_bytes": 300 * MIB, "waiting": 1}
    assert alice.ask("GET", "/node")[1]["queue"] == ["k1"]


def test_administrators_see_and_move_every_users_kernels_by_name(two, person):
    everyone = {f"uid-{ALICE}/k1", f"uid-{BOB}/k1"}
    for admin in (person(0), person(CAROL, STAFF)):
        assert everyone == set(admin.kernels())
        assert {kernel["user"] for kernel in admin.kernels().values()} == {str(ALICE), str(BOB)}
        assert admin.ask("POST", f"/kernels/uid-{ALICE}%2Fk1/hold", {"duration_s": 60})[0] == 200
        assert admin.ask("PATCH", "/policy", {"idle_timeout_s": 77})[0] == 200
    assert two[0].kernels()["k1"]["held_for_s"] > 0
    assert person(CAROL).kernels() == {}
    assert person(CAROL).ask("PATCH", "/policy", {"idle_timeout_s": 78})[0] == 403
    assert two[0].ask("GET", "/policy")[1]["idle_timeout_s"] == 77


def test_a_stream_of_events_tells_each_their_own(two):
    alice, bob = two
    connection = UnixConnection(bob.machine.socket, timeout=60)
    with bob.being():
        connection.connect()
    connection.request("GET", "/api/v1/events")
    stream = connection.getresponse()
    first = json.loads(stream.readline())
    assert [kernel["id"] for kernel in first["kernels"]] == ["k1"]
    alice.ask("PUT", "/kernels/secret", {"name": "hers"})
    alice.ask("POST", "/kernels/k1/park", {})
    alice.ask("DELETE", "/kernels/secret")
    bob.ask("PUT", "/kernels/last", {"name": "his"})
    seen = []
    while not any('"last"' in line for line in seen):
        seen.append(stream.readline().decode())
    connection.close()
    assert not any(word in line for line in seen for word in ("secret", "thesis", str(ALICE)))


def test_the_limit_on_one_users_kernels_leaves_other_users_alone(two):
    alice, bob = two
    statuses = [bob.ask("PUT", f"/kernels/k{number}", {})[0] for number in range(300)]
    assert statuses[:200] == [200] * 200
    assert statuses[-1] == 429
    assert alice.ask("PUT", "/kernels/new", {})[0] == 200


def test_no_kernel_is_lost_when_it_is_killed_and_started_again_at_any_moment(daemon, person, wait_until):
    alice, bob = with_kernels(person(ALICE), person(BOB))
    alice.ask("POST", "/kernels/k1/park", {})
    for _ in range(3 if os.environ.get("TEST_STRIDE") else 1):
        os.kill(daemon.controller_pid(), signal.SIGKILL)
        wait_until(lambda: alice.shims[-1].heard.ended and bob.shims[-1].heard.ended)
        daemon.start_controller("--system", "--settle=0.1", patient=True)
        states = alice.shims[-1], bob.shims[-1]
        alice.shim("k1", parked=300 * MIB)
        bob.shim("k1", resident=200 * MIB)
        assert alice.kernels()["k1"]["residency"] == "parked"
        assert bob.kernels()["k1"]["residency"] == "resident"
        assert states
    assert alice.ask("POST", "/kernels/k1/resume", {})[1]["residency"] == "resident"


# ---- the same attacks between Unix users, and between containers of one user


def talk(process, line):
    """One line to a victim, and its answer."""
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def run_attack(machine, start_victim, start_attacker, ids):
    """Everything that the attacker can do leaves the victim's kernel as it is, and served."""
    folder = str(machine.socket.parent)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    victim = start_victim([sys.executable, str(SUPPORT / "victim.py"), folder, "secret"], pipes)
    assert victim.stdout.readline().strip() == "ready"
    status, before = talk(victim, "GET /kernels/secret")
    assert status == 200
    attacker = start_attacker([sys.executable, str(SUPPORT / "attacker.py"), folder, "secret", *ids], pipes)
    done = json.loads(attacker.stdout.readline())
    print(f"seed {done['mutate']['seed']}")
    seen = done["look"]["text"]
    assert not [word for word in ("secret", "thesis", *ids[1:]) if word in seen]
    statuses = done["guess"]["statuses"]
    deleted = {path for path in statuses if path.startswith("delete ")}  # as if there were no such kernel
    assert {statuses[path] for path in deleted} <= {204, 404}, statuses
    assert {statuses[path] for path in statuses.keys() - deleted} == {404}, statuses
    assert done["guess"]["policy"] == 403
    assert talk(victim, "heard") == []
    status, after = talk(victim, "GET /kernels/secret")
    same = (
        "residency",
        "resident_bytes",
        "held_for_s",
        "name",
        "path",
        "tracked",
        "processes",
        "place",
        "refusal",
    )
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert json.loads(attacker.stdout.readline()) == {"flooding": True}
    assert talk(victim, "POST /kernels/secret/park {}")[1]["residency"] == "parked"
    assert talk(victim, "another") is True
    assert talk(victim, "POST /kernels/secret/resume {}")[1]["residency"] == "resident"
    assert attacker.poll() is None
    attacker.stdin.close()
    attacker.wait(timeout=60)
    assert talk(victim, "heard") == [PARK, RESUME]
    victim.stdin.close()
    victim.wait(timeout=60)


def test_two_unix_users_can_do_each_other_nothing(daemon):
    def start(uid):
        return lambda command, pipes: daemon.start(*command_of(uid, *command), **pipes)

    run_attack(daemon, start(ALICE), start(BOB), [f"uid-{ALICE}/secret", f"user-{ALICE}/secret"])


@pytest.mark.long
def test_two_containers_of_one_user_id_can_do_each_other_nothing(shared_machine, tmp_path):
    """Pid namespaces stand for containers; the user id says nothing, grants say everything."""
    machine = shared_machine
    needs_namespaces("unshare", "--pid", "--fork", "true")
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o755)
    private, public = make_keys()
    (keys / "hub.pem").write_bytes(public)
    machine.start_controller(
        "--system", "--settle=0.1", f"--grant-keys={keys}", "--require-grants",
        "--NodeController.grant_audiences=affinode:test",
    )  # fmt: skip
    container = ["unshare", "--pid", "--fork", "--kill-child", *command_of(61000)]

    def start(user):
        grant = sign_grant(private, "hub", user=user, audience="affinode:test")
        environ = {**machine.environment, "AFFINODE_GRANT": grant}
        return lambda command, pipes: machine.start(*container, *command, env=environ, **pipes)

    run_attack(machine, start("alice"), start("bob"), ["user-alice/secret", "uid-61000/secret"])
    ask = (
        "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; from live_machine import UnixConnection\n"
        "link = UnixConnection(Path(sys.argv[1])); link.request('GET', '/api/v1/kernels')\n"
        "print(link.getresponse().status)"
    )
    for words in (container, container[:4]):  # the last is root, in a container: no administrator
        asked = subprocess.run(
            [*words, sys.executable, "-c", ask, str(machine.socket), str(SUPPORT), str(SUPPORT.parents[1])],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert asked.stdout.strip() == "401"
    assert "Traceback" not in machine.controller_log(), machine.controller_log()


def test_a_report_has_ones_own_figures_and_an_administrators_has_all_users(two, person, wait_until):
    alice, bob = two
    assert alice.ask("POST", "/kernels/k1/park", {})[0] == 200
    carol = person(CAROL, STAFF)

    def users(who, query=""):
        status, answer = who.ask("GET", f"/report?by=user{query}")
        return {row["user"]: row["parks"] for row in answer["rows"]} if status == 200 else {}

    # What was measured may be written before the park.
    wait_until(lambda: users(carol).items() >= {str(ALICE): 1, str(BOB): 0}.items())
    assert users(alice) == {str(ALICE): 1}
    assert users(bob) == {str(BOB): 0}
    assert users(bob, f"&user={ALICE}") == users(bob, f"&user=uid-{ALICE}") == {}
    assert users(carol)[str(ALICE)] == 1


def test_a_user_who_reads_reports_all_the_time_keeps_no_other_from_theirs(
    node, shared_machine, person, monkeypatch, wait_until
):
    goes_on, began = threading.Event(), []

    def slow(path, question):
        began.append(question.only)
        assert goes_on.wait(60)
        return {}

    monkeypatch.setattr(api_report, "report", slow)
    options = HistoryOptions(shared_machine.socket.with_name("ledger.sqlite"))
    node(access=EveryUserAccess(), history=options)
    alice, bob = person(ALICE), person(BOB)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(alice.ask, "GET", "/report")
        wait_until(lambda: began)
        status, answer = pool.submit(alice.ask, "GET", "/report").result()
        assert (status, answer["message"][:7]) == (429, "you are")
        second = pool.submit(bob.ask, "GET", "/report")
        wait_until(lambda: len(began) == 2)
        goes_on.set()
        assert first.result()[0] == second.result()[0] == 200

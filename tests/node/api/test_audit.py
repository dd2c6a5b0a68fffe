"""What administrators do to other users' kernels and to the settings is remembered."""

from __future__ import annotations

import json
import os

import pytest
from api_answers import checked

from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.ledger import writer as ledger_module
from jupyter_affinode.node.metrics.history_options import HistoryOptions

ALICE = 61001


@pytest.fixture
def machine_of_all(node, shared_machine, person, monkeypatch):
    """A controller of all users that keeps a ledger, with one kernel of alice's."""
    monkeypatch.setattr(ledger_module, "FLUSH_EVENTS_EVERY_S", 0.0)
    path = shared_machine.folder / "history" / "ledger.sqlite"
    node(access=EveryUserAccess(), history=HistoryOptions(path))
    alice = person(ALICE)
    alice.shim("k1", resident=300 << 20)
    return shared_machine, alice


def audit(machine):
    """What root is told, the oldest first."""
    status, answer = checked("GET", "/audit", machine.ask("GET", "/audit"))
    return answer["audit"][::-1] if status == 200 else []  # 409: nothing was written yet


def test_an_administrators_acts_are_remembered_with_the_person_behind_the_program(machine_of_all, wait_until):
    machine, _ = machine_of_all
    person = {"X-Forwarded-User": "hub:ana", "X-Forwarded-For": "192.0.2.7"}
    assert machine.ask("POST", f"/kernels/uid-{ALICE}%2Fk1/hold", {"duration_s": 60}, **person)[0] == 200
    assert machine.ask("PATCH", "/policy", {"idle_timeout_s": 7.0})[0] == 200
    assert machine.ask("PATCH", "/policy", {"low_watermark": 7.0})[0] == 400
    hold, policy, refused = wait_until(lambda: len(found := audit(machine)) == 3 and found)
    assert (hold["actor"], hold["place"], hold["outcome"]) == ("hub:ana", "192.0.2.7", "ok")
    assert hold["program"] == f"root (pid {os.getpid()})"
    assert (hold["kernel_id"], json.loads(hold["detail"])) == (f"uid-{ALICE}/k1", {"duration_s": 60})
    assert (policy["actor"], policy["place"], policy["kernel_id"], policy["user"]) == ("root", "", "", "")
    assert (policy["outcome"], refused["outcome"]) == ("ok", "bad-setting")


def test_only_administrators_may_act_for_another_user_or_see_the_audit(machine_of_all, wait_until):
    machine, alice = machine_of_all
    assert alice.ask("POST", "/kernels/k1/hold", {"duration_s": 60})[0] == 200
    assert alice.ask("PATCH", "/policy", {"idle_timeout_s": 7.0})[0] == 403
    assert alice.ask("GET", "/audit") == (
        403,
        {"error": "forbidden", "message": "only administrators may see what administrators did"},
    )
    assert machine.ask("POST", f"/kernels/uid-{ALICE}%2Fk1/release", {})[0] == 200
    assert [row["action"] for row in wait_until(lambda: audit(machine))] == ["release"]

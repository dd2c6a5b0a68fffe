"""A directory server that does not answer keeps no kernel waiting."""

from __future__ import annotations

import pwd
import threading
from types import SimpleNamespace

import pytest
from waiting import wait_until

from jupyter_affinode.node.state.records.kernel import Account, KernelRecord
from jupyter_affinode.node.state.records.ownership import entitlements_of
from jupyter_affinode.node.system import user_names as directory
from jupyter_affinode.node.system.user_names import Directory, groups_of, name_of
from jupyter_affinode.settings.policy import Settings


class Server:
    """Answers while `answers` is set."""

    def __init__(self):
        self.answers, self.asked = threading.Event(), []
        self.answers.set()

    def find(self, user):
        self.asked.append(user)
        assert self.answers.wait(60)
        if user == "nobody":
            raise RuntimeError("a library's own")
        return f"{user} {len(self.asked)}"


@pytest.fixture
def server():
    made = Server()
    yield made
    made.answers.set()


def test_a_known_name_is_not_looked_up_again_before_it_is_old(server):
    look = Directory(server.find, str.upper, lasts_s=3600.0)
    wait_until(lambda: look("ann") == "ann 1")
    assert [look("ann") for _ in range(3)] == ["ann 1"] * 3
    assert server.asked == ["ann"]


def test_known_names_are_used_while_the_name_service_is_silent(server):
    look = Directory(server.find, str.upper, lasts_s=0.0)
    wait_until(lambda: look("ann").startswith("ann"))
    server.answers.clear()
    asked = len(server.asked)
    wait_until(lambda: look("ann") and len(server.asked) > asked)  # a lookup that began before has ended
    before = look("ann")
    assert {look("ann") for _ in range(50)} == {before}
    server.answers.set()
    wait_until(lambda: look("ann") != before)


def test_an_unknown_name_is_waited_for_once_while_the_name_service_is_silent(server, monkeypatch):
    monkeypatch.setattr(directory, "WAIT_S", 0.05)
    server.answers.clear()
    look = Directory(server.find, str.upper, lasts_s=3600.0)
    waits = []
    monkeypatch.setattr(threading.Event, "wait", _counting(threading.Event.wait, waits))
    assert [look(f"user{number}") for number in range(100)] == [f"USER{number}" for number in range(100)]
    assert waits.count(0.05) == 1
    server.answers.set()
    wait_until(lambda: look("user99").startswith("user99 "))


def _counting(wait, waits):
    def counted(event, timeout=None):
        waits.append(timeout)
        return wait(event, timeout)

    return counted


def test_what_cannot_be_found_is_unknown_and_the_next_lookup_works(server):
    look = Directory(server.find, str.upper, lasts_s=3600.0)
    wait_until(lambda: look("nobody") == "NOBODY" and look("bob").startswith("bob "))


def test_known_names_stay_known_while_the_name_service_is_down():
    """Else quotas, classes and opt-outs would be forgotten for as long."""
    answers = iter([("staff",)])
    asked = []

    def find(user):
        asked.append(user)
        return next(answers)  # and then StopIteration

    look = Directory(find, lambda user: (), lasts_s=0.0)
    wait_until(lambda: look("ann") == ("staff",))
    wait_until(lambda: look("ann") == ("staff",) and len(asked) > 3)


def test_a_lookup_that_failed_is_tried_again_soon(monkeypatch):
    """Else an account that was made a moment later would be unknown for an hour, and its user's rules not kept."""
    now, asked = [1000.0], []
    monkeypatch.setattr(directory, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def find(user):
        asked.append(user)
        if len(asked) <= 2:
            raise KeyError(user)
        return "staff"

    look = Directory(find, lambda user: "", lasts_s=3600.0)
    for tries in (1, 2):
        wait_until(lambda tries=tries: look("ann") == "" and len(asked) == tries and not look._asked)
        now[0] += directory.FAILED_LASTS_S - 1
        assert look("ann") == "" and len(asked) == tries
        now[0] += 1
    wait_until(lambda: look("ann") == "staff")
    assert len(asked) == 3


def test_rules_know_a_user_once_the_directory_has_answered():
    kernel = KernelRecord("uid-0/k", Account("uid-0", "0"))
    rules = Settings().changed(priorities="root=3")
    wait_until(lambda: entitlements_of(kernel, rules).priority == 3)
    kernel = KernelRecord("user-0/k", Account("user-0", "hub:0"))
    assert entitlements_of(kernel, rules).priority == 0, "that is the user whom a grant names"


def test_this_machines_own_names():
    wait_until(lambda: name_of(0) == pwd.getpwuid(0).pw_name)
    wait_until(lambda: "root" in groups_of("root"))
    assert name_of(4_000_000_001) == "4000000001"
    assert groups_of("nobody of that name") == ()

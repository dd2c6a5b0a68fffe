"""A shim of another version than the controller is refused, and its kernel's user is told why."""

from __future__ import annotations

import contextlib

import pytest
from fake_shim import MIB, FakePage, connect, grant_pieces, hello, send
from people import Person

from jupyter_affinode.node.identity.access import EveryUserAccess

ALICE, BOB = 61001, 61002


def say(machine, kernel_id, version, *, page=None):
    """Say HELLO as a shim of that version does, whose page is another; whether it was answered."""
    page = page or FakePage()
    with connect(machine.socket.with_name("link.sock")) as link:
        send(link, hello(kernel_id, version=version), page.descriptor)
        with contextlib.suppress(ConnectionResetError):
            return bool(link.recv(4096))
    return False


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [(1, "older-kernel", "until it is restarted"), (3, "older-controller", "only once restarted")],
)
def test_the_kernels_user_is_told_which_is_older_and_the_log_says_it_once(
    node, shim, wait_until, version, code, words
):
    machine = node()
    assert machine.ask("PUT", "/kernels/k", {"name": "Python"})[0] == 200
    for _ in range(3):
        assert not say(machine, "k", version)
    wait_until(lambda: machine.kernel("k")["refusal_code"] == code)
    described = machine.kernel("k")
    assert (described["text"], described["processes"]) == ("Not managed", [])
    assert words in described["refusal"]
    assert machine.controller_log().count("k, shim 0.1.0, is refused") == 1
    shim("k", resident=MIB)  # it was restarted
    assert machine.kernel("k")["text"] == "On the GPU: 1 MiB"


def test_a_page_that_cannot_be_read_is_no_reason_to_say_nothing(node, wait_until):
    machine = node()
    machine.ask("PUT", "/kernels/k", {})
    page = FakePage(size=8192, seals=0)
    assert not say(machine, "k", 1, page=page)
    page.close()
    wait_until(lambda: machine.kernel("k")["refusal_code"] == "older-kernel")


def test_a_kernel_that_no_server_has_named_is_not_made_up(node):
    machine = node()
    assert not say(machine, "unnamed", 1)
    assert machine.kernels() == {}


def test_no_user_can_have_anothers_kernel_shown_as_not_managed(node, shared_machine, wait_until):
    machine = node(access=EveryUserAccess())
    alice, bob = Person(machine, ALICE), Person(machine, BOB)
    for each in (alice, bob):
        assert each.ask("PUT", "/kernels/k", {})[0] == 200
    with bob.being():
        assert not say(machine, "k", 1)
    wait_until(lambda: bob.ask("GET", "/kernels/k")[1]["refusal_code"] == "older-kernel")
    assert alice.ask("GET", "/kernels/k")[1]["refusal_code"] is None
    alice.close()
    bob.close()


def test_the_grant_of_such_a_shim_is_read_too(node):
    machine = node()
    machine.ask("PUT", "/kernels/k", {})
    page = FakePage()
    with connect(machine.socket.with_name("link.sock")) as link:
        send(link, hello("k", version=1, flags=32), page.descriptor)
        for piece in grant_pieces("x" * 300):
            link.send(piece)
        with contextlib.suppress(ConnectionResetError):
            assert not link.recv(4096)
    page.close()
    assert machine.kernel("k")["refusal_code"] == "older-kernel"

"""A user with a thousand user ids is one user to the limits, and many to each other's kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_shim import MIB

from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.identity.rate_limits import MANY_USERS
from jupyter_affinode.node.system import subuid as subordinate_ids
from jupyter_affinode.node.system.subuid import SubordinateIds

MALLORY, BOB, FIRST = 61001, 61002, 700_000
FILE = f"""
root:{FIRST - 10}:10
{MALLORY}:{FIRST}:65536
{BOB}:900000:5
# a comment
nobody-of-that-name-lives-here:1000:5
{BOB}:x:5
{BOB}:5
:5:5
{BOB}:{"9" * 400}:1
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "subuid"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    ("uid", "person"),
    [
        (FIRST - 11, FIRST - 11), (FIRST - 1, 0), (FIRST, MALLORY), (FIRST + 65535, MALLORY),
        (FIRST + 65536, FIRST + 65536), (900004, BOB), (900005, 900005), (1001, 1001), (5, 5), (0, 0),
        (MALLORY, MALLORY),
    ],
)  # fmt: skip
def test_a_subordinate_id_belongs_to_its_user(file, uid, person):
    assert SubordinateIds(file).owner_of(uid) == person


def test_a_file_that_comes_changes_or_goes_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(subordinate_ids, "LOOK_AGAIN_S", 0.0)
    path = tmp_path / "subuid"
    ids = SubordinateIds(path)
    assert ids.owner_of(FIRST) == FIRST
    path.write_text(f"{MALLORY}:{FIRST}:1\n")
    assert ids.owner_of(FIRST) == MALLORY
    path.write_bytes(b"\xff\xfe:1:1\n" + f"{BOB}:{FIRST}:1\n\n".encode())
    assert ids.owner_of(FIRST) == BOB
    path.unlink()
    assert ids.owner_of(FIRST) == BOB, "it is being written, perhaps"


def test_a_user_with_many_ids_takes_no_more_than_one_id_may(node, shared_machine, person, file):
    limits = replace(MANY_USERS, links=2, kernels=2, links_everyone=4)
    node(access=EveryUserAccess(limits=limits, subordinate_ids=SubordinateIds(file)))
    crowd, bob = [person(uid) for uid in (MALLORY, FIRST, FIRST + 1, FIRST + 2)], person(BOB)
    shims = [each.shim("k", resident=300 * MIB) for each in crowd]
    assert sum(shim.heard.welcome is not None for shim in shims) == 2
    assert bob.shim("k", resident=300 * MIB).heard.welcome
    statuses = [each.ask("PUT", "/kernels/new", {})[0] for each in crowd]
    assert statuses == [429] * 4
    assert bob.ask("PUT", "/kernels/new", {})[0] == 200
    seen = [each.kernels() for each in crowd]
    assert sorted(map(len, seen)) == [0, 0, 1, 1], "each sees their own alone"
    assert {kernel["user"] for kernels in seen for kernel in kernels.values()} == {str(MALLORY)}

"""A user's connections or user ids, however many, take neither other users' places nor the controller's memory."""

from __future__ import annotations

from jupyter_affinode.node.identity.rate_limits import FULL_AGAIN_S, MANY_USERS, Accounts
from jupyter_affinode.node.identity.unidentified import one_too_many
from jupyter_affinode.node.system.peers import Place, oldest_of_largest_user

ALICE, MALLORY, CONTAINERS = 61001, 61002, 1000


def test_a_user_from_ever_new_places_displaces_only_their_own():
    unidentified = {"alice": Place(ALICE, "/user", "pid:1")}
    for number in range(MANY_USERS.unidentified_everyone * 2):
        place = Place(MALLORY, f"/user/{number}", f"pid:{number}")
        gone = one_too_many(unidentified, place, MANY_USERS)
        if gone is not None:
            del unidentified[gone]
        unidentified[number] = place
    assert len(unidentified) == MANY_USERS.unidentified_everyone
    assert "alice" in unidentified


def test_among_containers_of_one_user_id_the_one_with_most_namespaces_gives_way():
    unidentified = {"honest": Place(CONTAINERS, "/pod-a", "pid:1")}
    unidentified |= {number: Place(CONTAINERS, "/pod-b", f"pid:{number}") for number in range(5)}
    assert oldest_of_largest_user(unidentified) == 0


def test_in_one_place_the_oldest_gives_way():
    place = Place(MALLORY, "/user", "pid:1")
    unidentified = dict.fromkeys(range(MANY_USERS.unidentified), place)
    assert one_too_many(unidentified, place, MANY_USERS) == 0
    assert one_too_many(unidentified, Place(ALICE), MANY_USERS) is None
    assert oldest_of_largest_user({}) is None


def test_a_person_of_many_user_ids_takes_a_bounded_number_of_accounts():
    accounts = Accounts(MANY_USERS)
    alice = accounts.of("uid-61001")
    alice.links = 1
    asked = accounts.of("uid-7")
    for number in range(accounts.places * 2):
        accounts.of(f"uid-{100_000 + number}")
    assert len(accounts) == accounts.places
    assert accounts.of("uid-61001") is alice, "a user with an open connection is not forgotten"
    assert accounts.of("uid-7") is not asked, "the user who asked longest ago and has nothing open is"
    accounts.tidy(alice.used_at + 2 * FULL_AGAIN_S)
    assert len(accounts) == 1

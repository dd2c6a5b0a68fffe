"""Culling: a server whose kernel waits for the GPU or computes on it is kept, one that was forgotten is not."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from fake_shim import QUEUED, WANT, notify
from gpu_node import gpu_node

from hub_spawner import culling
from hub_spawner.culling import arbiter

HOUR_S = 3600


@pytest.fixture
def nodes(node, monkeypatch):
    """The machine, as cullers are told of it; they wait for it up to a minute."""
    monkeypatch.setattr(culling.Nodes.read, "__defaults__", (60.0,))
    return {"here": str(node.machine.socket)}


@pytest.fixture(scope="module")
def node():
    """carla has a second server, whose kernel waits for the GPU."""
    with gpu_node(park_when="needed", idle_timeout_s=1e6, contended_idle_timeout_s=1e6) as made:
        waiting = made.carla.shim("waiting", parked=90 << 30, state=QUEUED)
        made.describe(made.carla, "waiting", "carla/waiting")
        waiting.send(notify(WANT))
        yield made


def culled(rule, server, inactive_s, limit_s=HOUR_S):
    """Whether the rule culls a server, asked as the culler does."""
    return asyncio.run(
        rule(
            inactive=timedelta(seconds=inactive_s),
            inactive_limit=limit_s,
            server={"full_name": server, "state": {}},
        )
    )


def test_a_server_that_computes_on_the_gpu_in_silence_is_kept(node, nodes):
    node.shims["training"].touch()  # as a shim does while a call is under way
    assert not culled(arbiter(nodes=nodes), "bob/gpu", 100 * HOUR_S)


def test_a_server_whose_kernel_waits_for_the_gpu_is_kept(node, nodes, wait_until):
    wait_until(lambda: node.machine.node()["queue"])
    assert not culled(arbiter(nodes=nodes), "carla/waiting", 100 * HOUR_S)


def test_a_server_with_a_kernel_that_its_user_holds_is_kept(node, nodes):
    assert culled(arbiter(nodes=nodes), "carla/", HOUR_S)
    assert node.carla.ask("POST", "/kernels/notes/hold", {"duration_s": HOUR_S})[0] == 200
    assert not culled(arbiter(nodes=nodes), "carla/", 100 * HOUR_S)
    assert node.carla.ask("POST", "/kernels/notes/release")[0] == 200
    assert culled(arbiter(nodes=nodes), "carla/", HOUR_S)


def test_a_forgotten_parked_server_is_culled_or_kept_longer_where_its_administrator_says_so(nodes):
    assert culled(arbiter(nodes=nodes), "carla/", HOUR_S)
    assert not culled(arbiter(nodes=nodes), "carla/", HOUR_S - 1)
    patient = arbiter(nodes=nodes, parked_limit_s=48 * HOUR_S)
    assert not culled(patient, "carla/", 47 * HOUR_S)
    assert culled(patient, "carla/", 48 * HOUR_S)
    assert culled(patient, "eve/", HOUR_S)  # has no kernel


def test_the_last_use_of_the_gpu_counts_as_activity(node, nodes, wait_until):
    node.shims["analysis"].touch()
    assert not culled(arbiter(nodes=nodes), "ana/", 100 * HOUR_S)
    wait_until(lambda: node.machine.kernels()["uid-61001/analysis"]["idle_s"] > 0.2)
    wait_until(lambda: culled(arbiter(nodes=nodes), "ana/", HOUR_S, limit_s=0.1))


def test_without_a_controller_the_cullers_own_rule_holds():
    rule = arbiter(nodes={"gone": "/nowhere/node.sock"}, parked_limit_s=48 * HOUR_S)
    assert culled(rule, "carla/", HOUR_S)
    assert not culled(rule, "carla/", HOUR_S - 1)


def test_an_answer_that_makes_no_sense_leaves_the_cullers_own_rule(monkeypatch):
    async def nonsense(nodes):
        return 5

    monkeypatch.setattr(culling.Nodes, "read", nonsense)
    assert culled(arbiter(), "carla/", HOUR_S)
    assert not culled(arbiter(), "carla/", HOUR_S - 1)


def test_all_servers_of_a_pass_share_one_reading(nodes, monkeypatch):
    looks = []
    real = culling.Nodes.read

    async def counted(nodes):
        looks.append(nodes)
        return await real(nodes)

    monkeypatch.setattr(culling.Nodes, "read", counted)
    rule = arbiter(nodes=nodes)

    async def everyone():
        hour = timedelta(hours=1)
        asked = [
            rule(inactive=hour, inactive_limit=HOUR_S, server={"full_name": f"user-{number}/"})
            for number in range(300)
        ]
        return await asyncio.gather(*asked)

    assert all(asyncio.run(everyone())) and len(looks) == 1


def test_a_kernel_that_a_grant_gives_to_another_user_keeps_no_server():
    kernels = [
        {"server": "ana/", "user": "hub:eve"},
        {"server": "ana/", "user": "hub:ana"},
        {"server": "ana/", "user": "ana"},
    ]
    kept = culling._kernels_of({"full_name": "ana/"}, kernels)
    assert kept == kernels[1:]

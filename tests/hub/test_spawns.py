"""What a spawn does about GPU memory, on real Hubs with the real controller; the GPU is told of by the test."""

from __future__ import annotations

import signal

import jwt
import pytest
from fake_shim import MIB
from spawn_site import TOTAL, another_site, make_site

from jupyter_affinode.client.grant_signing import make_keys


@pytest.fixture(scope="module", params=["6", pytest.param("5", marks=pytest.mark.long)])
def site(request):
    yield from make_site(request.param)


@pytest.fixture
def user(site, request):
    """A user of the Hub's, whose server is gone afterwards."""
    name = f"u{abs(hash(request.node.name)) % 10**8}"
    site.hub.add(name)
    site.busy(True)
    yield name
    site.hub.ask("DELETE", f"/users/{name}/server")


def test_each_viewer_of_a_spawn_page_is_told_the_whole_story(site, user, wait_until):
    assert site.hub.spawn(user)[0] == 202
    first = site.hub.follow(user)
    wait_until(lambda: any("computing" in message for message in first.messages), timeout=60)
    second = site.hub.follow(user)
    wait_until(lambda: any("computing" in message for message in second.messages), timeout=60)
    site.busy(False)
    assert first.whole() == second.whole()
    assert "There is room for 500 MiB, 1 idle kernel was freed" in first.messages
    assert first.events[-1].get("ready") is True, (first.events[-1], site.hub.log())
    assert (
        site.hub.hooks()[-1] == f"sub {user}"
    )  # the admin's hook on the subclass goes before that on the base


def test_a_servers_environment_keeps_jax_from_taking_everything(site, user, wait_until):
    site.busy(False)
    site.hub.spawn(user)
    wait_until(lambda: site.hub.server(user).get("ready"), timeout=60)
    status, environment = site.hub.ask("GET", f"/user/{user}/api", api=False)
    assert (status, environment["XLA_PYTHON_CLIENT_PREALLOCATE"]) == (200, "false")


def test_a_groups_servers_get_their_own_size_and_a_grant_with_the_hubs_groups(site, user):
    secret, _ = make_keys()
    (site.machine.folder / "hub-1.key").write_bytes(secret)
    site.hub.join("vision", user)
    site.busy(False)
    site.hub.spawn(user)
    assert any("room for 100 MiB" in message for message in site.hub.follow(user).whole())
    environment = site.hub.ask("GET", f"/user/{user}/api", api=False)[1]
    claims = jwt.decode(environment["AFFINODE_GRANT"], options={"verify_signature": False})
    assert (claims["sub"], claims["groups"], claims["aud"]) == (user, ["vision"], ["affinode:cluster"])
    assert environment["AFFINODE_GRANT_URL"] == "http://hub/services/affinode/grant"
    assert f"hub:{user} asks for room for 100 MiB" in site.machine.controller_log()


def test_a_group_alone_may_be_refused(site, user, wait_until):
    site.hub.join("strict", user)
    site.hub.spawn(user)
    page = site.hub.follow(user)
    assert "No GPU has room for 500 MiB at the moment" in page.whole()[-1]
    assert page.events[-1]["failed"] is True
    site.hub.add("carla")  # who is in no such group waits
    site.hub.spawn("carla")
    wait_until(lambda: site.queue() == ["a server that starts"], timeout=60)
    site.hub.ask("DELETE", "/users/carla/server")
    wait_until(lambda: site.queue() == [], timeout=60)


def test_stopping_a_server_that_waits_withdraws_its_request(site, user, wait_until):
    site.hub.spawn(user)
    wait_until(lambda: site.queue() == ["a server that starts"], timeout=60)
    status, answer = site.hub.ask("DELETE", f"/users/{user}/server")
    assert status in (202, 204), answer
    wait_until(lambda: site.queue() == [], timeout=60)
    wait_until(lambda: not site.hub.server(user), timeout=60)
    wait_until(lambda: f"stopped {user}" in site.hub.hooks(), timeout=60)


def test_without_a_controller_servers_start_as_ever_and_the_log_has_a_line(site, user, wait_until):
    site.stop_controller()
    try:
        site.hub.spawn(user)
        wait_until(lambda: site.hub.server(user).get("ready"), timeout=60)
    finally:
        site.start_controller()
        site.kernel = site.carol.shim("carols", resident=TOTAL - 8 * MIB)
        site.gpu.shims[:] = [site.kernel]
    lines = [line for line in site.hub.log().splitlines() if "no GPU room was asked for" in line]
    assert len([line for line in lines if f"the server of {user} starts" in line]) == 1


def test_an_admins_own_error_ends_the_spawn_as_before(site, wait_until):
    site.hub.add("unlucky")
    site.hub.spawn("unlucky")
    page = site.hub.follow("unlucky")
    wait_until(lambda: site.hub.server("unlucky") == {}, timeout=60)
    page.whole()
    assert "the admin's own error" in site.hub.log()
    assert site.queue() == []


@pytest.mark.long
def test_a_hub_that_ends_while_a_spawn_is_followed_ends_cleanly(wait_until):
    with another_site("6") as site:
        site.hub.add("quiet")
        site.hub.spawn("quiet")
        pages = [site.hub.follow("quiet") for _ in range(2)]
        for page in pages:
            wait_until(lambda page=page: page.messages, timeout=60)
        site.hub.stop()
        assert "Traceback" not in site.hub.log() and "already running" not in site.hub.log(), site.hub.log()


@pytest.mark.long
def test_a_killed_hub_leaves_no_request_and_starts_again(site, user, wait_until):
    site.hub.spawn(user)
    wait_until(lambda: site.queue() == ["a server that starts"], timeout=60)
    site.hub.stop(signal.SIGKILL)
    wait_until(lambda: site.queue() == [], timeout=60)
    site.hub.start()
    assert site.hub.server(user) == {}
    site.busy(False)
    site.hub.spawn(user)
    wait_until(lambda: site.hub.server(user).get("ready"), timeout=60)


@pytest.mark.long
def test_three_refusals_in_a_row_do_not_end_the_hub():
    with another_site("6", gpu_wait_s=0.3, on_gpu_full="refuse", consecutive_failure_limit=3) as site:
        for name in ("one", "two", "three", "four"):
            site.hub.add(name)
            site.hub.spawn(name)
            page = site.hub.follow(name)
            told = page.whole()
            assert "No GPU has room for 500 MiB at the moment" in told[-1], told
            assert page.events[-1]["failed"] is True
            assert "another user&#x27;s notebook is computing" in page.events[-1]["html_message"]
        assert site.hub.process.poll() is None
        assert site.hub.ask("GET", "/users")[0] == 200
        assert "Traceback" not in site.hub.log()


@pytest.mark.long
def test_jupyterhub_5_starts_servers_rather_than_counting_refusals(wait_until):
    with another_site("5", gpu_wait_s=0.3, on_gpu_full="start", consecutive_failure_limit=3) as site:
        for user in ("one", "of-a-group-that-is-refused"):
            site.hub.add(user)
            if user != "one":
                site.hub.join("strict", user)
            site.hub.spawn(user)
            told = site.hub.follow(user).whole()
            assert any("Your server starts; its first GPU cell waits" in message for message in told), told
            wait_until(lambda user=user: site.hub.server(user).get("ready"), timeout=60)
        assert site.hub.log().count("on_gpu_full='refuse' is not heeded") == 1

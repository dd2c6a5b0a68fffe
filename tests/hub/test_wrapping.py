"""Spawners that have another spawner start the server: on a real Hub with wrapspawner, and others by their classes."""

from __future__ import annotations

import logging

import pytest
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner, Spawner
from spawn_site import another_site
from traitlets import Type
from traitlets.config import Config
from wrapspawner import ProfilesSpawner, WrapSpawner

from hub_spawner import GpuPolicy
from hub_spawner.enabling import derived
from jupyter_affinode.client.grant_signing import make_keys

PROFILES = """
import wrapspawner
c.JupyterHub.spawner_class = wrapspawner.ProfilesSpawner
c.WrapSpawner.env_keep = ["PATH", "PYTHONPATH"]  # a child has its wrapper's, whose default is shorter
c.ProfilesSpawner.profiles = [
    ("Small", "small", UnixUserSpawner, {"gpu_memory": "4MiB"}),
    ("Large", "large", UnixUserSpawner, {"gpu_memory": "700MiB"}),
    ("As the Hub says", "plain", UnixUserSpawner, {}),
    ("Strict", "strict", UnixUserSpawner, {"on_gpu_full": "refuse", "gpu_wait_s": 0.3}),
]
"""


@pytest.fixture(
    scope="module",
    params=[pytest.param("6", marks=pytest.mark.long), pytest.param("5", marks=pytest.mark.long)],
)
def site(request):
    with another_site(
        request.param, {"later": PROFILES}, grant_audience=["tests"], start_timeout=120
    ) as made:
        secret, _ = make_keys()
        (made.machine.folder / "hub-1.key").write_bytes(secret)
        yield made


def stopped(site, user):
    site.hub.ask("DELETE", f"/users/{user}/server")


def test_the_child_asks_for_its_own_size_and_has_the_policys_environment(site, wait_until):
    hub = site.hub
    hub.add("large", "small")
    hub.join("vision", "large")  # its overrides are of the wrapper, and name the key of grants
    hub.spawn("large", profile="large")
    page = hub.follow("large")
    wait_until(lambda: site.queue() == ["a server that starts"], timeout=60)
    wait_until(lambda: any("computing" in message for message in page.messages), timeout=60)
    second = hub.follow("large")
    site.busy(False)
    assert "There is room for 700 MiB, 1 idle kernel was freed" in page.whole(), hub.log()
    assert second.whole() == page.messages
    assert page.events[-1].get("ready") is True, hub.log()
    environment = hub.ask("GET", "/user/large/api", api=False)[1]
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert environment["AFFINODE_GRANT_URL"] == "http://hub/services/affinode/grant"
    assert environment["AFFINODE_GRANT"].count(".") == 2
    assert "hub:large asks for room for 700 MiB" in site.machine.controller_log()
    assert "without the GPU policy's environment" not in hub.log()
    stopped(site, "large")

    site.busy(True)
    hub.spawn("small", profile="small")
    assert "There is room for 4 MiB" in hub.follow("small").whole()
    stopped(site, "small")


def test_a_childs_size_is_the_wrappers_unless_its_profile_has_one(site):
    site.busy(False)
    site.hub.add("plain")
    site.hub.spawn("plain", profile="plain")
    assert any("room for 500 MiB" in message for message in site.hub.follow("plain").whole()), site.hub.log()
    stopped(site, "plain")


def test_a_child_that_is_refused_fails_the_spawn_in_words(site):
    site.busy(True)
    site.hub.add("strict")
    site.hub.spawn("strict", profile="strict")
    page = site.hub.follow("strict")
    assert "No GPU has room for 500 MiB at the moment" in page.whole()[-1]
    assert page.events[-1]["failed"] is True


def test_stopping_a_server_whose_child_waits_withdraws_its_request(site, wait_until):
    site.busy(True)
    site.hub.add("gone")
    site.hub.spawn("gone", profile="large")
    wait_until(lambda: site.queue() == ["a server that starts"], timeout=60)
    assert site.hub.ask("DELETE", "/users/gone/server")[0] in (202, 204)
    wait_until(lambda: site.queue() == [], timeout=60)


class Dispatcher(Spawner):
    """A wrapper of a site's own, which is none of wrapspawner's."""

    backend = Type(LocalProcessSpawner, "jupyterhub.spawner.Spawner").tag(config=True)

    async def start(self):
        self.child = self.backend(user=self.user, config=self.config)
        return await self.child.start()

    async def stop(self, now=False):
        pass

    async def poll(self):
        return 0


class PlainDispatcher(Dispatcher):
    backend = None
    child_class = SimpleLocalProcessSpawner


class HiddenDispatcher(Dispatcher):
    """Its child is in no place that could be known."""

    backend = None

    async def start(self):
        return ("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("wrapper", "name", "later"),
    [
        (WrapSpawner, "child_class", SimpleLocalProcessSpawner),
        (ProfilesSpawner, "child_class", SimpleLocalProcessSpawner),
        (Dispatcher, "backend", SimpleLocalProcessSpawner),
        (Dispatcher, "backend", "jupyterhub.spawner.SimpleLocalProcessSpawner"),
        (Dispatcher, "backend", WrapSpawner),  # a wrapper of wrappers
        (PlainDispatcher, "child_class", None),
    ],
)
def test_whatever_class_a_wrapper_keeps_for_its_children_has_the_policy(wrapper, name, later):
    made = derived(wrapper)
    assert made.__name__ == wrapper.__name__ and not made.gpu_asks_from_hub
    spawner = made(config=Config())
    assert issubclass(getattr(spawner, name), GpuPolicy)
    if later is not None:
        c = Config()
        c[wrapper.__name__][name] = later
        configured = getattr(made(config=c), name)
        setattr(spawner, name, later)
        assert getattr(spawner, name) is configured
        assert issubclass(configured, GpuPolicy)
    assert (
        issubclass(getattr(wrapper(config=Config()), name), GpuPolicy) is False
    )  # the site's own class is as it was


def test_a_wrapped_spawner_of_pods_has_the_policy_of_pods():
    from kubespawner import KubeSpawner

    from hub_spawner.kubernetes import KubernetesGpuPolicy

    c = Config()
    c.WrapSpawner.child_class = KubeSpawner
    assert issubclass(derived(WrapSpawner)(config=c).child_class, KubernetesGpuPolicy)


@pytest.mark.asyncio
async def test_a_server_that_another_spawner_started_unseen_is_reported(caplog):
    class User:
        name = "ana"

    spawner = derived(HiddenDispatcher)(user=User())
    spawner.log.propagate = True
    with caplog.at_level(logging.WARNING):
        assert await spawner.start() == ("127.0.0.1", 1)
    assert "started without the GPU policy's environment, which HiddenDispatcher" in caplog.text

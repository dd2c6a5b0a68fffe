"""`enable(c)` with whatever spawner class is configured, and what it says of configurations that cannot work."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from jupyterhub import spawner as hub_spawners
from jupyterhub.apihandlers.hub import InfoAPIHandler
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from traitlets.config import Config

import hub_spawner
from hub_spawner import GpuPolicy, NotEnabled
from hub_spawner.spawner_mixin import _refusal


class SiteSpawner(LocalProcessSpawner):
    """A site's own class."""

    isolate_devices = False


def enabled(configured=None):
    c = Config()
    if configured is not None:
        c.JupyterHub.spawner_class = configured
    hub_spawner.enable(c)
    return c.JupyterHub.spawner_class


@pytest.mark.parametrize(
    ("configured", "base"),
    [
        (None, LocalProcessSpawner),
        ("simple", SimpleLocalProcessSpawner),
        ("jupyterhub.spawner.SimpleLocalProcessSpawner", SimpleLocalProcessSpawner),
        (SiteSpawner, SiteSpawner),
    ],
)
def test_any_configured_class_gets_the_policy(configured, base):
    made = enabled(configured)
    assert issubclass(made, base) and issubclass(made, GpuPolicy)
    assert made.run_pre_spawn_hook is GpuPolicy.run_pre_spawn_hook
    assert enabled(made) is made


@pytest.mark.parametrize(
    ("configured", "site"),
    [
        ("simple", "jupyterhub.spawner.SimpleLocalProcessSpawner"),
        (SiteSpawner, f"{__name__}.SiteSpawner"),
        ("batchspawner.SlurmSpawner", "batchspawner.batchspawner.SlurmSpawner"),
        ("wrapspawner.ProfilesSpawner", "wrapspawner.wrapspawner.ProfilesSpawner"),
    ],
)
def test_the_hub_names_the_sites_class_and_the_version_of_its_package(configured, site):
    """As administrators ask for it (/hub/api/info)."""
    told = []
    hub = SimpleNamespace(
        settings={"spawner_class": enabled(configured)}, authenticator=None, finish=told.append
    )
    InfoAPIHandler.get.__wrapped__(hub)
    package = sys.modules[site.partition(".")[0]]
    said = {"class": site, "version": getattr(package, "__version__", "unknown")}
    assert json.loads(told[0])["spawner"] == said


def test_traits_are_configured_for_any_class_that_it_derives_from():
    c = Config()
    c.Spawner.gpu_memory = "20GiB"
    c.LocalProcessSpawner.gpu_wait_s = 3
    c.SiteSpawner.pre_spawn_hook = len
    made = enabled(SiteSpawner)(config=c)
    assert (made.gpu_bytes(), made.gpu_wait_s, made.pre_spawn_hook) == (20 << 30, 3, len)


def test_a_size_that_is_none_is_refused_in_words():
    with pytest.raises(Exception, match="'20 pounds' is no size; write 40GiB"):
        enabled()(gpu_memory="20 pounds")


def test_a_spawner_without_gpu_memory_asks_for_nothing():
    assert enabled()().gpu_bytes() == 0


@pytest.mark.parametrize("configured", ["no.such.Spawner", "nonsense", "jupyterhub.spawner.os"])
def test_a_class_that_is_none_is_named(configured):
    with pytest.raises(NotEnabled, match="spawner_class"):
        enabled(configured)


def test_isolated_devices_would_hide_the_gpu():
    c = Config()
    c.JupyterHub.spawner_class = SiteSpawner
    c.SiteSpawner.isolate_devices = True
    with pytest.raises(NotEnabled, match="isolate_devices hides the GPU"):
        hub_spawner.enable(c)


def test_refusals_that_would_end_an_older_hub_are_refused_in_words(monkeypatch):
    c = Config()
    c.Spawner.on_gpu_full = "refuse"
    c.Spawner.consecutive_failure_limit = 5
    hub_spawner.enable(c)  # JupyterHub 6 does not count them
    monkeypatch.delattr(hub_spawners, "SpawnException")
    with pytest.raises(NotEnabled, match="would end the Hub after 5 refusals"):
        hub_spawner.enable(Config(c))
    assert _refusal("no <room>").jupyterhub_html_message == "<p>no &lt;room&gt;</p>"


def test_refusals_of_pods_are_refused_in_words():
    from kubespawner import KubeSpawner  # a second, which other processes of pytest need not take

    c = Config()
    c.JupyterHub.spawner_class = KubeSpawner
    c.KubeSpawner.on_gpu_full = "refuse"
    with pytest.raises(NotEnabled, match="not possible for pods"):
        hub_spawner.enable(c)


def test_a_hub_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr("jupyterhub.version_info", (4, 1, 6, "", ""))
    with pytest.raises(NotEnabled, match="too old"):
        enabled()


def test_signing_grants_takes_no_hub():
    script = "import sys, hub_spawner.grants; sys.exit('jupyterhub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0

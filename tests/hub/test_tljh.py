"""The plugin for The Littlest JupyterHub, called by pluggy as TLJH does. TLJH itself is on no package index."""

from __future__ import annotations

import json
from importlib.metadata import Distribution

import pluggy
import pytest
from jupyterhub.spawner import LocalProcessSpawner
from traitlets.config import Config

from hub_spawner import GpuPolicy, tljh

HOOKS = (  # those of tljh/hooks.py that the plugin has, with their arguments
    "tljh_extra_user_pip_packages()",
    "tljh_custom_jupyterhub_config(c)",
    "tljh_post_install()",
)


class UserCreatingSpawner(LocalProcessSpawner):
    """As TLJH's: the Unix user is made when the server starts."""

    def start(self):
        """Make the user."""
        return super().start()


@pytest.fixture
def hook():
    """TLJH's plugins."""
    scope = {"hookspec": pluggy.HookspecMarker("tljh")}
    exec("\n".join(f"@hookspec\ndef {each}: ..." for each in HOOKS), scope)
    manager = pluggy.PluginManager("tljh")
    manager.add_hookspecs(
        type("hooks", (), {name: value for name, value in scope.items() if "tljh_" in name})
    )
    manager.load_setuptools_entrypoints("tljh")
    manager.check_pending()  # no hook that TLJH does not know
    return manager.hook


def test_the_spawner_gets_the_policy_and_the_hub_the_page(hook):
    c = Config()
    c.JupyterHub.spawner_class = UserCreatingSpawner
    c.JupyterHub.services = [{"name": "cull-idle", "command": ["true"]}]
    c.SystemdSpawner.unit_name_template = "jupyter-{USERNAME}"
    hook.tljh_custom_jupyterhub_config(c=c)
    made = c.JupyterHub.spawner_class
    assert issubclass(made, UserCreatingSpawner) and issubclass(made, GpuPolicy)
    assert [service["name"] for service in c.JupyterHub.services] == ["cull-idle", "affinode"]
    assert made(config=c).unix_name == "jupyter-{username}"


def test_what_the_site_says_of_names_stays(hook):
    c = Config()
    c.JupyterHub.spawner_class = UserCreatingSpawner
    c.GpuPolicy.unix_name = "site-{username}"
    hook.tljh_custom_jupyterhub_config(c=c)
    assert c.GpuPolicy.unix_name == "site-{username}"


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({"url": "file:///srv/x.whl", "archive_info": {}}, "jupyter-affinode @ file:///srv/x.whl"),
        (
            {"url": "https://example.org/a.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
            f"jupyter-affinode @ git+https://example.org/a.git@{'0' * 40}",
        ),
        (None, "jupyter-affinode==1.2"),
    ],
)
def test_users_get_the_package_from_where_the_hub_has_it(hook, monkeypatch, origin, requirement):
    class Installed(Distribution):
        """An installation that came from there."""

        version = "1.2"

        def read_text(self, filename):
            return json.dumps(origin) if origin and filename == "direct_url.json" else None

        def locate_file(self, path):
            return path

    monkeypatch.setattr(tljh, "distribution", lambda name: Installed())
    assert hook.tljh_extra_user_pip_packages() == [[requirement]]


def test_the_controller_is_a_unit_that_is_started(hook, monkeypatch, tmp_path, caplog):
    asked = tmp_path / "asked"
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\necho "$*" >> {asked}\n[ "$1" != restart ] || {{ echo no GPU >&2; exit 1; }}\n'
    )
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(tljh, "UNIT", tmp_path / "affinode.service")
    hook.tljh_post_install()
    assert "-m jupyter_affinode.node --system" in (tmp_path / "affinode.service").read_text()
    assert asked.read_text().splitlines() == ["daemon-reload", "enable affinode", "restart affinode"]
    assert "systemctl restart affinode failed: no GPU" in caplog.text

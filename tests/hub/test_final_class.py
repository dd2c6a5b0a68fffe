"""The class that a Hub spawns with has the policy, whatever says after `enable(c)` which class that is."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The Hub as its command starts it, up to where it would listen. TLJH has Python run the module itself.
START = """
import asyncio, runpy, sys
main = runpy.run_module("jupyterhub.app")["JupyterHub"] if sys.argv.pop(1) == "module" else None
if main is None:
    from jupyterhub.app import JupyterHub as main
from hub_spawner import GpuPolicy

async def start():
    hub = main.instance()
    await hub.initialize(sys.argv[1:])
    spawner = hub.users.settings["spawner_class"]
    print(spawner.__module__, spawner.__name__, issubclass(spawner, GpuPolicy), hub.spawner_class is spawner)

asyncio.run(start())
"""
ENABLE = """
import hub_spawner
hub_spawner.enable(c)
"""
LATER_CLASS = """
from jupyterhub.spawner import SimpleLocalProcessSpawner
class SiteSpawner(SimpleLocalProcessSpawner):
    isolate_devices = False
c.JupyterHub.spawner_class = SiteSpawner
"""
TWICE = "hub_spawner.enable(c); c.JupyterHub.tornado_settings = {'slow_spawn_timeout': 3}"
PATH = "jupyterhub.spawner.SimpleLocalProcessSpawner"
SIMPLE = "SimpleLocalProcessSpawner"
ENDS_SERVERS = "set c.JupyterHub.cleanup_servers = False"


long = pytest.mark.long  # each is the start of a Hub; `make test` has one in which all of it is seen


@pytest.fixture
def started(tmp_path):
    """Start a Hub with such a configuration, and return (its exit status, what it printed, its log)."""

    def start(config, *arguments, how="command"):
        (tmp_path / "jupyterhub_config.py").write_text(config)
        command = [sys.executable, "-c", START, how, *arguments]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        return ran.returncode, ran.stdout.splitlines(), ran.stderr

    return start


@pytest.mark.parametrize(
    ("later", "arguments", "name"),
    [
        pytest.param(LATER_CLASS, (), "SiteSpawner", id="class", marks=long),
        pytest.param("load_subconfig('later.py')", (), SIMPLE, id="subconfig", marks=long),
        pytest.param("", ("--JupyterHub.spawner_class=simple",), SIMPLE, id="command-line", marks=long),
        pytest.param("", (), "LocalProcessSpawner", id="default", marks=long),
        pytest.param("c.JupyterHub.spawner_class = 'simple'", (), SIMPLE, id="entry-point", marks=long),
        pytest.param(f"c.JupyterHub.spawner_class = {PATH!r}", (), SIMPLE, id="path", marks=long),
        pytest.param("c.JupyterHubApp.spawner_class = 'simple'", (), SIMPLE, id="old-section", marks=long),
        pytest.param(
            f"c.merge({{'JupyterHub': {{'spawner_class': {PATH!r}}}}})", (), SIMPLE, id="merged", marks=long
        ),
        pytest.param(TWICE, (), "LocalProcessSpawner", id="twice", marks=long),
    ],
)
def test_a_class_that_is_set_after_enable_gets_the_policy(started, tmp_path, later, arguments, name):
    (tmp_path / "later.py").write_text("c = get_config()\nc.JupyterHub.spawner_class = 'simple'\n")
    how = "module" if arguments else "command"
    status, printed, log = started(f"c = get_config()\n{ENABLE}{later}\n", *arguments, how=how)
    assert status == 0, log
    assert printed[0].split()[1:] == [name, "True", "True"], printed
    assert ENDS_SERVERS in log


@pytest.mark.long
def test_what_cannot_work_is_said_of_the_class_that_is_set_later(started):
    config = "c = get_config()\n" + ENABLE + LATER_CLASS + "c.SiteSpawner.isolate_devices = True\n"
    status, _, log = started(config)
    assert status != 0 and "isolate_devices hides the GPU" in log
    # And what was wrong when it was enabled, and was put right afterwards, is not.
    config = "c = get_config()\nc.JupyterHub.spawner_class = 'nonsense'\n" + ENABLE + LATER_CLASS
    status, printed, log = started(config)
    assert (status, printed[0].split()[1:]) == (0, ["SiteSpawner", "True", "True"]), log


@pytest.mark.parametrize(
    ("said", "arguments", "warned"),
    [
        pytest.param("", (), True, marks=long),
        pytest.param("c.JupyterHub.cleanup_servers = False", (), False, marks=long),
        pytest.param("c.JupyterHub.cleanup_servers = True", (), False, marks=long),  # the site has decided so
        pytest.param("", ("--JupyterHub.cleanup_servers=False",), False, marks=long),
    ],
)
def test_a_hub_whose_end_ends_servers_says_so(started, said, arguments, warned):
    status, _, log = started("c = get_config()\n" + ENABLE + said + "\n", *arguments)
    assert status == 0, log
    assert log.count(ENDS_SERVERS) == warned


@pytest.mark.parametrize(
    ("spawner", "said", "warned"),
    [
        pytest.param("batchspawner.SlurmSpawner", "", True, marks=long),
        pytest.param("batchspawner.SlurmSpawner", "c.Spawner.gpu_room_at = 'nowhere'", False, marks=long),
        pytest.param("dockerspawner.SwarmSpawner", "", True, marks=long),
        pytest.param("dockerspawner.SystemUserSpawner", "", False, marks=long),
        pytest.param("simple", "", False, marks=long),
    ],
)
def test_a_hub_that_asks_nowhere_for_room_says_so(started, spawner, said, warned):
    classes = f"c.JupyterHub.spawner_class = {spawner!r}\nc.Spawner.gpu_memory = '1GiB'"
    status, _, log = started(f"c = get_config()\n{ENABLE}{classes}\n{said}\n")
    assert status == 0, log
    assert ("no GPU room is asked for before servers" in log) == warned


def test_a_class_of_a_batch_system_that_is_set_after_enable_gets_the_policy_and_is_warned_of(started):
    classes = LATER_CLASS.replace("jupyterhub.spawner", "batchspawner").replace(SIMPLE, "SlurmSpawner")
    status, printed, log = started(f"c = get_config()\n{ENABLE}{classes}\nc.Spawner.gpu_memory = '1GiB'\n")
    assert status == 0, log
    assert printed[0].split()[1:] == ["SiteSpawner", "True", "True"], printed
    assert ENDS_SERVERS in log
    assert "no GPU room is asked for before servers" in log

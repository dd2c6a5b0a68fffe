"""The Littlest JupyterHub's own configuration, spawner and plugin manager, with our plugin, on a systemd of its own.

Its installer is not run: it fetches conda, packages and Traefik. What it leaves is made here with its own functions
where it has them; the proxy is the one of other Hubs.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import pytest
from gpu_cells import SETUP
from live_hub import REPOSITORY, Hub, user_python
from live_machine import new_machine
from own_systemd import own_systemd
from people import open_to_everyone
from user_servers import SERVER, UserServer

TLJH = REPOSITORY / "build" / "tljh"
LIMIT = "900M"
# What a site may add in a file of its own, here for the tests.
SITE = """
import json, os
WANTED = json.loads(os.environ["HUB_TEST"])
c.JupyterHub.proxy_class = "jupyterhub.proxy.ConfigurableHTTPProxy"
c.JupyterHub.bind_url = f"http://127.0.0.1:{WANTED['port']}/"
c.JupyterHub.hub_port = WANTED["hub_port"]
c.JupyterHub.db_url = "sqlite:///" + WANTED["folder"] + "/hub.sqlite"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{WANTED['proxy_port']}"
c.ConfigurableHTTPProxy.command = WANTED["proxy"]
c.ConfigurableHTTPProxy.pid_file = WANTED["folder"] + "/proxy.pid"
c.JupyterHub.services.append({"name": "tester", "api_token": "tester-token"})
scopes = ["admin:users", "admin:servers", "access:servers", "tokens"]
c.JupyterHub.load_roles.append({"name": "tester", "services": ["tester"], "scopes": scopes})
c.Spawner.http_timeout = c.Spawner.start_timeout = 120
c.SystemdSpawner.unit_extra_properties = {
    f"Standard{name}": f"append:{WANTED['folder']}/server.log" for name in ("Output", "Error")
}
c.Spawner.keep_kernels = "parked"
"""
SINGLE_USER = '#!/bin/sh\nexport PYTHONPATH={packages} {app}\nexec {python} {server} "$@"\n'
APP = "JUPYTERHUB_SINGLEUSER_APP=jupyter_server.serverapp.ServerApp"
# For the unit of the controller: a simulated GPU, whose folder it writes to, and no state, which has no place here.
SIMULATED = """[Service]
Environment={variables} AFFINODE_FOLDER=/run/affinode/own
ReadWritePaths={folder}/gpu
StateDirectory=
StandardError=append:{folder}/controller.log
"""
PLUGINS = "from tljh.utils import get_plugin_manager; get_plugin_manager().hook.tljh_post_install()"


class LittlestHub(Hub):
    """A Hub with TLJH's `jupyterhub_config.py`."""

    config = TLJH / "tljh" / "jupyterhub_config.py"


@contextlib.contextmanager
def littlest_hub():
    """One that is installed, and its systemd; its users' home folders are in the machine's."""
    with new_machine() as machine:
        open_to_everyone(machine)
        machine.simulate(memory="256MiB")
        gpu = machine.folder / "gpu"
        gpu.chmod(0o755)
        (gpu / "machine").touch()
        (gpu / "machine").chmod(0o666)
        machine.environment["AFFINODE_SOCKET"] = "/run/affinode/node.sock"  # said, since the GPU is simulated
        home, prefix = machine.folder / "home", machine.folder / "tljh"
        home.mkdir()
        (home / "ana").symlink_to("jupyter-ana")
        for part in ("config/jupyterhub_config.d", "state", "user/bin"):
            (prefix / part).mkdir(parents=True)
        with own_systemd(machine.folder, {}) as systemd:
            hub = LittlestHub(machine, "5", prefix=[*systemd.command, "env", f"--chdir={prefix}/state"])
            hub.packages = f"{TLJH}:{hub.packages}"
            hub.environment |= {"PYTHONPATH": hub.packages, "TLJH_INSTALL_PREFIX": str(prefix)}
            install(hub, systemd, prefix)
            hub.start()
            hub.add("ana")
            yield hub, systemd
            hub.stop()


def install(hub, systemd, prefix: Path) -> None:
    """Do what TLJH's installer and an administrator do."""

    def run(*command: str) -> None:
        variables = [f"{name}={hub.environment[name]}" for name in ("PYTHONPATH", "TLJH_INSTALL_PREFIX")]
        print(systemd.run("env", *variables, "sh", "-c", 'exec "$@" 2>&1', "sh", *command))

    run("useradd", "--defaults", f"--base-dir={hub.folder / 'home'}")
    run(sys.executable, "-c", "from tljh.installer import ensure_usergroups; ensure_usergroups()")
    for name, value in (("auth.type", "dummy"), ("limits.memory", LIMIT)):
        run(sys.executable, "-m", "tljh.config", "set", name, value)
    (prefix / "config" / "jupyterhub_config.d" / "site.py").write_text(SITE)
    program = prefix / "user" / "bin" / "jupyterhub-singleuser"
    packages = hub.packages.removeprefix(f"{TLJH}:")
    words = {"packages": packages, "app": APP, "python": user_python(), "server": " ".join(SERVER)}
    program.write_text(SINGLE_USER.format(**words))
    program.chmod(0o755)
    simulated = [each for each in hub.environment.items() if each[0].startswith("AFFINODE_S")]
    variables = " ".join(f"{name}={value}" for name, value in simulated)
    (hub.folder / "sim.conf").write_text(SIMULATED.format(variables=variables, folder=hub.folder))
    folder = "/run/systemd/system/affinode.service.d"
    run("sh", "-c", f"mkdir {folder} && cp {hub.folder}/sim.conf {folder}")
    run(sys.executable, "-c", PLUGINS)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_culled_server_of_tljhs_leaves_its_kernels_parked_within_its_limits(native, wait_until):
    pytest.importorskip("systemdspawner", reason="pip install --group apart")
    if not TLJH.exists():
        pytest.skip(f"The Littlest JupyterHub is not here: make {TLJH.relative_to(REPOSITORY)}")
    with littlest_hub() as (hub, systemd):

        def start():
            hub.spawn("ana")
            hub.follow("ana").whole()
            wait_until(lambda: hub.server("ana").get("ready"), message=hub.log)
            return UserServer(hub, "ana")

        assert "keep_kernels has no effect" not in hub.log()
        assert systemd.shown("affinode.service", "ActiveState") == "active", hub.machine.controller_log()
        ana = start()
        assert systemd.run("id", "-nG", "jupyter-ana").split() == ["jupyter-ana", "jupyterhub-users"]
        kernel = ana.start_kernel(path="kept.ipynb")
        checksum = kernel.run(f"{SETUP}\nblock = Block(64, seed=7)\nprint(block.checksum())").text
        pid = kernel.pid
        slice_name = systemd.shown("jupyter-ana.service", "Slice")
        assert systemd.shown(slice_name, "MemoryMax") == str(900 << 20)

        assert hub.ask("DELETE", "/users/ana/server")[0] in (202, 204)
        wait_until(lambda: not hub.server("ana"), message=hub.log)
        (scope,) = systemd.units("jupyter-ana*")
        assert scope.startswith("jupyter-ana-kept-") and systemd.exists(pid)
        status = systemd.run(sys.executable, "-m", "jupyter_affinode.cli", "status")
        assert re.search(r"jupyter-ana.*kept.*", status), status

        start()
        assert kernel.run("print(block.checksum())").text == checksum and kernel.pid == pid
        kernel.shutdown()
        assert hub.ask("DELETE", "/users/ana/server")[0] in (202, 204)
        wait_until(lambda: systemd.processes("jupyter-ana") == [])

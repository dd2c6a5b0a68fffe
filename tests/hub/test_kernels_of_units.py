"""Kernels that outlive servers which systemd started, by the real SystemdSpawner on a systemd of its own."""

from __future__ import annotations

import contextlib

import pytest
from live_hub import Hub, user_python
from live_machine import new_machine
from own_systemd import own_systemd
from people import open_to_everyone
from user_servers import ANA, SERVER, UserServer

pytest.importorskip("systemdspawner", reason="pip install --group apart")

MIB = 1 << 20
LIMIT = 900 * MIB
LATER = f"""
from systemdspawner import SystemdSpawner

class UserCreatingSpawner(SystemdSpawner):
    def start(self):  # as The Littlest JupyterHub's
        self.username_template = self.user.name
        return super().start()

c.JupyterHub.spawner_class = UserCreatingSpawner
c.SystemdSpawner.unit_name_template = "jupyter-{{USERNAME}}"
c.SystemdSpawner.mem_limit = {LIMIT}
c.SystemdSpawner.unit_extra_properties = {{
    f"Standard{{name}}": f"append:{{WANTED['folder']}}/server.log" for name in ("Output", "Error")
}}
"""
# A server that has started another program, as a proxy of applications does.
AND_ANOTHER = 'setsid sleep 7777 & exec "$0" "$@"'
HOLD = "held = bytearray({mib} << 20)\nfor at in range(0, len(held), 4096): held[at] = 1"


@contextlib.contextmanager
def hub_of_units():
    """A Hub whose servers are units, and the systemd that both are of."""
    with new_machine() as machine:
        open_to_everyone(machine)
        home = machine.folder / "home" / "ana"
        home.mkdir(parents=True)
        home.chmod(0o777)
        with own_systemd(machine.folder, {"ana": ANA}) as systemd:
            hub = Hub(
                machine,
                prefix=systemd.command,
                cmd=["/bin/sh", "-c", AND_ANOTHER, user_python(), *SERVER],
                environment={"JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"},
                spawner={"keep_kernels": "all"},
                later=LATER,
            )
            hub.wanted["environment"]["PYTHONPATH"] = hub.packages
            hub.start()
            hub.add("ana")
            yield hub, systemd
            hub.stop()


@pytest.mark.long
def test_kernels_of_units_outlive_their_server_within_its_limits(native, wait_until):
    with hub_of_units() as (hub, systemd):

        def start():
            hub.spawn("ana")
            hub.follow("ana").whole()
            wait_until(lambda: hub.server("ana").get("ready"), message=hub.log)
            return UserServer(hub, "ana")

        assert "keep_kernels has no effect" not in hub.log()
        ana = start()
        kernel = ana.start_kernel(path="kept.ipynb")
        kernel.run(HOLD.format(mib=100))
        pid = kernel.pid
        slice_name = systemd.shown("jupyter-ana.service", "Slice")
        assert systemd.shown(slice_name, "MemoryMax") == str(LIMIT)
        assert any("sleep 7777" in line for line in systemd.processes(ANA))

        assert hub.ask("DELETE", "/users/ana/server")[0] in (202, 204)
        wait_until(lambda: not hub.server("ana"), message=hub.log)
        (scope,) = systemd.units("jupyter-ana*")
        assert scope.startswith("jupyter-ana-kept-") and systemd.shown(scope, "Slice") == slice_name
        assert systemd.exists(pid)
        assert not any("sleep 7777" in line for line in systemd.processes(ANA))

        start()
        assert kernel.run("len(held)").text == str(100 * MIB)
        greedy = ana.start_kernel()
        greedy_pid = greedy.pid
        greedy.submit(HOLD.format(mib=LIMIT // MIB - 150))  # alone it would fit
        wait_until(lambda: not systemd.exists(greedy_pid), message=hub.log)
        greedy.shutdown()

        main = systemd.shown("jupyter-ana.service", "MainPID")
        systemd.run("kill", "-KILL", main)
        wait_until(lambda: systemd.shown("jupyter-ana.service", "ActiveState") == "failed")
        start()
        assert kernel.run("len(held)").text == str(100 * MIB) and kernel.pid == pid

        kernel.shutdown()
        assert hub.ask("DELETE", "/users/ana/server")[0] in (202, 204)
        wait_until(lambda: systemd.processes(ANA) == [], message=lambda: str(systemd.processes(ANA)))
        wait_until(lambda: systemd.units("*jupyter*ana*") == set())

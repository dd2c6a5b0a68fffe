"""Kernels that outlive servers which the real SudoSpawner started, by the real sudo, as another user."""

from __future__ import annotations

import shutil

import pytest
from live_hub import Hub, user_python
from live_machine import new_machine
from own_systemd import own_systemd
from people import open_to_everyone
from user_servers import ANA, SERVER, UserServer

pytest.importorskip("sudospawner", reason="pip install --group apart")

LATER = """
from sudospawner import SudoSpawner
c.JupyterHub.spawner_class = SudoSpawner
c.SudoSpawner.sudospawner_path = WANTED["folder"] + "/bin/sudospawner"
"""
# As pip writes it; the package is where every user may read it.
MEDIATOR = "#!{python}\nimport sys\nsys.path[:0] = {path!r}\nfrom sudospawner.mediator import main\nsys.exit(main())\n"
SINGLE_USER = '#!/bin/sh\nexport PYTHONPATH={packages}\nexec {python} {server} "$@"\n'


@pytest.mark.long
def test_kernels_of_sudo_servers_outlive_a_stop_and_a_crash(native, wait_until):
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not here")
    with new_machine() as machine:
        open_to_everyone(machine)
        home = machine.folder / "home" / "ana"
        home.mkdir(parents=True)
        home.chmod(0o777)
        with own_systemd(machine.folder, {"ana": ANA}) as systemd:  # for its users and its /tmp
            hub = Hub(machine, prefix=systemd.command, spawner={"keep_kernels": "all"}, later=LATER)
            hub.wanted["environment"] = {"JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"}
            programs = machine.folder / "bin"
            programs.mkdir()
            words = {"python": user_python(), "path": hub.packages.split(":"), "packages": hub.packages}
            (programs / "sudospawner").write_text(MEDIATOR.format(**words))
            (programs / "sudospawner-singleuser").write_text(
                SINGLE_USER.format(server=" ".join(SERVER), **words)
            )
            for program in programs.iterdir():
                program.chmod(0o755)
            hub.start()
            hub.add("ana")

            def start():
                hub.spawn("ana")
                hub.follow("ana").whole()
                wait_until(lambda: hub.server("ana").get("ready"), message=hub.log)
                return UserServer(hub, "ana")

            ana = start()
            kernel = ana.start_kernel(path="kept.ipynb")
            kernel.run("kept = 'as it was'")
            pid = kernel.pid
            assert hub.ask("DELETE", "/users/ana/server")[0] in (202, 204)
            wait_until(lambda: not hub.server("ana"), message=hub.log)
            assert not any("singleuser" in line for line in systemd.processes(ANA))
            assert systemd.exists(pid)
            start()
            assert kernel.run("kept").text == "'as it was'" and kernel.pid == pid
            systemd.run("pkill", "-KILL", "-u", "ana", "-f", "jupyterhub.singleuser")
            wait_until(lambda: not any("singleuser" in line for line in systemd.processes(ANA)))
            start()
            assert kernel.run("kept").text == "'as it was'" and kernel.pid == pid
            kernel.shutdown()
            assert hub.ask("DELETE", "/users/ana/server")[0] in (202, 204)
            wait_until(lambda: systemd.processes(ANA) == [], message=lambda: str(systemd.processes(ANA)))
            hub.stop()

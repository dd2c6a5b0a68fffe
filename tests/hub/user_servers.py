"""Real servers of a Hub's users: each under a Unix user of its own, on one simulated GPU."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

from live_hub import TOKEN, Hub, user_python
from live_machine import new_machine
from live_server import JupyterServer
from people import open_to_everyone

ANA, BOB = 61011, 61012
SERVER = ["-m", "jupyterhub.singleuser", "--ServerApp.jpserver_extensions=jupyter_affinode=True"]


class UserServer(JupyterServer):
    """A server that a Hub started for one of its users."""

    def __init__(self, hub, user):
        home = hub.folder / "home" / user
        runtime = str(home / ".local" / "share" / "jupyter" / "runtime")
        machine = SimpleNamespace(environment={"JUPYTER_RUNTIME_DIR": runtime}, folder=home)
        super().__init__(machine)
        self.hub, self.user, self.token, self.port = hub, user, TOKEN, hub.port

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/user/{self.user}"

    def log(self):
        return self.hub.log()


@contextlib.contextmanager
def gpu_hub(version, users, environment=(), **options):
    """A Hub of these users (with their ids), whose servers share the machine's controller on a simulated GPU."""
    with new_machine() as machine:
        open_to_everyone(machine)
        machine.simulate(memory="128MiB")
        made = Hub(
            machine,
            version,
            prefix=[sys.executable, "-m", "jupyter_affinode.cli", "simulate", "--all-users", "--"],
            cmd=[user_python(), *SERVER],
            environment={
                "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
                "AFFINODE_SIM_CONTEXT": "4MiB",
                **dict(environment),
            },
            **options,
        ).start()
        (socket,) = {line.split()[1] for line in made.hooks() if line.startswith("socket ")}
        machine.socket = Path(socket)
        made.add(*users)
        settings = {"margin_bytes": 16 << 20, "host_reserve_bytes": 1 << 28}
        assert machine.ask("PATCH", "/policy", settings)[0] == 200
        yield made
        for user in users:
            made.ask("DELETE", f"/users/{user}/server")
        made.stop()

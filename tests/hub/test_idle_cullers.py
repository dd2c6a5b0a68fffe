"""Real cullers beside a real Hub: what waits for the GPU or computes on it survives, what was forgotten does not."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone

import pytest
from gpu_cells import SETUP
from live_hub import REPOSITORY, TOKEN
from user_servers import UserServer, gpu_hub

pytestmark = pytest.mark.long

USERS = {"ana": 61011, "bob": 61012, "carla": 61013}
EARLIER = REPOSITORY / "build" / "culler-1.4"
CONFIG = """
from hub_spawner.culling import cull_arbiter
c.IdleCuller.cull_arbiter_hook = cull_arbiter
"""


@pytest.fixture(params=["2", "1.4"])
def culler(request):
    """(what runs the culler, its time-out, how often servers tell the Hub of activity).

    Servers of the second tell it at once, since that culler has no rule of ours; of the first they never do.
    """
    if request.param == "2":
        return {}, 10, 3600
    if not EARLIER.exists():
        pytest.skip(f"{EARLIER} is not there: make {EARLIER.relative_to(REPOSITORY)}")
    return {"PYTHONPATH": str(EARLIER)}, 45, 1


@pytest.fixture(params=["6", "5"], ids=["hub-6", "hub-5.5"])
def hub(native, culler, request):
    with gpu_hub(request.param, USERS, {"JUPYTERHUB_ACTIVITY_INTERVAL": str(culler[2])}) as made:
        yield made


def test_a_parked_forgotten_server_is_culled_and_those_that_need_the_gpu_are_not(hub, culler, wait_until):
    environment, timeout_s, _ = culler
    machine = hub.machine
    kernels = {}
    for user in USERS:
        hub.spawn(user)
    for user in USERS:
        hub.follow(user).whole()
        kernels[user] = UserServer(hub, user).start_kernel()
        assert kernels[user].run(SETUP).status == "ok"
    assert kernels["ana"].run("block = Block(25)").status == "ok"
    assert machine.ask("POST", f"/kernels/uid-61011%2F{kernels['ana'].id}/park", {})[0] == 200
    assert kernels["carla"].run("block = Block(75)").status == "ok"
    kernels["carla"].submit("while True: block.fill(1)")  # and prints nothing
    kernels["bob"].submit("block = Block(75)")
    wait_until(lambda: machine.kernel(f"uid-61012%2F{kernels['bob'].id}")["residency"] == "queued")

    def inactive_s(user):
        moment = datetime.fromisoformat(hub.server(user)["last_activity"].replace("Z", "+00:00"))
        return (datetime.now(timezone.utc) - moment).total_seconds()

    told = ["ana"] if environment else list(USERS)  # all look idle to version 2, which asks the controller
    wait_until(lambda: all(inactive_s(user) > timeout_s for user in told), timeout=200)
    config = hub.folder / "idle_culler_config.py"
    config.write_text("" if environment else CONFIG)
    with (hub.folder / "culler.log").open("ab") as log:
        machine.start(
            *(sys.executable, "-m", "jupyterhub_idle_culler", f"--url=http://127.0.0.1:{hub.port}/hub/api"),
            *(f"--timeout={timeout_s}", "--cull-every=1"),
            *([] if environment else [f"--IdleCuller.config_file={config}"]),
            env={
                **hub.environment,
                "AFFINODE_SOCKET": str(machine.socket),
                "JUPYTERHUB_API_TOKEN": TOKEN,
                "PYTHONPATH": os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), hub.packages))),
            },
            stdout=log,
            stderr=log,
        )
    wait_until(lambda: not hub.server("ana"), timeout=120)
    for user in ("bob", "carla"):  # they were looked at in the same pass
        assert hub.server(user)["ready"], (hub.folder / "culler.log").read_text()
    kernels["carla"].server.request("POST", f"/api/kernels/{kernels['carla'].id}/interrupt")

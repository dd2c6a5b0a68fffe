"""An administrator's warm kernelspec at a real Hub: each user has kernels of their own from the spawn on."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_cells import SETUP
from live_hub import Hub, proxy_command, user_python
from live_server import exists
from user_servers import ANA, BOB, UserServer, gpu_hub

USERS = {"ana": ANA, "bob": BOB}


def write_spec(folder: Path) -> None:
    """Write a kernelspec for all users."""
    spec = folder / "kernels" / "course"
    spec.mkdir(parents=True)
    (spec / "prelude.py").write_text(f"{SETUP}\nimport os\nblock = Block(8, seed=7)\nmine = os.getuid()")
    model = {
        "argv": [user_python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Course",
        "language": "python",
        "metadata": {"affinode": {"warm": {"count": 1, "prelude": "prelude.py"}}},
    }
    (spec / "kernel.json").write_text(json.dumps(model))
    config = {"AffinodeExtension": {"warm_for_s": 1}}
    (folder / "jupyter_server_config.json").write_text(json.dumps(config))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)


@pytest.mark.long
def test_each_user_of_a_hub_has_warm_kernels_from_the_spawn_on(native, wait_until):
    proxy_command()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        write_spec(Path(folder))
        places = {"JUPYTER_PATH": folder, "JUPYTER_CONFIG_PATH": folder}
        with gpu_hub("6", USERS, environment=places.items()) as hub:
            servers = take_kernels(hub, wait_until)
            wait_until(lambda: all(ready(server) for server in servers.values()), message=hub.log)
            kernels = hub.machine.kernels().values()
            left = [process["pid"] for kernel in kernels for process in kernel["processes"]]
        wait_until(lambda: not any(map(exists, left)))  # a second after the servers, as the setting says


def ready(server: UserServer) -> list[str]:
    """The ids of warm kernels that are ready, as a server tells them."""
    pools = server.affinode()[1]["warm"]
    return [kernel["id"] for pool in pools for kernel in pool["kernels"]]


def take_kernels(hub: Hub, wait_until: Callable[..., object]) -> dict[str, UserServer]:
    """Have both users take the kernels that their servers had made."""
    servers = {}
    for user in USERS:
        hub.spawn(user)
        hub.follow(user).whole()
        servers[user] = UserServer(hub, user)

    wait_until(lambda: all(ready(server) for server in servers.values()), message=hub.log)
    known = hub.machine.kernels()
    for user, uid in USERS.items():
        (kernel_id,) = ready(servers[user])
        assert f"uid-{uid}/{kernel_id}" in known
    for user, uid in USERS.items():
        kernel = servers[user].start_kernel("course")
        assert kernel.run("print(mine, os.getuid(), block.checksum() > 0)").text == f"{uid} {uid} True\n"
        assert f"uid-{uid}/{kernel.id}" in hub.machine.kernels()
    assert hub.log().count("was ready: it is a warm one") == len(USERS)
    return servers

"""A Hub that is restarted as the documentation says leaves servers, kernels and their GPU memory as they were."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from gpu_cells import SETUP
from live_hub import Hub, user_python
from live_machine import new_machine
from people import simulate_for_everyone
from user_servers import ANA, SERVER, UserServer

SIZE = 100 << 20
PAGE = Path(__file__).parents[2] / "docs" / "hub" / "one-machine.md"


def test_the_page_of_one_machine_keeps_servers_over_a_restart():
    config = re.findall(r"```python\n(c = get_config\(\).*?)```", PAGE.read_text(), re.DOTALL)
    assert len(config) == 1 and "c.JupyterHub.cleanup_servers = False" in config[0]


def on_gpu(machine, kernel):
    """Return how many bytes a kernel of ana's has on the GPU."""
    uses = machine.kernels()[f"uid-{ANA}/{kernel.id}"]["gpus"]
    return sum(use["resident_bytes"] for use in uses)


@pytest.mark.parametrize(
    "version", ["6", pytest.param("5", marks=pytest.mark.long)], ids=["hub-6", "hub-5.5"]
)
@pytest.mark.parametrize(
    "keeps_proxy", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "proxy-stays"]
)
@pytest.mark.long
def test_a_kernel_and_its_gpu_memory_outlive_a_restart_of_the_hub(native, wait_until, version, keeps_proxy):
    with new_machine() as machine:
        simulate_for_everyone(machine)
        machine.start_controller("--system")
        hub = Hub(
            machine,
            version,
            cmd=[user_python(), *SERVER],
            environment={"JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"},
            spawner={"gpu_memory": "100MiB"},
            cleanup_servers=False,
            later=f"c.JupyterHub.cleanup_proxy = {not keeps_proxy}",
        ).start()
        hub.add("ana")
        hub.spawn("ana")
        hub.follow("ana").whole()
        wait_until(lambda: hub.server("ana").get("ready"), timeout=120)
        server = UserServer(hub, "ana")
        kernel = server.start_kernel()
        filled = kernel.run(
            f"{SETUP}\nimport os; block = Block(100, seed=7); print(block.checksum(), os.getpid())"
        )
        assert filled.status == "ok", filled.text
        wait_until(lambda: on_gpu(machine, kernel) == SIZE)

        assert hub.stop(signal.SIGTERM) == 0
        assert on_gpu(machine, kernel) == SIZE
        hub.start()
        wait_until(lambda: hub.server("ana").get("ready"), timeout=120)
        wait_until(lambda: server.affinode()[0] == 200, timeout=60)
        again = kernel.run("print(block.checksum(), os.getpid())", timeout=120)
        assert again.text.split() == filled.text.split()
        assert on_gpu(machine, kernel) == SIZE
        assert machine.kernels().keys() == {f"uid-{ANA}/{kernel.id}"}
        hub.ask("DELETE", "/users/ana/server")
        hub.stop()

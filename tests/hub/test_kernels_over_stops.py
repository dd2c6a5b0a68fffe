"""Kernels that outlive the servers of a real Hub: GPU memory, open tabs, tokens."""

from __future__ import annotations

import logging

import pytest
from gpu_cells import SETUP
from live_hub import NAVIGATE
from live_server import exists
from traitlets.config import Config
from traitlets.utils.importstring import import_item
from user_servers import ANA, UserServer, gpu_hub

from hub_spawner.enabling import _enabled as enabled


@pytest.fixture(
    scope="module", params=["6", pytest.param("5", marks=pytest.mark.long)], ids=["hub-6", "hub-5.5"]
)
def hub(native, request):
    with gpu_hub(request.param, {"ana": ANA}, spawner={"keep_kernels": "parked"}) as made:
        yield made


def server_tokens(hub):
    """How many tokens ana's servers have left in the Hub."""
    tokens = hub.ask("GET", "/users/ana/tokens")[1]["api_tokens"]
    return sum(token["note"].startswith("Server at") for token in tokens)


def stop(hub, wait_until):
    """Stop ana's server, as the culler does."""
    assert hub.ask("DELETE", "/users/ana/server")[0] in (202, 204)
    wait_until(lambda: not hub.server("ana"), message=hub.log)


def start(hub):
    """Start ana's server."""
    hub.spawn("ana")
    hub.follow("ana").whole()
    return UserServer(hub, "ana")


def test_a_stopped_server_leaves_its_kernels_parked_and_the_next_one_has_them(hub, wait_until):
    ana = start(hub)
    kernel = ana.start_kernel(path="idle.ipynb")
    filled = kernel.run(f"{SETUP}\nimport os; block = Block(100, seed=7); print(block.checksum())")
    pid, token = kernel.pid, kernel.environment()["JUPYTERHUB_API_TOKEN"]
    browser = hub.log_in("ana")
    # Identified by the Hub, the browser has a cookie.
    browser.get(f"{ana.url}/view/idle.ipynb", timeout=60, headers=NAVIGATE)
    assert browser.get(f"{ana.url}/api/kernels", timeout=60, headers=NAVIGATE).status_code == 200

    identified = hub.ask("GET", "/user", token=token)[1]["token_id"]
    stop(hub, wait_until)
    assert exists(pid)
    kept = hub.machine.kernel(f"uid-{ANA}%2F{kernel.id}")
    assert kept["residency"] == "parked" and kept["parked_bytes"] >= 100 << 20
    start(hub)
    seen = browser.get(f"{ana.url}/api/kernels", timeout=60, headers=NAVIGATE, allow_redirects=False)
    assert seen.status_code == 200, "a tab that was open is to go on"
    assert [each["id"] for each in seen.json()] == [kernel.id]
    assert kernel.run("print(block.checksum())").text == filled.text
    assert kernel.pid == pid
    assert server_tokens(hub) == 1
    assert hub.ask("GET", "/user", token=token)[1]["token_id"] == identified, "the kernel's own token holds"
    kernel.shutdown()
    wait_until(lambda: not exists(pid))
    stop(hub, wait_until)


@pytest.mark.long
def test_a_kernel_that_cannot_be_parked_ends_with_its_server(hub, wait_until):
    ana = start(hub)
    kernel, plain = ana.start_kernel(), ana.start_kernel()
    kernel.run(f"{SETUP}\nother = Block(50, seed=8)")
    pid, plain_pid = kernel.pid, plain.pid
    assert hub.machine.ask("PATCH", "/policy", {"host_reserve_bytes": 1 << 50})[0] == 200  # no park has room
    stop(hub, wait_until)
    assert f"Kernel {kernel.id} is not kept: it uses the GPU." in hub.log()
    assert not exists(pid) and exists(plain_pid)
    start(hub)
    plain.shutdown()
    stop(hub, wait_until)


@pytest.mark.parametrize(
    ("spawner", "says"),
    [("kubespawner.KubeSpawner", True), ("jupyterhub.spawner.LocalProcessSpawner", False)],
)
def test_a_hub_whose_servers_end_whole_says_so(caplog, spawner, says):
    with caplog.at_level(logging.WARNING):
        enabled(Config(Spawner={"keep_kernels": "all"}), import_item(spawner))
    assert ("keep_kernels has no effect" in caplog.text) is says

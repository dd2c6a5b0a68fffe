"""Kernels that outlive the servers of a real Hub: GPU memory, open tabs, tokens."""

from __future__ import annotations

import logging
import re

import pytest
from gpu_cells import SETUP
from live_hub import NAVIGATE, xsrf
from live_server import exists
from traitlets.config import Config
from traitlets.utils.importstring import import_item
from user_servers import ANA, BOB, UserServer, gpu_hub

from hub_spawner.enabling import _enabled as enabled


@pytest.fixture(
    scope="module", params=["6", pytest.param("5", marks=pytest.mark.long)], ids=["hub-6", "hub-5.5"]
)
def hub(native, request):
    spawner = {"keep_kernels": "parked", "keep_kernels_per_user": 2}
    with gpu_hub(request.param, {"ana": ANA, "bob": BOB}, spawner=spawner, service={}) as made:
        yield made


def server_tokens(hub):
    """How many tokens ana's servers have left in the Hub."""
    tokens = hub.ask("GET", "/users/ana/tokens")[1]["api_tokens"]
    return sum(token["note"].startswith("Server at") for token in tokens)


def stop(hub, wait_until, user="ana"):
    """Stop a user's server, as the culler does."""
    assert hub.ask("DELETE", f"/users/{user}/server")[0] in (202, 204)
    wait_until(lambda: not hub.server(user), message=hub.log)


def start(hub, user="ana"):
    """Start a user's server."""
    hub.spawn(user)
    hub.follow(user).whole()
    return UserServer(hub, user)


def test_a_stopped_server_leaves_its_kernels_parked_and_the_next_one_has_them(hub, wait_until):
    ana = start(hub)
    kernel = ana.start_kernel(path="idle.ipynb")
    filled = kernel.run(f"{SETUP}\nimport os; block = Block(40, seed=7); print(block.checksum())")
    pid, token = kernel.pid, kernel.environment()["JUPYTERHUB_API_TOKEN"]
    browser = hub.log_in("ana")
    # Identified by the Hub, the browser has a cookie.
    browser.get(f"{ana.url}/view/idle.ipynb", timeout=60, headers=NAVIGATE)
    assert browser.get(f"{ana.url}/api/kernels", timeout=60, headers=NAVIGATE).status_code == 200

    identified = hub.ask("GET", "/user", token=token)[1]["token_id"]
    stop(hub, wait_until)
    assert exists(pid)
    kept = hub.machine.kernel(f"uid-{ANA}%2F{kernel.id}")
    assert kept["residency"] == "parked" and kept["parked_bytes"] >= 40 << 20
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
    kernel.run(f"{SETUP}\nother = Block(30, seed=8)")
    pid, plain_pid = kernel.pid, plain.pid
    assert hub.machine.ask("PATCH", "/policy", {"host_reserve_bytes": 1 << 50})[0] == 200  # no park has room
    stop(hub, wait_until)
    assert f"Kernel {kernel.id} is not kept: it uses the GPU." in hub.log()
    assert not exists(pid) and exists(plain_pid)
    start(hub)
    plain.shutdown()
    stop(hub, wait_until)


def test_administrators_see_kept_kernels_and_end_them(hub, wait_until):
    """By user, size and since when, also one that uses no GPU; of more than a user may have the oldest has ended."""
    bob = start(hub, "bob")  # not ana, whose keeper another test may use at the same time
    oldest, plain, filled = (bob.start_kernel(path=f"{name}.ipynb") for name in ("oldest", "plain", "filled"))
    pids = [oldest.pid, plain.pid, filled.pid]
    filled.run(f"{SETUP}\nblock = Block(32, seed=9)")
    stop(hub, wait_until, "bob")
    wait_until(lambda: not exists(pids[0]))
    admin = hub.log_in("admin")
    page = f"{hub.url}/services/affinode/"
    shown = wait_until(lambda: kept_on(admin.get(page, timeout=60, headers=NAVIGATE), "plain", "filled"))
    assert "32 MiB" in shown
    for kernel, name, pid in ((plain, "plain", pids[1]), (filled, "filled", pids[2])):
        assert exists(pid)
        which = {"node": node_on(shown), "kernel": f"uid-{BOB}/{kernel.id}", "name": name, "action": "end"}
        form = {"_xsrf": xsrf(admin.get(page, timeout=60, headers=NAVIGATE)), **which}
        answer = admin.post(f"{page}kernel", data=form, headers=NAVIGATE, timeout=60)
        assert f"{name} is asked to end." in answer.text
        wait_until(lambda pid=pid: not exists(pid))
    wait_until(lambda: "kept since" not in admin.get(page, timeout=60, headers=NAVIGATE).text)


def kept_on(answer, *names):
    """The page's text, if it shows these as kept and offers to end them; else ""."""
    shows = all(
        f"{name}.ipynb" in answer.text and f'aria-label="End: {name}.ipynb"' in answer.text for name in names
    )
    return answer.text if shows and answer.text.count("none, kept since ") == len(names) else ""


def node_on(text):
    """The machine's name in the page's forms."""
    return re.search(r'name="node" value="([^"]*)"', text)[1]


@pytest.mark.long
def test_kernels_of_a_user_who_is_deleted_or_renamed_end(hub, wait_until):
    pids = []
    for user in ("ana", "bob"):
        kernel = start(hub, user).start_kernel()
        pids.append(kernel.pid)
        kernel.close()
        stop(hub, wait_until, user)
    assert all(map(exists, pids))
    assert hub.ask("DELETE", "/users/ana")[0] == 204
    assert hub.ask("PATCH", "/users/bob", {"name": "bert"})[0] == 200
    for pid in pids:
        wait_until(lambda pid=pid: not exists(pid), 200)
    assert hub.ask("PATCH", "/users/bert", {"name": "bob"})[0] == 200
    hub.add("ana")


@pytest.mark.parametrize(
    ("spawner", "says"),
    [("kubespawner.KubeSpawner", True), ("jupyterhub.spawner.LocalProcessSpawner", False)],
)
def test_a_hub_whose_servers_end_whole_says_so(caplog, spawner, says):
    with caplog.at_level(logging.WARNING):
        enabled(Config(Spawner={"keep_kernels": "all"}), import_item(spawner))
    assert ("keep_kernels has no effect" in caplog.text) is says

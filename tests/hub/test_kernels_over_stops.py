"""Servers of a real Hub's users on one simulated GPU: whose kernel has it, and kernels that outlive their server."""

from __future__ import annotations

import logging
import os
import re
import signal

import pytest
from gpu_cells import SETUP
from jupyterhub.spawner import Spawner
from live_hub import NAVIGATE, xsrf
from live_machine import pids_with
from live_server import exists
from people import Person
from traitlets import Bool, Dict
from traitlets.config import Config
from traitlets.utils.importstring import import_item
from user_servers import ANA, BOB, UserServer, gpu_hub

from hub_spawner import enabling, systemd
from hub_spawner.enabling import _enabled as enabled


@pytest.fixture(
    scope="module", params=["6", pytest.param("5", marks=pytest.mark.long)], ids=["hub-6", "hub-5.5"]
)
def hub(native, request):
    spawner = {"gpu_memory": "75MiB", "gpu_wait_s": 60, "keep_kernels": "parked", "keep_kernels_per_user": 2}
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
    """Start a user's server, if none runs."""
    if not hub.server(user):
        hub.spawn(user)
        hub.follow(user).whole()
    return UserServer(hub, user)


def test_an_idle_kernel_is_parked_for_another_users_server_and_comes_back(hub, wait_until):
    machine = hub.machine
    usual = machine.ask("GET", "/policy")[1]["contended_idle_timeout_s"]
    assert machine.ask("PATCH", "/policy", {"contended_idle_timeout_s": 0.5})[0] == 200
    hub.spawn("ana")
    assert "There is room for 75 MiB (simulated GPU)" in hub.follow("ana").whole()
    ana = UserServer(hub, "ana")
    kernel = ana.start_kernel()
    assert kernel.run(SETUP).status == "ok"
    filled = kernel.run("import os; block = Block(75, seed=7); print(block.checksum(), os.getuid())")
    assert filled.error is None, filled.traceback
    checksum, uid = filled.text.split()
    assert int(uid) == ANA

    hub.spawn("bob")
    told = hub.follow("bob").whole()
    assert any("1 idle kernel was freed (simulated GPU)" in message for message in told), told
    bob = UserServer(hub, "bob")
    theirs = bob.start_kernel()
    assert theirs.run(SETUP).status == "ok"
    assert theirs.run("block = Block(75, seed=9)").status == "ok"
    assert machine.kernel(f"uid-{ANA}%2F{kernel.id}")["residency"] == "parked"

    # Ana's next call brings her memory back; Bob's is parked for it, since he is idle.
    back = kernel.run("print(block.checksum())", timeout=120)
    assert back.text.split() == [checksum]
    # Of Bob's it needs a part: it may be back before the rest has left.
    wait_until(lambda: machine.kernel(f"uid-{BOB}%2F{theirs.id}")["residency"] == "parked")

    # Neither sees the other's kernel, by the socket or by a server; an administrator sees both.
    for own, other, uid in ((kernel, theirs, ANA), (theirs, kernel, BOB)):
        person = Person(machine, uid)
        assert set(person.kernels()) == {own.id}
        for name in (other.id, f"uid-{BOB if uid == ANA else ANA}%2F{other.id}"):
            assert person.ask("GET", f"/kernels/{name}")[0] == 404
    assert set(machine.kernels()) == {f"uid-{ANA}/{kernel.id}", f"uid-{BOB}/{theirs.id}"}
    for server, own in ((ana, kernel), (bob, theirs)):
        status, seen = server.affinode()
        assert status == 200
        assert [each["id"] for each in seen["kernels"]] == [own.id]
        assert seen["node"]["simulated"] is True
    token = hub.ask("POST", "/users/ana/tokens", {})[1]["token"]
    assert hub.ask("GET", "/user/bob/affinode/api/status", token=token, api=False)[0] == 403
    assert hub.ask("GET", "/user/ana/affinode/api/status", token=token, api=False)[0] == 200
    assert os.stat(machine.socket.parent / "machine").st_mode & 0o777 == 0o666
    kernel.shutdown()
    theirs.shutdown()
    assert machine.ask("PATCH", "/policy", {"contended_idle_timeout_s": usual})[0] == 200


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
def test_a_server_that_crashed_leaves_its_kernels_and_their_tokens(hub, wait_until):
    """The keeper asks with the server's token; of a server that it did not stop the Hub would delete it."""
    ana = start(hub)
    kernel = ana.start_kernel()
    pid, token = kernel.pid, kernel.environment()["JUPYTERHUB_API_TOKEN"]
    (served,) = pids_with("jupyterhub.singleuser", f"HOME={hub.folder}/home/ana")
    os.kill(served, signal.SIGKILL)
    wait_until(lambda: hub.spawn("ana")[0] == 202, message=hub.log)  # only now does the Hub see it
    hub.follow("ana").whole()
    assert [each["id"] for each in ana.request("GET", "/api/kernels")[1]] == [kernel.id]
    assert kernel.pid == pid
    assert hub.ask("GET", "/user", token=token)[0] == 200 and server_tokens(hub) == 1
    kernel.shutdown()
    stop(hub, wait_until)


@pytest.mark.long
def test_a_kernel_that_cannot_be_parked_ends_with_its_server(hub, wait_until):
    ana = start(hub)
    kernel, plain = ana.start_kernel(), ana.start_kernel()
    kernel.run(f"{SETUP}\nother = Block(30, seed=8)")
    pid, plain_pid = kernel.pid, plain.pid
    usual = hub.machine.ask("GET", "/policy")[1]["host_reserve_bytes"]
    assert hub.machine.ask("PATCH", "/policy", {"host_reserve_bytes": 1 << 50})[0] == 200  # no park has room
    stop(hub, wait_until)
    assert f"Kernel {kernel.id} is not kept: it uses the GPU." in hub.log()
    assert not exists(pid) and exists(plain_pid)
    assert hub.machine.ask("PATCH", "/policy", {"host_reserve_bytes": usual})[0] == 200
    start(hub)
    plain.shutdown()
    stop(hub, wait_until)


def test_administrators_see_kept_kernels_and_end_them(hub, wait_until):
    """By user, size and since when, also one that uses no GPU; of more than a user may have the oldest has ended."""
    bob = start(hub, "bob")  # not ana, whose keeper another test may use at the same time
    oldest, plain, filled = (bob.start_kernel(path=f"{name}.ipynb") for name in ("oldest", "plain", "filled"))
    pids = [oldest.pid, plain.pid, filled.pid]
    oldest.run("pass")  # on a busy machine messages of its start may come after the next one's
    filled.run(f"{SETUP}\nblock = Block(32, seed=9)")  # takes a while, in which the keeper hears the oldest
    plain.run("pass")
    stop(hub, wait_until, "bob")
    wait_until(lambda: not exists(pids[0]), message=lambda: f"there: {[exists(pid) for pid in pids]}")
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
    [
        ("kubespawner.KubeSpawner", True),
        ("dockerspawner.DockerSpawner", True),
        ("jupyterhub.spawner.LocalProcessSpawner", False),
        ("wrapspawner.WrapSpawner", False),  # that is for its child to say
    ],
)
def test_a_hub_whose_servers_end_whole_says_so(caplog, spawner, says):
    with caplog.at_level(logging.WARNING):
        enabled(Config(Spawner={"keep_kernels": "all"}), import_item(spawner))
    assert ("keep_kernels has no effect" in caplog.text) is says


class SystemdSpawner(Spawner):
    """With the traits of systemdspawner's."""

    unit_extra_properties = Dict().tag(config=True)
    dynamic_users = Bool(False).tag(config=True)
    isolate_tmp = Bool(False).tag(config=True)

    def start(self): ...
    def stop(self, now=False): ...
    def poll(self): ...


@pytest.mark.parametrize(
    ("configured", "runs", "says"),
    [
        ({}, True, None),
        ({}, False, "systemd does not run this machine"),
        ({"isolate_tmp": True}, True, "a /tmp that ends with it"),
        ({"unit_extra_properties": {"PrivateTmp": "yes"}}, True, "a /tmp that ends with it"),
        ({"dynamic_users": True}, True, "a user that ends with it"),
        ({"unit_extra_properties": {"KillMode": "mixed"}}, True, "KillMode=mixed"),
    ],
)
def test_a_hub_of_units_says_where_kernels_cannot_be_kept(
    caplog, monkeypatch, tmp_path, configured, runs, says
):
    monkeypatch.setattr(systemd, "RUNNING", tmp_path if runs else tmp_path / "none")
    c = Config(Spawner={"keep_kernels": "all"}, SystemdSpawner=configured)
    with caplog.at_level(logging.WARNING):
        made = enabled(c, SystemdSpawner)(config=c)
    assert made.gpu_keeps_kernels() is (says is None)
    assert (says or "") in caplog.text and ("keep_kernels has no effect" in caplog.text) is (says is not None)


def test_a_hub_that_ends_whole_says_that_kernels_do(caplog, monkeypatch):
    monkeypatch.setattr(enabling, "why_children_end", lambda: "its container ends with it")
    with caplog.at_level(logging.WARNING):
        enabled(
            Config(Spawner={"keep_kernels": "all"}), import_item("jupyterhub.spawner.LocalProcessSpawner")
        )
    assert "kernels that are kept end with the Hub: when it ends, its container ends with it" in caplog.text

"""Two Unix users of a Hub on one simulated GPU, with real servers, kernels and the machine's controller."""

from __future__ import annotations

import os

import pytest
from gpu_cells import SETUP
from people import Person
from user_servers import ANA, BOB, UserServer, gpu_hub


@pytest.fixture(
    scope="module", params=["6", pytest.param("5", marks=pytest.mark.long)], ids=["hub-6", "hub-5.5"]
)
def hub(native, request):
    users = {"ana": ANA, "bob": BOB}
    with gpu_hub(request.param, users, spawner={"gpu_memory": "75MiB", "gpu_wait_s": 60}) as made:
        yield made


def test_an_idle_kernel_is_parked_for_another_users_server_and_comes_back(hub):
    machine = hub.machine
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
    assert machine.kernel(f"uid-{BOB}%2F{theirs.id}")["residency"] == "parked"

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

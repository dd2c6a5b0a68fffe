"""Grants through real parts: a Hub signs one, its service renews it for a real server, the controller asks for it."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
import pytest
from gpu_cells import SETUP
from live_hub import Hub, user_python
from live_machine import new_machine
from people import Person, make_hub_keys, simulate_for_everyone
from user_servers import ANA, SERVER, UserServer

from jupyter_affinode.node.identity.grants import LEEWAY_S

pytestmark = pytest.mark.long  # the first grant has to end

LIFETIME_S = 60  # the shortest that the spawner takes


@pytest.fixture(params=["6", "5"], ids=["hub-6", "hub-5.5"])
def hub(native, request):
    """A Hub whose servers must show grants, and have them renewed."""
    with new_machine() as machine:
        simulate_for_everyone(machine)
        key, keys = make_hub_keys(machine.folder)
        machine.start_controller(
            "--system", f"--grant-keys={keys}", "--NodeController.grant_audiences=tests", "--require-grants"
        )
        signing = {"grant_key": str(key), "grant_audience": ["tests"]}
        made = Hub(
            machine,
            request.param,
            cmd=[user_python(), *SERVER],
            environment={"JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"},
            spawner={"gpu_memory": "100MiB", "gpu_priority": -5, "grant_lifetime_s": LIFETIME_S, **signing},
            service={"arguments": [f"--AffinodeService.grant_lifetime_s={LIFETIME_S}"], **signing},
        ).start()
        made.add("ana")
        yield made
        made.ask("DELETE", "/users/ana/server")
        made.stop()


def priority_of(grant):
    return jwt.decode(grant, options={"verify_signature": False})["priority"]


def test_a_server_is_served_after_its_first_grants_end_and_refused_once_the_key_is_removed(hub, wait_until):
    hub.spawn("ana")
    assert "There is room for 100 MiB (simulated GPU)" in hub.follow("ana").whole()
    server = UserServer(hub, "ana")
    kernel = server.start_kernel()
    said = kernel.run("import os; print(os.environ['AFFINODE_GRANT'], os.environ['AFFINODE_GRANT_FILE'])")
    first, path = said.text.split()
    claims = jwt.decode(first, options={"verify_signature": False})
    assert claims["sub"] == "ana" and claims["exp"] - claims["iat"] == LIFETIME_S
    assert kernel.run(f"{SETUP}\nblock = Block(100, seed=7); checksum = block.checksum()").status == "ok"
    first_ends = claims["exp"] + LEEWAY_S
    wait_until(lambda: time.time() > first_ends, timeout=300)

    # What the server was started with is worth nothing any more, and the server goes on being served.
    person = Person(hub.machine, ANA, grant=first)
    status, refused = person.ask("GET", "/kernels")
    assert (status, refused["error"]) == (401, "bad-grant") and "has expired" in refused["message"]
    newest = Path(path).read_text().strip()
    assert priority_of(newest) == priority_of(first) == -5
    assert set(Person(hub.machine, ANA, grant=newest).kernels()) == {kernel.id}
    status, seen = server.affinode()
    assert (status, seen["available"], [each["id"] for each in seen["kernels"]]) == (200, True, [kernel.id])
    another = server.start_kernel()
    assert another.run(f"{SETUP}\nblock = Block(100, seed=9)").status == "ok"
    assert set(hub.machine.kernels()) == {f"user-ana/{kernel.id}", f"user-ana/{another.id}"}
    assert {each["priority"] for each in hub.machine.kernels().values()} == {-5}
    assert server.affinode(f"kernels/{kernel.id}/park", "POST", {})[0] == 200
    assert kernel.run("print(block.checksum() == checksum)").text.strip() == "True"

    (hub.folder / "keys" / "hub-1.pem").unlink()
    words = "its grant is signed with a key that is not known here, 'hub-1'"
    wait_until(lambda: words in (server.affinode()[1]["message"] or ""))
    status, seen = server.affinode()
    assert (status, seen["available"], seen["kernels"]) == (200, False, [])
    status, refused = server.affinode(f"kernels/{kernel.id}")
    assert (status, refused["error"]) == (503, "no-controller") and words in refused["message"]

"""Server, Hub, controller and keeper are killed in any order: no kernel is lost, and no GPU memory."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import pytest
from gpu_cells import SETUP
from live_hub import Hub, user_python
from live_machine import new_machine, pids_with
from live_server import exists
from people import simulate_for_everyone
from user_servers import SERVER, UserServer

ROUNDS = 12
PARTS = {
    "server": "jupyterhub.singleuser",
    "hub": "-m\0jupyterhub\0",
    "controller": "jupyter_affinode.node",
    "keeper": "-m\0jupyter_affinode.keeping.keeper",
    "supervisor": "jupyter_affinode.client.supervisor\0jupyter_affinode.keeping.keeper",  # of keepers
}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_kills_in_any_order_lose_no_kernel(native, wait_until):
    seed = int(os.environ.get("KILLS_SEED", random.randrange(1 << 30)))
    chance = random.Random(seed)
    print(f"KILLS_SEED={seed}")
    with new_machine() as machine:
        simulate_for_everyone(machine)
        machine.start_controller("--system")
        hub = Hub(
            machine,
            cmd=[user_python(), *SERVER],
            environment={
                "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
                "AFFINODE_FOLDER": str(machine.folder / "home" / "ana" / "own"),
            },
            spawner={"keep_kernels": "all"},
            cleanup_servers=False,
        ).start()
        hub.add("ana")
        server = UserServer(hub, "ana")
        have_all(hub, machine, wait_until)
        kernel = server.start_kernel(path="kept.ipynb")
        filled = kernel.run(f"{SETUP}\nblock, turns = Block(64, seed=7), 0\nprint(block.checksum())").text
        pid = kernel.pid
        for turn in range(1, ROUNDS + 1):
            killed = chance.sample(sorted(PARTS), chance.randint(1, len(PARTS)))
            print(turn, *killed, flush=True)
            for part in killed:
                for each in processes(machine, part):
                    with contextlib.suppress(ProcessLookupError):  # of two keepers that begin one ends
                        os.kill(each, signal.SIGKILL)
                    wait_until(lambda each=each: not exists(each))
                if chance.random() < 0.3:  # the part is there again before the next one is killed
                    have_all(hub, machine, wait_until)
            have_all(hub, machine, wait_until)
            said = kernel.run("turns += 1\nprint(block.checksum(), turns)")
            assert said.text.split() == [filled.strip(), str(turn)], (seed, said, hub.log()[-4000:])
            here = [each["id"] for each in server.request("GET", "/api/kernels")[1]]
            assert here == [kernel.id], (seed, hub.log()[-4000:])
            wait_until(lambda: processes(machine, "keeper"))
        assert kernel.pid == pid
        wait_until(lambda: len(processes(machine, "keeper")) == 1)  # of two that begin one ends
        kernel.shutdown()
        wait_until(lambda: not exists(pid))
        hub.ask("DELETE", "/users/ana/server")
        hub.stop()


def have_all(hub, machine, wait_until):
    """Have controller, Hub and server run again, as an administrator and a user would."""
    if machine.node() is None:
        machine.start_controller("--system")
    if not processes(machine, "hub"):
        hub.process.wait(timeout=60)  # its threads may end a moment after it
        hub.start()
    server = UserServer(hub, "ana")

    def is_up():
        hub.spawn("ana")  # refused while it runs, and while the Hub is at the end of one that was killed
        return is_ready(hub) and server.request("GET", "/api/kernels")[0] == 200

    wait_until(is_up, message=hub.log)
    wait_until(lambda: server.affinode()[1].get("available"), message=hub.log)


def is_ready(hub):
    """Whether the Hub knows ana's server as one that runs; the proxy may just have been started anew."""
    known = hub.ask("GET", "/users/ana")[1]
    return isinstance(known, dict) and known["servers"].get("", {}).get("ready")


def processes(machine, part):
    """The processes of a part, on this machine."""
    return pids_with(PARTS[part], str(machine.folder))

"""A Hub ends with its servers, or under them: each kernel is kept whole, or a sentence said before that it is not."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from gpu_cells import SETUP
from live_hub import Hub, user_python
from live_machine import new_machine, pids_with
from live_server import exists
from people import simulate_for_everyone
from user_servers import SERVER, UserServer

SHUT = r"Cleaning up single-user servers|Shutting down \d+ kernels?"  # the sentences of Hub and server
COUNTING = """
import pathlib, time
for number in range(1 << 30):
    print(number, flush=True)
    time.sleep(0.05)
    if pathlib.Path({until!r}).exists():
        break
"""
# How the Hub ends, keep_kernels, and what was said of kernels that are lost; None: all are kept.
ROWS = [
    (signal.SIGTERM, "never", SHUT),
    (signal.SIGTERM, "parked", None),
    (signal.SIGTERM, "all", None),
    # The server goes on, and the next Hub has it again.
    (signal.SIGKILL, "never", None),
    (signal.SIGKILL, "parked", None),
    (signal.SIGKILL, "all", None),
]


def started(machine, mode):
    """A Hub that ends its servers when it is ended, and ana's server."""
    own = str(machine.folder / "home" / "ana" / "own")
    hub = Hub(
        machine,
        cmd=[user_python(), *SERVER],
        environment={
            "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
            "AFFINODE_FOLDER": own,
        },
        spawner={"keep_kernels": mode},
    ).start()
    hub.add("ana")
    return hub, UserServer(hub, "ana")


def have_server(hub, server, wait_until):
    """Have ana's server run, whether or not it outlived its Hub."""

    def is_up():
        known = hub.ask("GET", "/users/ana")[1]
        is_ready = isinstance(known, dict) and known["servers"].get("", {}).get("ready")
        if not is_ready:
            hub.spawn("ana")  # refused while it starts
        return is_ready and server.request("GET", "/api/kernels")[0] == 200

    wait_until(is_up, message=hub.log)
    wait_until(lambda: server.affinode()[1].get("available"), message=hub.log)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("how", "mode", "lost"), ROWS, ids=[f"{how.name}-{mode}" for how, mode, _ in ROWS])
def test_kernels_of_a_hubs_user_are_kept_whole_or_a_sentence_said_before_that_they_are_not(
    native, wait_until, how, mode, lost
):
    with new_machine() as machine:
        simulate_for_everyone(machine)
        machine.start_controller("--system")
        hub, server = started(machine, mode)
        have_server(hub, server, wait_until)
        enough = Path(machine.folder, "enough")
        on_gpu, runs = server.start_kernel(path="gpu.ipynb"), server.start_kernel(path="runs.ipynb")
        before = on_gpu.run(f"{SETUP}\nblock = Block(8, seed=7)\nprint(block.checksum())").text
        pids = [on_gpu.pid, runs.pid]
        cell = runs.begin(COUNTING.format(until=str(enough)) + "kept = 7")
        served = pids_with("jupyterhub.singleuser", str(machine.folder))
        hub.stop(how)
        if how == signal.SIGTERM:
            wait_until(lambda: not any(map(exists, served)), message=hub.log)
        said = hub.log()
        hub.start()
        have_server(hub, server, wait_until)
        listed = {each["id"] for each in server.request("GET", "/api/kernels")[1]}
        enough.touch()
        if lost is not None:
            assert re.search(lost, said), said[-4000:]
            assert not listed and not any(map(exists, pids))
        else:
            assert listed == {on_gpu.id, runs.id}, hub.log()[-4000:]
            assert on_gpu.run("print(block.checksum())").text == before
            counted = [int(number) for number in runs.wait(cell).text.split()]
            assert counted == list(range(len(counted)))
            assert runs.run("kept").text == "7"
            assert [on_gpu.pid, runs.pid] == pids
        for kernel in server.kernels:
            kernel.close()
        hub.ask("DELETE", "/users/ana/server")
        hub.stop()
        assert not re.search(r"^\[[EW] .*jupyter_affinode.*(?:Error|Exception): ", hub.log(), re.M)

"""A keeper that ends or begins while servers live is never the client of their tabs."""

from __future__ import annotations

import os
import signal

import pytest
from keepers import keepers, the_keeper
from live_server import ENDLESS, JupyterServer
from tab import Tab
from waiting import until

from jupyter_affinode import environment

KEEP = "--AffinodeExtension.keep_kernels=all"


@pytest.fixture
def server(keeping_machine):
    """A server whose kernels outlive it."""
    made = JupyterServer(keeping_machine).start(KEEP)
    yield made
    made.stop()


async def answers(server: JupyterServer, tab: Tab) -> None:
    """Have a tab be answered on the connection that it has. Raises NotInTime."""
    asked = tab.run("1 + 1")
    await until(lambda: tab.is_done(asked), 60, server.log)


async def renewed(server: JupyterServer, killed: int) -> None:
    """Wait until another keeper answers, and has read all records."""
    socket = server.machine.folder / "own" / "keep.sock"
    await until(lambda: keepers(server.machine) not in ([], [killed]) and environment.listens(socket))
    assert server.machine.affinode("kept", "--json").returncode == 0


@pytest.mark.long
async def test_a_server_that_was_stopped_while_its_keeper_was_renewed_answers_its_tabs(server):
    """As one that is stalled by other work. The new keeper has taken its kernels as kept meanwhile."""
    kernel = server.start_kernel(path="work.ipynb")
    kernel.close()
    tab = await Tab(kernel.id).attach(server)
    await answers(server, tab)
    keeper = the_keeper(server.machine)
    server.process.send_signal(signal.SIGSTOP)
    try:
        os.kill(keeper, signal.SIGKILL)
        await renewed(server, keeper)
    finally:
        server.process.send_signal(signal.SIGCONT)
    await answers(server, tab)
    await tab.close()


@pytest.mark.long
async def test_a_keeper_that_is_asked_to_end_takes_no_answer_from_the_tabs_of_servers_that_live(server):
    kernel = server.start_kernel(path="work.ipynb")
    kernel.close()
    tab = await Tab(kernel.id).attach(server)
    await answers(server, tab)
    keeper = the_keeper(server.machine)
    os.kill(keeper, signal.SIGTERM)
    assert server.machine.affinode("kept", "--json").returncode == 0
    await answers(server, tab)
    assert keepers(server.machine) == [keeper], "it stays as long as it has a server"
    log = (server.machine.folder / "own" / "keeper.log").read_text()
    assert "is kept: its server is gone" not in log and "Traceback" not in log, log
    await tab.close()


@pytest.mark.long
async def test_a_cell_that_runs_while_the_keeper_is_renewed_is_known_to_the_next_server(server):
    """Else Jupyter Server asks the kernel something when a tab attaches, and drops what the cell prints meanwhile."""
    kernel = server.start_kernel(path="work.ipynb")
    kernel.close()
    tab = await Tab(kernel.id).attach(server)
    cell = tab.run(f"print('begun', flush=True)\n{ENDLESS}")
    await until(lambda: tab.text(cell) == "begun\n")
    keeper = the_keeper(server.machine)
    os.kill(keeper, signal.SIGKILL)
    await renewed(server, keeper)
    server.kill()
    server.start(KEEP, port=server.port)
    assert server.request("GET", f"/api/kernels/{kernel.id}")[1]["execution_state"] == "busy"
    await tab.close()

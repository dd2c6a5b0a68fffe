"""Kernels with `interrupt_mode` "message" and without a Jupyter server: an interrupt ends their wait for the GPU."""

from __future__ import annotations

import nbformat
import pytest
from gpu_cells import SETUP
from jupyter_client.manager import start_new_kernel
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HOLDS = f"{SETUP}\nblock = Block(75, seed=7)\nbefore = block.checksum()"
WAITS = "block.checksum()"


@pytest.fixture
def crowded(native, here, kernelspec, wait_until, factory, monkeypatch):
    """(A machine, `start(kernelspec)`, `crowd(kernel_id)`, which parks that kernel and has another keep the GPU)."""
    here.simulate(memory="128MiB")
    here.environment["AFFINODE_SIM_CONTEXT"] = "4MiB"
    for name in ("AFFINODE_SIM", "AFFINODE_SIM_MEMORY", "AFFINODE_SIM_GPUS", "AFFINODE_SIM_CONTEXT"):
        monkeypatch.setenv(name, here.environment[name])
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "affinode-provisioner")
    here.start_controller("--settle=0.1", f"--NodeController.margin_bytes={16 << 20}")
    kernelspec("by-message", interrupt_mode="message")
    kernelspec("not-python", interrupt_mode="message", language="other")
    managers = []

    def start(name):
        manager, client = start_new_kernel(kernel_name=name, startup_timeout=60)
        managers.append((manager, client))
        wait_until(lambda: here.kernel(manager.kernel_id))
        assert client.execute_interactive(HOLDS)["content"]["status"] == "ok"
        return manager, client

    def crowd(kernel_id):
        assert here.ask("POST", f"/kernels/{kernel_id}/park", {})[0] == 200
        keeps, _ = start("by-message")
        assert here.ask("POST", f"/kernels/{keeps.kernel_id}/hold", {"duration_s": 600})[0] == 200

    yield here, start, crowd
    for manager, client in managers:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


@pytest.mark.parametrize("name", ["by-message", pytest.param("not-python", marks=pytest.mark.long)])
def test_an_interrupt_by_message_ends_the_wait_of_a_kernel_without_a_server(crowded, wait_until, name):
    machine, start, crowd = crowded
    manager, client = start(name)
    crowd(manager.kernel_id)
    client.execute(WAITS, stop_on_error=False)  # else ipykernel aborts what comes right after the error
    wait_until(lambda: machine.kernel(manager.kernel_id)["residency"] == "queued")
    manager.interrupt_kernel()
    assert client.get_shell_msg(timeout=60)["content"]["status"] == "error"
    assert client.execute_interactive("1")["content"]["status"] == "ok"


@pytest.mark.long
def test_nbclient_ends_a_cell_that_waits_for_room_at_its_time_out(crowded):
    machine, start, _ = crowded
    keeps, _ = start("by-message")
    assert machine.ask("POST", f"/kernels/{keeps.kernel_id}/hold", {"duration_s": 600})[0] == 200
    cells = [nbformat.v4.new_code_cell(code) for code in (SETUP, "Block(75)")]
    runner = NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        kernel_name="by-message",
        timeout_func=lambda cell: 60 if cell.source == SETUP else 3,
        interrupt_on_timeout=True,
    )
    with pytest.raises(CellExecutionError):
        runner.execute()


async def test_kernels_of_a_manager_of_many_kernels_too(crowded, wait_until):
    machine, _, _ = crowded
    managers = AsyncMultiKernelManager()
    kernel_id = await managers.start_kernel(kernel_name="by-message")
    try:
        wait_until(lambda: machine.kernel(kernel_id))
        await managers.restart_kernel(kernel_id, now=True)
        await managers.interrupt_kernel(kernel_id)
        wait_until(lambda: f"cancel {kernel_id}" in machine.controller_log())
    finally:
        await managers.shutdown_kernel(kernel_id, now=True)

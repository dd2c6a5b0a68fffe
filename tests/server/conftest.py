"""Fixtures for tests of the server side: this process as one of a machine's own, kernelspecs, kernel
managers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.client import KernelClient
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from live_machine import Machine
from live_server import JupyterKernel, JupyterServer

AsyncKernelClient.execute = (
    KernelClient.execute
)  # that of jupyter_client 8.0 returns the message's id as a future


@pytest.fixture
def here(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine, with this test's own process in its environment."""
    for name, value in machine.environment.items():
        if name.startswith(("AFFINODE_", "JUPYTER_", "IPYTHON", "XDG_")):
            monkeypatch.setenv(name, value)
    return machine


@pytest.fixture
def factory() -> Iterator[type[KernelProvisionerFactory]]:
    """A provisioner factory that was not made yet, and is forgotten afterwards."""
    KernelProvisionerFactory.clear_instance()
    yield KernelProvisionerFactory
    KernelProvisionerFactory.clear_instance()


@pytest.fixture
def kernelspec(request: pytest.FixtureRequest) -> Callable[..., str]:
    """`kernelspec(name, machine=None, **fields)` writes a kernelspec; ipykernel's where nothing else is said.

    On the test's own machine unless another is named.
    """

    def write(name: str, machine: Machine | None = None, **fields: Any) -> str:
        machine = machine or request.getfixturevalue("machine")
        folder = Path(machine.environment["JUPYTER_DATA_DIR"]) / "kernels" / name
        folder.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        model = {"argv": argv, "display_name": name, "language": "python", **fields}
        (folder / "kernel.json").write_text(json.dumps(model))
        return name

    return write


@pytest.fixture
def kernel_manager(
    jp_asyncio_loop: asyncio.AbstractEventLoop,
    here: Machine,
    factory: type[KernelProvisionerFactory],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Any]]:
    """`await kernel_manager(provisioner="affinode-provisioner", kernel_name="python3")`: a started kernel."""
    made: list[AsyncKernelManager] = []

    async def start(
        provisioner: str = "affinode-provisioner", kernel_name: str = "python3"
    ) -> AsyncKernelManager:
        factory.clear_instance()
        monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", provisioner)
        file = Path(here.environment["JUPYTER_RUNTIME_DIR"], f"kernel-{len(made)}.json")
        # Not by ports, as in live_server.
        manager = AsyncKernelManager(kernel_name=kernel_name, transport="ipc", connection_file=str(file))
        made.append(manager)
        await manager.start_kernel()
        return manager

    yield start
    for manager in made:
        jp_asyncio_loop.run_until_complete(manager.shutdown_kernel(now=True))
        manager.context.destroy(linger=0)


@contextlib.contextmanager
def ending_kernels(server: JupyterServer) -> Iterator[JupyterServer]:
    """Shut down, at the end, the kernels that were started meanwhile."""
    before = len(server.kernels)
    yield server
    for kernel in server.kernels[before:]:
        if kernel.alive():
            kernel.shutdown()
    del server.kernels[before:]


@pytest.fixture
def new_kernel(shared_server: JupyterServer) -> Iterator[Callable[..., JupyterKernel]]:
    """`new_kernel(name, path=None)`: a kernel on the module's server, shut down after the test."""
    with ending_kernels(shared_server):
        yield shared_server.start_kernel


@pytest.fixture
def gpu_server(shared_gpu_server: JupyterServer) -> Iterator[JupyterServer]:
    """The module's server with a simulated GPU; kernels are parked when another needs the room."""
    with ending_kernels(shared_gpu_server):
        yield shared_gpu_server


@pytest.fixture
def eager_gpu_server(gpu_server: JupyterServer) -> Iterator[JupyterServer]:
    """The same, where every idle kernel is parked."""
    gpu_server.machine.ask("PATCH", "/policy", {"park_when": "idle"})
    yield gpu_server
    gpu_server.machine.ask("PATCH", "/policy", {"park_when": "needed"})


@pytest.fixture
def policy(gpu_server: JupyterServer) -> Iterator[Callable[..., None]]:
    """`policy(park_when="idle", …)`: change settings for this test."""
    before = gpu_server.machine.ask("GET", "/policy")[1]

    def change(**settings: Any) -> None:
        status, answer = gpu_server.machine.ask("PATCH", "/policy", settings)
        assert status == 200, answer

    yield change
    change(**before)

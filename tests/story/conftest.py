"""Fixtures for the story tests: a real server on the simulated GPU, and kernels that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_machine import Machine
from live_server import JupyterServer
from story_stage import Stage


@pytest.fixture
def stage(gpu_machine: Machine) -> Iterator[Callable[..., Stage]]:
    """`stage(park_when="idle", idle_timeout_s=1)` starts a server with these traits, and with whatever other
    `arguments`, on the simulated GPU.
    """
    servers = []

    def start(
        memory: str = "1GiB",
        context: str = "8MiB",
        copy_rate: str | None = None,
        gpus: int = 1,
        arguments: tuple[str, ...] = (),
        **traits: Any,
    ) -> Stage:
        gpu_machine.simulate(memory, gpus, copy_rate)
        gpu_machine.environment["AFFINODE_SIM_CONTEXT"] = context
        ours = [f"--AffinodeExtension.{name}={value}" for name, value in traits.items()]
        server = JupyterServer(gpu_machine).start(*ours, *arguments)
        servers.append(server)
        return Stage(gpu_machine, server)

    yield start
    for server in servers:
        for kernel in server.kernels:
            kernel.close()

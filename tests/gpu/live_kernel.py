"""A real ipykernel, started by the provisioner, on a controller of its own; and what the machine says about the GPU."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
from jupyter_client.manager import KernelManager
from waiting import wait_until

from jupyter_affinode.client.api import ControllerClient


def ask(action: str, *args: Any, **kwargs: Any) -> Any:
    """Call the controller."""

    async def call() -> Any:
        client = ControllerClient()
        try:
            return await getattr(client, action)(*args, **kwargs)
        finally:
            await client.close()

    return asyncio.run(call())


def gpu_used_bytes() -> int:
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


@dataclass(frozen=True)
class Answer:
    value: str | None  # repr of the cell's last expression
    error: str | None  # the exception's name
    text: str  # what it printed
    duration_s: float


class LiveKernel:
    """Executes cells; `managed=False` starts the twin that is never parked. `env` is added to its environment."""

    def __init__(self, *, managed: bool = True, env: Mapping[str, str] | None = None) -> None:
        # By sockets in a folder: a TCP port that was free when it was chosen may be taken when the kernel binds it.
        self._sockets = tempfile.TemporaryDirectory(prefix="affinode-k-", dir="/tmp")
        self.manager = KernelManager(
            kernel_name="python3", transport="ipc", ip=str(Path(self._sockets.name) / "kernel")
        )
        env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **(env or {})}
        if not managed:
            env["AFFINODE_DISABLE"] = "1"
        self.manager.start_kernel(env=env)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)
        self.id = self.manager.kernel_id

    def begin(self, code: str) -> str:
        """Send a cell; `finish` waits for it."""
        return self.client.execute(code, store_history=False)

    def finish(self, cell: str, timeout_s: float = 300) -> Answer:
        value = error = None
        printed: list[str] = []
        begin = time.monotonic()
        while True:
            message = self.client.get_iopub_msg(timeout=max(begin + timeout_s - time.monotonic(), 0.01))
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            kind = message["msg_type"]
            if kind == "execute_result":
                value = content["data"]["text/plain"]
            elif kind == "error":
                error = content["ename"]
                printed.append(content["evalue"])
            elif kind == "stream":
                printed.append(content["text"])
            elif kind == "status" and content["execution_state"] == "idle":
                return Answer(value, error, "".join(printed), time.monotonic() - begin)

    def run(self, code: str, timeout_s: float = 300) -> Answer:
        return self.finish(self.begin(code), timeout_s)

    def value(self, code: str) -> str:
        answer = self.run(code)
        if answer.error or answer.value is None:
            raise RuntimeError(f"{code}: {answer.error}: {answer.text}")
        return answer.value

    def described(self) -> dict[str, Any]:
        return dict(ask("kernel", self.id))

    def wait_for(self, residency: str, timeout_s: float = 30) -> dict[str, Any]:
        wait_until(lambda: self.described()["residency"] == residency, timeout_s, self.described)
        return self.described()

    def stop(self) -> float:
        """Shut down as a server does; seconds it took."""
        begin = time.monotonic()
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self._sockets.cleanup()
        return time.monotonic() - begin


@contextmanager
def neighbour(leave_bytes: int) -> Iterator[None]:
    """A foreign process, without the shim, that takes all the GPU's memory but `leave_bytes`."""
    code = (
        "import torch, sys\n"
        "free, _ = torch.cuda.mem_get_info()\n"
        f"keep = torch.empty(max(free - {leave_bytes}, 0), dtype=torch.uint8, device='cuda')\n"
        "print('there', flush=True)\nsys.stdin.read()\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    try:
        assert process.stdout is not None and process.stdout.readline().strip() == b"there"
        yield
    finally:
        process.kill()
        process.wait()

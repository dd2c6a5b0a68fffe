"""A pytest plugin for run.py: write down each kernel that a local provisioner launched, and whether the shim is in it.

One word a kernel, "ours" or "none", goes to the file that UPSTREAM_SEEN names. A kernel that has ended before
it could be looked at is left out.

Each of pytest-xdist's workers gets a current folder of its own: kernels that are reached by IPC have their sockets
there, under names that two workers would choose alike.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import Any

from jupyter_client.provisioning import LocalProvisioner

launch_kernel = LocalProvisioner.launch_kernel


def pytest_sessionstart() -> None:
    """Called in each process once the tests' folder is known."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.chdir(tempfile.mkdtemp(prefix="worker-", dir=os.environ["XDG_RUNTIME_DIR"]))


def _maps(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/maps") as maps:
            return maps.read()
    except OSError:
        return ""


async def _launch(self: Any, cmd: list[str], **kwargs: Any) -> Any:
    info = await launch_kernel(self, cmd, **kwargs)
    # Popen returns when the program has begun; the loader maps libraries right after that.
    for _ in range(200):
        maps = _maps(self.pid)
        if "libaffinode" in maps or "libz.so" in maps or "libm.so" in maps or not maps:
            break
        await asyncio.sleep(0.005)
    if maps:
        with open(os.environ["UPSTREAM_SEEN"], "a") as seen:
            seen.write("ours\n" if "libaffinode" in maps else "none\n")
    return info


LocalProvisioner.launch_kernel = _launch


def _keep_kernels() -> None:
    """Have kernels outlive their program, and servers, where a suite has any, keep them."""
    from jupyter_affinode.provisioning.provisioner import AffinodeProvisioner

    AffinodeProvisioner.keeps = True
    try:
        from jupyter_server.serverapp import ServerApp
    except ImportError:
        return
    find = ServerApp.find_server_extensions

    def find_ours_too(self: Any) -> None:
        find(self)
        self.jpserver_extensions.setdefault("jupyter_affinode", True)

    ServerApp.find_server_extensions = find_ours_too


if os.environ.get("UPSTREAM_KEEP"):
    _keep_kernels()

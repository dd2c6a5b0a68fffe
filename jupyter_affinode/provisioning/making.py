"""`python -m jupyter_affinode.provisioning.making ENTRY`: starts a warm kernel for the keeper, and ends.

Its environment is that of the server, or other program, that wants such kernels. ENTRY is the kernel's folder
(keeping/warm_entry.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

from ..client.errors import ControllerUnavailable
from ..client.starting import ensure_controller
from ..environment import WARM
from ..keeping.warm_entry import CONNECTION, ENTRY, LAUNCHED, Entry
from ..keeping.warm_spec import command_of, without_secrets
from ..threads import on_own_thread
from .provisioner import AffinodeProvisioner


class Maker(AffinodeProvisioner):
    """Starts a kernel that waits to be taken."""

    entry: Entry
    takes_warm = False

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Have the kernel know its entry."""
        kwargs = await super().pre_launch(**kwargs)
        kwargs["env"] = {**kwargs["env"], WARM: str(self.entry.folder)}
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Write down what the kernel is made of before it runs."""
        told = {
            "environ": without_secrets(kwargs["env"]),
            "command": command_of(cmd, getattr(self.parent, "connection_file", "")),
        }
        self.entry.write(LAUNCHED, told)
        return await super().launch_kernel(cmd, **kwargs)

    async def post_launch(self, **kwargs: Any) -> None:
        """Start the controller, if need be; the keeper tells it of the kernel."""
        if self.managed:
            with suppress(ControllerUnavailable, OSError):
                await on_own_thread(ensure_controller, timeout_s=None)


async def make(entry: Entry) -> None:
    """Start the kernel, which outlives this program."""
    told = entry.told(ENTRY)
    settings, spec_folder = told["settings"], Path(told["spec"])
    Maker.keeps, Maker.depth, Maker.images = True, settings.get("depth"), settings.get("hibernate_dir", "")
    specs = KernelSpecManager()
    specs.kernel_dirs = [str(spec_folder.parent)]
    manager = AsyncKernelManager(
        kernel_name=spec_folder.name,
        kernel_spec_manager=specs,
        connection_file=str(entry.folder / CONNECTION),
        transport="tcp" if settings.get("hibernate_dir") else "ipc",
    )
    manager.kernel_id = entry.kernel_id
    maker = manager.provisioner = Maker(
        kernel_id=entry.kernel_id, kernel_spec=manager.kernel_spec, parent=manager
    )
    maker.entry = entry
    await manager.start_kernel(
        env=dict(os.environ), cwd=str(spec_folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def main(argv: list[str]) -> None:
    """Start the kernel of an entry; what else this program began ends with it."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    status = 0
    try:
        asyncio.run(make(Entry(Path(argv[0]))))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = 1
    sys.stderr.flush()
    os._exit(status)  # a kernel manager that is deleted removes the connection file


if __name__ == "__main__":
    main(sys.argv[1:])

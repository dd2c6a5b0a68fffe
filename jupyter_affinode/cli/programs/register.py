"""`python -m jupyter_affinode.cli.programs.register KERNEL_ID NAME [DESCRIPTOR]`: describe a kernel that starts.

`run` starts it beside the kernel's program. The descriptor is that of the lock with which `run` announced that a
controller may be started.
"""

from __future__ import annotations

import asyncio
import os
import sys

from ...client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ...client.starting import ensure_controller


async def introduce(kernel_id: str, name: str) -> None:
    """Describe a kernel to the controller, unless a server has described it already."""
    client = ControllerClient(ensure_controller())
    try:
        known = await client.kernel(kernel_id)
    except ControllerRefused:
        known = {}
    if not known.get("name"):
        await client.register(kernel_id, name=name)


if __name__ == "__main__":
    for announced in sys.argv[3:]:
        os.close(int(announced))
    try:
        asyncio.run(introduce(*sys.argv[1:3]))
    except (ControllerUnavailable, ControllerRefused) as error:
        sys.exit(str(error))

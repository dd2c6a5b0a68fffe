"""A user's programs that look for the user's own controller: for each line, where it is, and its pid and kernels."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from jupyter_affinode.client.api import ControllerClient
from jupyter_affinode.client.starting import ensure_controller


async def look() -> dict[str, object]:
    """As a server does."""
    client = ControllerClient(await asyncio.to_thread(ensure_controller, timeout_s=60))
    node = await client.node()
    return {"socket": str(client.socket), "pid": node["controller"]["pid"]}


def main() -> None:
    """Look, and end the controller at last."""
    found: dict[str, object] = {}
    for _ in sys.stdin:
        found = asyncio.run(look())
        print(json.dumps(found), flush=True)
    if found:
        os.kill(int(str(found["pid"])), signal.SIGTERM)


if __name__ == "__main__":
    main()

"""Looks at the controllers of several machines, through their sockets on this one.

Used on the Hub's side by the service, the line about free room and the culling rule. A controller that does not
answer in time is a finding and no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable

from .room import controller_socket

ANSWER_WITHIN_S = 3.0

Json = dict[str, Any]


@dataclass(frozen=True)
class NodePicture:
    """One machine as its controller described it; `problem` says in words why there is no description."""

    name: str
    node: Json | None = None
    kernels: list[Json] = field(default_factory=list)
    problem: str = ""


def client_of(socket: str, headers: Mapping[str, str] | None = None) -> ControllerClient:
    """Return a client for the controller at `socket`; "" is this machine's."""
    return ControllerClient(controller_socket(socket), headers)


async def look(nodes: Mapping[str, str], timeout_s: float = ANSWER_WITHIN_S) -> list[NodePicture]:
    """Return a picture of every machine of `nodes` (name: socket), in that order; never raises."""
    return list(await asyncio.gather(*(_look(name, socket, timeout_s) for name, socket in nodes.items())))


async def _look(name: str, socket: str, timeout_s: float) -> NodePicture:
    try:
        client = client_of(socket)
        node, kernels = await asyncio.wait_for(asyncio.gather(client.node(), client.kernels()), timeout_s)
    except asyncio.TimeoutError:
        return NodePicture(name, problem=f"its controller did not answer within {timeout_s:g} s")
    except (ControllerUnavailable, ControllerRefused) as error:
        return NodePicture(name, problem=str(error))
    return NodePicture(name, node, kernels)

"""Looks at the controllers of several machines: at sockets on this one, and over the network.

Used on the Hub's side by the service, the line about free room and the culling rule. A controller that does not
answer in time is a finding and no error.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado.iostream import IOStream

from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from jupyter_affinode.client.errors import why

from . import grants
from .room import controller_socket

ANSWER_WITHIN_S = 3.0
GRANT_S = 60.0  # how long a grant for one request is valid
UNEXPECTED = "its controller's answer has an unexpected shape"
ANYONE = "affinode"  # in the grants of requests that change nothing: no administrator made them

Json = dict[str, Any]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """One machine's controller: `name` is how forms and configuration call it, `place` a socket or an address."""

    name: str
    place: Path | tuple[str, int]


@dataclass(frozen=True)
class NodePicture:
    """One machine as its controller described it; `problem` says in words why there is no description."""

    name: str
    node: Json | None = None
    kernels: list[Json] = field(default_factory=list)
    problem: str = ""
    title: str = ""  # what users call it


class Nodes:
    """The machines of a site.

    `places`: by name the socket of each controller on this machine ("" is this machine's own), or
    `http://HOST:PORT`, where HOST stands for all the addresses that it has: a headless Service of Kubernetes has one
    for each node. Requests over the network are signed with `key`, the file that signs the servers' grants.
    """

    def __init__(self, places: Mapping[str, str], key: str = ""):
        self._places = dict(places)
        self._key = Path(key) if key else None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._places)

    async def first(self, user: str = ANYONE) -> ControllerClient:
        """Return a client of the first controller. Raises ControllerUnavailable where it is not found."""
        place = next(iter(self._places))
        for found in await self._found(place, ANSWER_WITHIN_S):
            if isinstance(found, Node):
                return self._client(found, user)
            raise ControllerUnavailable(found.problem)
        raise ControllerUnavailable(f"{self._places[place]} is not known")

    async def read(self, timeout_s: float = ANSWER_WITHIN_S) -> list[NodePicture]:
        """Return a picture of every machine, in the order of `places`; never raises."""
        found = await asyncio.gather(*(self._found(name, timeout_s) for name in self._places))
        nodes = [each for group in found for each in group]
        return list(await asyncio.gather(*(self._read(node, timeout_s) for node in nodes)))

    async def client(
        self, name: str, user: str, headers: Mapping[str, str] | None = None
    ) -> ControllerClient | None:
        """Return a client that asks as an administrator for one machine; None where there is no such."""
        for place in self._places:
            if name == place or name.startswith(f"{place} "):
                for node in await self._found(place, ANSWER_WITHIN_S):
                    if isinstance(node, Node) and node.name == name:
                        return self._client(node, user, headers)
        return None

    async def _found(self, name: str, timeout_s: float) -> list[Node | NodePicture]:
        """Return the controllers that a name stands for, or why there are none."""
        place = self._places[name]
        if not place.startswith("http://"):
            return [Node(name, controller_socket(place))]
        try:
            url = urlsplit(place)
            loop = asyncio.get_running_loop()
            known = loop.getaddrinfo(url.hostname, url.port or 80, type=socket.SOCK_STREAM)
            addresses = sorted({entry[4][:2] for entry in await asyncio.wait_for(known, timeout_s)})
        except asyncio.TimeoutError:
            return [NodePicture(name, problem=f"{place} was not found within {timeout_s:g} s")]
        except (OSError, ValueError) as error:
            return [NodePicture(name, problem=f"{place} is not known: {why(error)}")]
        return [Node(f"{name} {ip}", (str(ip), int(port))) for ip, port in addresses]

    def _client(self, node: Node, user: str, headers: Mapping[str, str] | None = None) -> ControllerClient:
        if isinstance(node.place, Path):
            return ControllerClient(node.place, headers)
        return NetworkClient(*node.place, key=self._key, user=user, headers=headers)

    async def _read(self, node: Node | NodePicture, timeout_s: float) -> NodePicture:
        if isinstance(node, NodePicture):
            return node
        name = node.name
        try:
            client = self._client(node, ANYONE)
            machine, kernels = await asyncio.wait_for(
                asyncio.gather(client.node(), client.kernels()), timeout_s
            )
        except asyncio.TimeoutError:
            return NodePicture(name, problem=f"its controller did not answer within {timeout_s:g} s")
        except (ControllerUnavailable, ControllerRefused) as error:
            return NodePicture(name, problem=str(error))
        except Exception:  # whatever answers there: the other machines' pictures do not depend on it
            log.exception("%s answers in an unexpected way", name)
            return NodePicture(name, problem=UNEXPECTED)
        if not isinstance(machine, dict) or not isinstance(kernels, list):
            return NodePicture(name, problem=UNEXPECTED)
        title = name if isinstance(node.place, Path) else str(machine.get("name") or name)
        return NodePicture(name, machine, [each for each in kernels if isinstance(each, dict)], title=title)


class NetworkClient(ControllerClient):
    """A controller's API over TCP, as `NodeController.api_port` serves it: each request has a grant of its own."""

    def __init__(
        self, ip: str, port: int, *, key: Path | None, user: str, headers: Mapping[str, str] | None = None
    ):
        """`user` is the administrator in whose name requests are sent; `key` is the file of the private key that
        signs them."""
        super().__init__(Path(f"{ip}:{port}"), headers)
        self._ip, self._port, self._key, self._user = ip, port, key, user
        self._family = socket.AF_INET6 if ":" in ip else socket.AF_INET

    def _authorization(self) -> dict[str, str]:
        """Sign a grant for this request. Raises ControllerUnavailable."""
        if self._key is None:
            raise ControllerUnavailable(f"no key signs requests to {self.socket}: set grant_key")
        try:
            grant = grants.sign(
                self._key,
                f"affinode:{self._ip}:{self._port}",
                user=self._user,
                lifetime_s=GRANT_S,
                is_administrator=True,
            )
        except Exception as error:  # the libraries raise anything over a file that is no key
            raise ControllerUnavailable(f"requests to {self.socket} cannot be signed: {error}") from None
        return {"Authorization": f"Bearer {grant}"}

    async def _reach(self, stream: IOStream) -> None:
        await stream.connect((self._ip, self._port))

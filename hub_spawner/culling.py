"""Rules for jupyterhub-idle-culler 2: servers whose kernels wait for the GPU, compute on it or are held are not idle.

In the culler's configuration file:

    from hub_spawner.culling import cull_arbiter
    c.IdleCuller.cull_arbiter_hook = cull_arbiter

or, to keep servers with parked kernels for two days instead of the usual time:

    from hub_spawner.culling import arbiter
    c.IdleCuller.cull_arbiter_hook = arbiter(parked_limit_s=48 * 3600)

Where no controller answers the culler's own rule holds. Its `max_age` asks no rule.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from jupyter_affinode.settings.rules import GRANTED

from .nodes import Nodes

LOOK_AGAIN_S = 5.0  # the culler asks about all servers at once: one look does for them
WAITING = ("queued", "resuming")

Json = dict[str, Any]
Arbiter = Callable[..., Awaitable[bool]]
log = logging.getLogger(__name__)


def arbiter(
    *, parked_limit_s: float | None = None, nodes: Mapping[str, str] | None = None, grant_key: str = ""
) -> Arbiter:
    """Return a rule for `IdleCuller.cull_arbiter_hook`.

    `parked_limit_s`: how long a server that does nothing is kept while it has a parked kernel; None: no longer than
    any other. `nodes`: the machines' controllers by name, by default this machine's; `grant_key` signs requests to
    those over the network. Both as `service.registration.add_service` takes them.
    """
    looks = _Looks(Nodes(nodes or {"this machine": ""}, grant_key))

    async def rule(*, inactive: timedelta | None, inactive_limit: float, server: Json, **_: Any) -> bool:
        """Return whether the server is to be culled. Called by the culler for each server."""
        if inactive is None:  # it has just started; the culler keeps it
            return False
        inactive_s = inactive.total_seconds()
        try:
            kernels = _kernels_of(server, await looks.kernels())
            return _is_over(inactive_s, inactive_limit, parked_limit_s, kernels)
        except Exception:  # an answer of another version, say
            log.exception("the culler's own rule holds for %s", server.get("full_name"))
            return inactive_s >= inactive_limit

    return rule


def _is_over(
    inactive_s: float, inactive_limit: float, parked_limit_s: float | None, kernels: list[Json]
) -> bool:
    if any(
        kernel["residency"] in WAITING or kernel["place"] is not None or kernel["held_for_s"] is not None
        for kernel in kernels
    ):
        return False
    # A cell that computes may say nothing to its server for hours; while a call is under way its kernel is not idle.
    used = [kernel["idle_s"] for kernel in kernels if kernel["residency"] == "resident"]
    inactive_s = min([inactive_s, *(idle_s for idle_s in used if idle_s is not None)])
    if parked_limit_s is not None and any(kernel["residency"] == "parked" for kernel in kernels):
        inactive_limit = max(inactive_limit, parked_limit_s)
    return inactive_s >= inactive_limit


def _kernels_of(server: Json, kernels: list[Json]) -> list[Json]:
    """Return the kernels that a server's extension names as its own, but none that another user's grant names."""
    full_name = server["full_name"]
    granted = GRANTED + full_name.partition("/")[0]
    return [
        kernel
        for kernel in kernels
        if kernel.get("server") == full_name
        and (kernel["user"] == granted or not (kernel["user"] or "").startswith(GRANTED))
    ]


class _Looks:
    """Looks at all machines, at most once in some seconds."""

    def __init__(self, nodes: Nodes):
        self._nodes = nodes
        self._looking: asyncio.Task[list[Json]] | None = None
        self._since = 0.0

    async def kernels(self) -> list[Json]:
        """Return the kernels of all machines that answer."""
        loop = asyncio.get_running_loop()
        is_ours = self._looking is not None and self._looking.get_loop() is loop
        if not is_ours or loop.time() - self._since >= LOOK_AGAIN_S:
            self._since = loop.time()
            self._looking = loop.create_task(self._read_kernels())
        assert self._looking is not None
        return await asyncio.shield(self._looking)

    async def _read_kernels(self) -> list[Json]:
        pictures = await self._nodes.read()
        for picture in pictures:
            if picture.problem:
                log.warning("%s: %s; the culler's own rule holds there", picture.name, picture.problem)
        return [kernel for picture in pictures for kernel in picture.kernels]


cull_arbiter = arbiter()

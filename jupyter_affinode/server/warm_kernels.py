"""Kernels that are ready before a notebook wants one: has the keeper make those of this server's kernelspecs."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from ..keeping.client import Keeper, KeeperRefused, KeeperUnavailable, connected, is_there
from ..keeping.warm_pool import nothing_made
from ..keeping.warm_spec import WarmSpec, read_spec
from ..provisioning.provisioner import warm_want
from .controller_watch import cancelled
from .kept_kernels import at_hub
from .metrics import show_warm

LOOK_EVERY_S = 60.0  # for kernelspecs that an administrator installs
CONNECT_AGAIN_S = 5.0  # after a keeper that was killed; and to show figures


class WarmKernels:
    """Asks the keeper for warm kernels as long as this server runs. Without warm kernelspecs it does nothing."""

    def __init__(self, kernel_specs: Any, settings: dict[str, Any], log: logging.Logger):
        """`settings`: how kernels are made (keeping/warm_making.py) and bounded (keeping/warm_pools.py)."""
        self._kernel_specs = kernel_specs
        self._settings = settings
        self._log = log
        self._keeper: Keeper | None = None
        self._specs: list[WarmSpec] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; called with the event loop running."""
        self._task = asyncio.get_running_loop().create_task(self._keep_up(), name="affinode-warm-kernels")

    async def stop(self) -> None:
        """Want them no longer; the keeper keeps them for a while."""
        if self._task is not None:
            await cancelled(self._task)
        if self._keeper is not None:
            await self._keeper.close()

    async def list_pools(self) -> list[dict[str, Any]]:
        """Return what there is of warm kernels, by kernelspec; all of the user's.

        A page that is loaded before the keeper knows of a kernelspec looks again only where there is one to look for.
        """
        found = await self._list_known()
        known = {pool["spec"] for pool in found}
        return [
            *found,
            *(
                nothing_made(spec.folder, spec)
                for spec in self._specs
                if spec.count and spec.folder not in known
            ),
        ]

    async def _list_known(self) -> list[dict[str, Any]]:
        try:
            if self._keeper is not None and not self._keeper.is_gone:
                return await self._keeper.list_warm()
            if self._specs and is_there():
                async with await connected() as keeper:
                    return await keeper.list_warm()
        except (KeeperUnavailable, KeeperRefused) as error:
            self._log.debug("Warm kernels cannot be listed: %s", error)
        return []

    async def _keep_up(self) -> None:
        while True:
            try:
                await self._want()
            except (KeeperUnavailable, KeeperRefused) as error:
                self._log.warning("No warm kernels are made: %s", error)
            except Exception:  # the next round may work
                self._log.exception("Looking for warm kernelspecs failed")
            end = asyncio.get_running_loop().time() + LOOK_EVERY_S
            while asyncio.get_running_loop().time() < end and (
                self._keeper is None or not self._keeper.is_gone
            ):
                if self._specs:
                    show_warm(await self.list_pools())
                await asyncio.sleep(CONNECT_AGAIN_S)

    async def _want(self) -> None:
        specs = await asyncio.to_thread(self._read_specs)
        if specs == self._specs and (not specs or (self._keeper is not None and not self._keeper.is_gone)):
            return
        self._specs = specs
        if specs and (self._keeper is None or self._keeper.is_gone):
            self._keeper = await connected()
        for spec in specs:
            if spec.count and self._keeper is not None:
                want = warm_want(spec, os.environ, self._settings)
                await self._keeper.want_warm(want, at_hub(), stays=True)

    def _read_specs(self) -> list[WarmSpec]:
        found = []
        for name, folder in sorted(self._kernel_specs.find_kernel_specs().items()):
            try:
                spec = read_spec(os.path.realpath(folder))
            except ValueError as error:
                self._log.warning("%s has no warm kernels: %s", name, error)
                continue
            if spec is not None:
                found.append(spec)
        return found

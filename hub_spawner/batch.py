"""The GPU policy of servers that are jobs of a batch system, as batchspawner's.

Their machine is known once the job runs. Then that machine's controller is asked for room while the server starts,
and the spawn page is told how that stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any

from jupyterhub.utils import maybe_future
from traitlets import Unicode

from .nodes import Nodes
from .spawner_mixin import GpuPolicy
from .story import Event, Story


class BatchGpuPolicy(GpuPolicy):
    """`GpuPolicy` for subclasses of BatchSpawnerBase."""

    gpu_controllers = Unicode(
        "",
        help="""The address of a node's controller (`api_port`), where {host} is the node that the job runs on: it is
        asked for room while the server starts, and the spawn page says how that stands. Needs `grant_key`. Empty:
        the first cell that uses the GPU waits.

        Example: `c.SlurmSpawner.gpu_controllers = "http://{host}:9714"`
        """,
    ).tag(config=True)

    _host = ""  # of the job, once it runs

    @cached_property
    def _job_story(self) -> Story:
        return Story()

    def gpu_nodes(self) -> Nodes:
        """Return the job's node, once it is known and its controller can be asked."""
        if not (self._host and self.gpu_controllers):
            return super().gpu_nodes()
        return Nodes({self._host: self.gpu_controllers.format(host=self._host)}, self.grant_key)

    def gpu_tell(self, text: str) -> None:
        """Tell the spawn page, after what the batch system says where the job runs."""
        if self._host:
            self._job_story.tell(text)
        else:
            super().gpu_tell(text)

    def _refuses(self) -> bool:
        """Refuse no server whose job runs already."""
        return not self._host and super()._refuses()

    async def start(self) -> Any:
        """Submit the job, and ask its machine for room as soon as that is known."""
        self._host = ""
        self._job_story.begin()
        asking = asyncio.ensure_future(self._ask_where_job_runs())
        try:
            return await maybe_future(super().start())
        finally:
            asking.cancel()
            self._job_story.end()

    async def _ask_where_job_runs(self) -> None:
        if not (self.gpu_memory and self.gpu_controllers):
            return
        while not (self.job_id and self.state_isrunning()):
            await asyncio.sleep(self.startup_poll_interval)
        self._host = str(self.state_gethost())
        try:
            await self.gpu_make_room()
        finally:
            self._job_story.end()

    async def progress(self) -> AsyncIterator[Event]:
        """Yield what is told before the job, by the batch system, and of room on the job's machine."""
        async for event in super().progress():
            yield event
        async for event in self._job_story.follow():
            yield event

"""A kernel that the controller wants ended is shut down by its own server, once."""

from __future__ import annotations

import json
import logging

from jupyter_client.kernelspec import KernelSpec
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from waiting import until

from jupyter_affinode.node.state.persistence import FILE_NAME
from jupyter_affinode.provisioning import provisioner
from jupyter_affinode.provisioning.kernelspec import scheduling_fields
from jupyter_affinode.server.evictions import ControllerWishes
from jupyter_affinode.server.hibernation import Hibernation


class CountingManager(AsyncMappingKernelManager):
    """Jupyter Server's, that counts shutdowns."""

    shutdowns = 0

    async def shutdown_kernel(self, kernel_id: str, *arguments: object, **options: object) -> None:  # type: ignore[override]
        """As the server does it."""
        CountingManager.shutdowns += 1
        await super().shutdown_kernel(kernel_id, *arguments, **options)


async def test_a_kernel_whose_end_is_asked_is_shut_down_and_others_are_not(here, jp_asyncio_loop, factory):
    manager = CountingManager()
    ended, stays = await manager.start_kernel(), await manager.start_kernel()
    log = logging.getLogger(__name__)
    hibernation = Hibernation(manager, "", 0.0, lambda kernel_id: [], lambda kernel_id: None, log)
    ends = ControllerWishes(manager, manager.__contains__, hibernation, log)
    try:
        ends.kernel_changed(None, {"id": stays, "end_asked": None})
        ends.kernel_changed(None, {"id": "another-servers", "end_asked": "the GPU is full"})
        for _ in range(3):  # each event says it again
            ends.kernel_changed(None, {"id": ended, "end_asked": "the GPU is full"})
        await until(lambda: ended not in manager)
        assert stays in manager
        assert CountingManager.shutdowns == 1
    finally:
        await manager.shutdown_all(now=True)


class Spec:
    """A kernelspec's part that is looked at."""

    def __init__(self, metadata: object):
        self.metadata = metadata


def test_what_a_kernelspec_says_is_taken_only_where_it_makes_sense():
    nothing = {"may_park": None, "priority": None}
    assert scheduling_fields(Spec({"affinode": {"park": False, "priority": -1}})) == {
        "may_park": False,
        "priority": -1,
    }
    for metadata in (None, {}, {"affinode": "no"}, {"affinode": {"park": "no", "priority": True}}):
        assert scheduling_fields(Spec(metadata)) == nothing


def test_what_a_kernelspec_says_is_told_where_there_is_no_server_too(here, wait_until):
    """As by papermill or jupyter console, whose kernels no server describes; the controller remembers it."""
    here.start_controller()
    spec = KernelSpec(display_name="Batch", metadata={"affinode": {"park": False, "priority": -1}})
    provisioner.AffinodeProvisioner(kernel_id="k", kernel_spec=spec)._introduce()
    assert here.kernel("k")["name"] == "Batch"
    remembered = here.socket.with_name(FILE_NAME)
    wait_until(remembered.exists)
    told = json.loads(remembered.read_text())["kernels"]["k"]
    assert (told["may_park"], told["priority"]) == (False, -1)

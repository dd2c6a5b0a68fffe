"""A real Hub whose servers ask the machine's controller for room, and a GPU that the test tells of."""

from __future__ import annotations

import contextlib
import os

from fake_nvml import FilledNvml
from fake_shim import GPU, MIB
from live_hub import Hub
from live_machine import new_machine
from people import Person, open_to_everyone
from thread_controller import ThreadController

from jupyter_affinode.node.identity.access import EveryUserAccess

TOTAL = 1024 * MIB


class Site:
    """A Hub, the machine's controller, and a kernel of Carol's that has nearly the whole GPU."""

    def __init__(self, machine, version, wanted=None, **spawner):
        open_to_everyone(machine)
        settings = {"gpu_memory": "500MiB", "gpu_wait_s": 60, **spawner}
        # Made first: it skips the test where it is not there.
        hub = Hub(machine, version, spawner=settings, subclass_hook=True, **(wanted or {}))
        self.machine, self.gpu = machine, FilledNvml(TOTAL, pids={os.getpid()})
        self.controller = None
        self.start_controller()
        self.carol = Person(machine, 61019)
        self.kernel = self.carol.shim("carols", resident=TOTAL - 8 * MIB)
        self.gpu.shims.append(self.kernel)
        self.busy(True)
        self.hub = hub.start()

    def start_controller(self):
        """Have the machine's controller answer."""
        self.controller = ThreadController(
            self.machine.socket, self.gpu, access=EveryUserAccess(), contended_idle_timeout_s=0.1
        )

    def stop_controller(self):
        """Have none."""
        self.controller.stop()
        self.controller = None

    def busy(self, is_busy):
        """Have Carol's kernel compute, or not; it is back on the GPU."""
        self.kernel.page.memory[GPU][:2] = [TOTAL - 8 * MIB, 0]
        self.kernel.page.calls_in_flight = int(is_busy)
        self.kernel.become(1)

    def queue(self):
        """What waits for the GPU."""
        node = self.machine.node()
        return [] if node is None else node["queue"]

    def close(self):
        """End all of it."""
        self.hub.stop()
        self.carol.close()
        if self.controller is not None:
            self.controller.stop()


def make_site(version, wanted=None, **spawner):
    with new_machine() as machine:
        site = Site(machine, version, wanted, **spawner)
        yield site
        site.close()


another_site = contextlib.contextmanager(make_site)

"""A machine's controller for all users, with kernels of three of them, for what is shown of it on the Hub's side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fake_nvml import UUID, FakeNvml
from fake_shim import PARKED
from live_machine import Machine, new_machine
from people import Person, needs_root, open_to_everyone
from thread_controller import ThreadController

from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.ledger import writer
from jupyter_affinode.node.metrics.history_options import HistoryOptions
from jupyter_affinode.node.protocol.wire import gpu_uuid
from jupyter_affinode.settings.policy import GIB

ANA, BOB, CARLA = 61001, 61002, 61003


class GpuNode:
    """ana has 40 GiB on the first GPU, bob 30 GiB; carla's 20 GiB are parked and she waits."""

    def __init__(self, machine: Machine, **settings: object):
        open_to_everyone(machine)
        self.machine = machine
        writer.FLUSH_EVENTS_EVERY_S = writer.FLUSH_EVERY_S = 0.0
        nvml = FakeNvml({UUID: 6 * GIB, gpu_uuid(bytes(range(16, 32))): 78 * GIB}, 80 * GIB, percent=37)
        nvml.name = "NVIDIA A100-SXM4-80GB"
        self.controller = ThreadController(
            machine.socket,
            nvml,
            HistoryOptions(machine.folder / "history" / "ledger.sqlite"),
            EveryUserAccess(),
            **settings,
        )
        self.ana, self.bob, self.carla = (Person(machine, uid) for uid in (ANA, BOB, CARLA))
        self.shims = {
            "analysis": self.ana.shim("analysis", resident=40 * GIB),
            "scratch": self.ana.shim("scratch", resident=GIB // 8),  # one that this machine's memory can take
            "training": self.bob.shim("training", resident=30 * GIB),
            "notes": self.carla.shim("notes", parked=20 * GIB, state=PARKED),
        }
        for person, name, server in (
            (self.ana, "analysis", "ana/"),
            (self.ana, "scratch", "ana/"),
            (self.bob, "training", "bob/gpu"),
            (self.carla, "notes", "carla/"),
        ):
            self.describe(person, name, server)

    def describe(self, person: Person, name: str, server: str) -> None:
        """Describe a kernel as its server does."""
        body = {"name": "Python 3", "path": f"work/{name}.ipynb", "server": server}
        assert person.ask("PUT", f"/kernels/{name}", body)[0] == 200

    def kernel(self, uid: int, name: str) -> dict[str, object]:
        """A kernel as root sees it."""
        return self.machine.kernels()[f"uid-{uid}/{name}"]


@contextlib.contextmanager
def gpu_node(**settings: object) -> Iterator[GpuNode]:
    """A node on a machine of its own; skips where this process cannot become another user."""
    needs_root()
    with new_machine() as machine:
        made = GpuNode(machine, **settings)
        yield made
        for person in (made.ana, made.bob, made.carla):
            person.close()
        made.controller.stop()

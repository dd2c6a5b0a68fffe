"""An NVML whose answers a test decides."""

from __future__ import annotations

import threading

import fake_shim
from fake_shim import GPU, MIB

from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.protocol.wire import gpu_uuid
from jupyter_affinode.node.system.nvml import NvmlMissing, NvmlSample

UUID = gpu_uuid(GPU)


class FakeNvml:
    """The fake shims' GPU, or several: `free` bytes, one figure or one by UUID, of `total` each. A test sets all of it.

    `pids`, `used_by` and `busy` are the processes on each GPU (None: NVML does not know). `gate` stops it as a hung
    driver would.
    """

    name = "A GPU"

    def __init__(self, free=0, total=1000 * MIB, *, pids=None, used_by=(), busy=None, percent=0):
        self.free, self.total, self.percent = free, total, percent
        self.pids, self.used_by, self.busy = pids, dict(used_by), busy
        self.broken = False
        self.reads = 0  # how often it was looked at
        self.gate = threading.Event()
        self.gate.set()

    def read(self):
        began = fake_shim.time.monotonic()
        self.reads += 1
        assert self.gate.wait(60)
        if self.broken:
            raise NvmlMissing("Driver Not Loaded")
        return NvmlSample(began, "580.1", self.gpus())

    def gpus(self):
        pids, busy = (each if each is None else frozenset(each) for each in (self.pids, self.busy))
        free_bytes = self.free if isinstance(self.free, dict) else {UUID: self.free}
        return tuple(
            NvmlGpu(
                uuid,
                index,
                self.name,
                self.total,
                self.total - free,
                free,
                self.percent,
                pids,
                self.used_by,
                busy,
            )
            for index, (uuid, free) in enumerate(free_bytes.items())
        )


class FilledNvml(FakeNvml):
    """The GPU on which the memory of `shims` is in use; `foreign`: what other programs use, by UUID of each GPU."""

    def __init__(self, total, **options):
        super().__init__(total=total, **options)
        self.shims, self.foreign = [], {UUID: 0}

    def gpus(self):
        ours = {UUID: sum(shim.page.memory[GPU][0] for shim in self.shims)}
        self.free = {
            uuid: max(self.total - used - ours.get(uuid, 0), 0) for uuid, used in self.foreign.items()
        }
        return super().gpus()

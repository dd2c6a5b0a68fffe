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
    """A GPU of 1000 MiB whose free memory a test sets; `gate` stops it as a hung driver would."""

    def __init__(self, free):
        self.free = free
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()

    def read(self):
        began = fake_shim.time.monotonic()
        assert self.gate.wait(60)
        if self.broken:
            raise NvmlMissing("Driver Not Loaded")
        total = 1000 * MIB
        gpu = NvmlGpu(UUID, 0, "A GPU", total, total - self.free * MIB, self.free * MIB, 37)
        return NvmlSample(began, "580.1", (gpu,))

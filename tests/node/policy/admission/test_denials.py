"""No program sees out-of-memory for what is merely not known, or not within reach, at the moment."""

from __future__ import annotations

import math
from dataclasses import replace

from snapshots import NEEDED, NOW, A, asks, node, resident

from jupyter_affinode.node.model.actions import DenyRoom
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.model.snapshot import Kernel, Residency
from jupyter_affinode.node.policy.decide import decide
from jupyter_affinode.node.state.gpus.gpu_table import DOUBT_S, GpuTable
from jupyter_affinode.node.system.nvml import NvmlSample
from jupyter_affinode.settings.policy import GIB, Settings


def denials(kernel, *others, **fields):
    return [
        each for each in decide(NOW, node(kernel, *others, **fields), NEEDED) if isinstance(each, DenyRoom)
    ]


def test_a_fresh_controller_denies_nothing_before_every_kernel_can_have_been_heard_of():
    kernel = asks(resident("k", 12 * GIB, idle=0), 8 * GIB, waits=9)
    assert denials(kernel) and not denials(kernel, is_complete=False)


def test_what_a_stopped_kernel_holds_is_waited_for():
    kernel = asks(resident("k", 4 * GIB, idle=0), 8 * GIB, waits=9)
    stopped = resident("stopped", 8 * GIB, is_parkable=False, is_out_of_reach=True)
    assert not denials(kernel, stopped)
    assert denials(kernel, replace(stopped, is_out_of_reach=False))
    assert denials(kernel, resident("stopped", 4 * GIB, is_parkable=False, is_out_of_reach=True))


def test_what_a_kernel_has_that_is_long_in_coming_back_is_waited_for():
    """Its room is not reserved any more, and its page says only at the end what it has on the GPU."""
    kernel = asks(resident("k", 4 * GIB, idle=0), 8 * GIB, waits=9)
    slow = Kernel("slow", Residency.RESUMING, {A: 0}, {A: 8 * GIB}, moves_since=-math.inf, is_slow=True)
    assert not denials(kernel, slow)
    assert denials(kernel, replace(slow, is_slow=False)), "NVML has shown nothing of it"
    assert denials(kernel, replace(slow, parked_bytes={A: 4 * GIB}))


def test_an_allocation_that_nvml_shows_before_its_page_does_is_not_taken_for_an_unmanaged_programs():
    table, total = GpuTable(), 16 * GIB

    def seen(now, free, ours):
        gpu = NvmlGpu(A, 0, "GPU", total, total - free, free, None)
        table.take(NvmlSample(now, "", (gpu,)), Settings())
        table.take_pages({A: ours}, now)
        return table.snapshot(now)[A]

    seen(NOW, 8 * GIB, 8 * GIB)
    later = NOW + 0.5  # long after the last change of a page
    assert seen(later, 2 * GIB, 8 * GIB).uncertain_bytes == 6 * GIB
    assert seen(later + DOUBT_S + 0.1, 2 * GIB, 8 * GIB).uncertain_bytes == 0

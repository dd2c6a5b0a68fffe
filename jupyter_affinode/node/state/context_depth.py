"""Context depth: when a kernel may leave the GPU altogether, and what it needs to come back.

At memory depth a parked process leaves its CUDA context on the GPU, about 0.6 GiB. The driver's own checkpoint
takes that too, but its Restore loses a process that meets a full GPU. So it is used only where everybody who
could take the room is known and asks for it, and its way back is counted larger than it probably is.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...settings.policy import GIB, Settings
from ..protocol.page import Depth, PageGpu, State
from ..protocol.wire import HelloFlag
from .gpus import GpuTable
from .records import KernelRecord, Process

SPARE_BYTES = GIB  # as the shim has it (checkpoint.c): what Restore must find free beyond what it needs
CONTEXT_BYTES = GIB  # the least that a context is taken to need


def context_objection(
    kernel: KernelRecord, ours: Iterable[Process], gpus: GpuTable, settings: Settings
) -> str | None:
    """Why the kernel's CUDA context stays on the GPU when it is parked; None if it may go.

    `ours` are all processes with a shim, of every kernel.
    """
    if settings.depth != "context":
        return 'the setting `depth` is "memory"'
    processes = [process for process in kernel.processes.values() if process.data.state is not State.NONE]
    if len(processes) != 1:
        return "several of the kernel's processes use CUDA"
    process = processes[0]
    if not process.hello.flags & HelloFlag.CONTEXT:
        return "its process was not started with AFFINODE_DEPTH=context, or its driver cannot do it"
    used = [gpu for gpu in process.data.gpus if _bytes(gpu)]
    if len(used) != 1:
        return "it uses several GPUs"
    return _gpu_objection(process, used[0].uuid, {each.pid for each in ours}, gpus)


def needs_to_come_back(process: Process) -> dict[str, int]:
    """Room by GPU for a process that is parked: for its memory, and at context depth for the context too.

    The driver must find 1 GiB more than the context; the memory that follows may use that.
    """
    needs = {gpu.uuid: gpu.parked_bytes for gpu in process.data.gpus}
    if process.data.depth is Depth.CONTEXT and process.data.gpus:
        context = process.data.context_bytes
        home = max(process.data.gpus, key=lambda gpu: gpu.parked_bytes)  # it has no other
        sure = max(context, CONTEXT_BYTES) + SPARE_BYTES
        needs[home.uuid] = max(context + home.parked_bytes, sure)
    return needs


def leaves_with_context(kernel: KernelRecord, gpus: GpuTable) -> dict[str, int]:
    """What a kernel whose context may go frees of its GPU beside its movable memory; {} where NVML does not say.

    NVML's figure and the page are of different moments, so no more is believed than a context usually takes.
    """
    (process,) = (each for each in kernel.processes.values() if each.data.state is not State.NONE)
    (gpu,) = (gpu for gpu in process.data.gpus if _bytes(gpu))
    known = gpus.measured.get(gpu.uuid)
    used = None if known is None else known.used_by.get(process.pid)
    if used is None or process.data.state not in (State.RESIDENT, State.PARKING):
        return {}
    return {gpu.uuid: min(max(used - gpu.resident_bytes, 0), CONTEXT_BYTES + sum(gpu.fixed_bytes))}


def kernel_needs(kernel: KernelRecord) -> dict[str, int]:
    """The same for a kernel, its processes' added up."""
    needs: dict[str, int] = {}
    for process in kernel.processes.values():
        for uuid, size in needs_to_come_back(process).items():
            needs[uuid] = needs.get(uuid, 0) + size
    return needs


def kernel_depth(kernel: KernelRecord) -> Depth:
    """How deep its deepest process is parked."""
    return max((process.data.depth for process in kernel.processes.values()), default=Depth.NONE)


def _gpu_objection(process: Process, uuid: str, ours: set[int], gpus: GpuTable) -> str | None:
    gpu = gpus.measured.get(uuid)
    if gpu is None or gpu.pids is None:
        return "NVML does not say which processes use the GPU"
    if process.pid not in gpu.pids:
        if any(ours & (other.pids or frozenset()) for other in gpus.measured.values()):
            return "NVML does not show its process on the GPU yet"  # it came a moment ago
        return "the processes on the GPU cannot be told apart here (NVML shows other pids, as in containers)"
    strangers = sorted(gpu.pids - ours)
    if strangers:
        return f"process {strangers[0]}, which has no shim, uses the GPU"
    return None


def _bytes(gpu: PageGpu) -> int:
    return gpu.resident_bytes + gpu.parked_bytes + sum(gpu.fixed_bytes)

"""Context depth: when a kernel's CUDA context may be parked too, and what resuming it needs.

At memory depth a parked process leaves its CUDA context on the GPU, about 0.6 GiB. The driver's own checkpoint parks
that too, but its Restore loses a process that meets a full GPU. So context depth is used only where every process that
could take the room is known and obeys the controller, and the room for its resume is overestimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import RawIOBase
from pathlib import Path
from typing import NamedTuple

from ....settings.policy import GIB, Settings
from ...model.gpu import NvmlGpu
from ...model.reasons import DepthRefusal
from ...policy.placement import are_alike
from ...protocol.page import Depth, State
from ...protocol.wire import HelloFlag
from ..records.kernel import KernelRecord
from ..records.process import Process
from .gpu_table import GpuTable

SPARE_BYTES = GIB  # must be free beyond what Restore needs, as in the shim (checkpoint.c)
CONTEXT_BYTES = GIB  # the least room that is reserved for a context


class Objection(NamedTuple):
    """Why a CUDA context stays on the GPU."""

    code: DepthRefusal | None  # None: it is not to leave
    words: str


def context_objection(
    kernel: KernelRecord, ours: Iterable[Process], gpus: GpuTable, settings: Settings
) -> Objection | None:
    """Return why the kernel's CUDA context stays on the GPU when it is parked; None if it may be parked too.

    `ours` are all processes with a shim, of every kernel.
    """
    if settings.depth != "context":
        return Objection(None, 'the setting `depth` is "memory"')
    processes = [process for process in kernel.processes.values() if process.data.state is not State.NONE]
    if len(processes) != 1:
        return Objection(DepthRefusal.SEVERAL_PROCESSES, "several of the kernel's processes use CUDA")
    process = processes[0]
    if not process.hello.flags & HelloFlag.CONTEXT:
        words = "its process was not started with AFFINODE_DEPTH=context, or its driver cannot do it"
        return Objection(DepthRefusal.NOT_ASKED, words)
    used = [gpu for gpu in process.data.gpus if gpu.in_all_bytes]
    if len(used) != 1:
        return Objection(DepthRefusal.SEVERAL_GPUS, "it uses several GPUs")
    return _gpu_objection(process, used[0].uuid, {each.pid for each in ours}, gpus)


def needs_to_resume(process: Process) -> dict[str, int]:
    """Return the GPU memory that resuming a parked process needs, by GPU: for its memory, and at context depth for the
    context too.

    The driver must find 1 GiB more than the context; the memory that follows may use that.
    """
    needs = {gpu.uuid: gpu.parked_bytes for gpu in process.data.gpus}
    if process.data.depth is Depth.CONTEXT and process.data.gpus:
        context = process.data.context_bytes
        told = process.data.context_gpu
        home = told if told in needs else max(needs, key=needs.__getitem__)  # it has no other
        sure = max(context, CONTEXT_BYTES) + SPARE_BYTES
        needs[home] = max(context + needs[home], sure)
    return needs


def freed_with_context(kernel: KernelRecord, gpus: GpuTable) -> dict[str, int]:
    """Return the bytes that parking a kernel's context frees beside its movable memory, by GPU; {} where NVML does not
    tell.

    NVML's figure and the page are of different moments, so the result is capped at what a context usually takes.
    """
    (process,) = (each for each in kernel.processes.values() if each.data.state is not State.NONE)
    (gpu,) = (gpu for gpu in process.data.gpus if gpu.in_all_bytes)
    known = gpus.measured.get(gpu.uuid)
    used = None if known is None else known.used_by.get(process.pid)
    if used is None or process.data.state not in (State.RESIDENT, State.PARKING):
        return {}
    return {gpu.uuid: min(max(used - gpu.resident_bytes, 0), CONTEXT_BYTES + sum(gpu.unmovable_bytes))}


def kernel_needs(kernel: KernelRecord) -> dict[str, int]:
    """Return the same for a kernel, summed over its processes."""
    needs: dict[str, int] = {}
    for process in kernel.processes.values():
        for uuid, size in needs_to_resume(process).items():
            needs[uuid] = needs.get(uuid, 0) + size
    return needs


def kernel_depth(kernel: KernelRecord) -> Depth:
    """Return the depth of the kernel's most deeply parked process."""
    return max((process.data.depth for process in kernel.processes.values()), default=Depth.NONE)


def _gpu_objection(process: Process, uuid: str, ours: set[int], gpus: GpuTable) -> Objection | None:
    gpu = gpus.measured.get(uuid)
    if gpu is None or gpu.pids is None:
        return Objection(DepthRefusal.NOT_SEEN, "NVML does not say which processes use the GPU")
    if process.pid not in gpu.pids:
        if any(ours & (other.pids or frozenset()) for other in gpus.measured.values()):
            words = "NVML does not show its process on the GPU yet"  # it came a moment ago
        else:
            words = (
                "the processes on the GPU cannot be told apart here (NVML shows other pids, as in containers)"
            )
        return Objection(DepthRefusal.NOT_SEEN, words)
    unmanaged = sorted(gpu.pids - ours)
    if unmanaged:
        return Objection(DepthRefusal.UNMANAGED, f"process {unmanaged[0]}, which has no shim, uses the GPU")
    return None


# ---- migration: on which other GPUs a parked kernel could be resumed
#
# Only a process parked at context depth can: the driver restores it on any GPU of the same chip. As on its own GPU, no
# program may be there that could take the room unseen. The shim checks all of this again.

VISIBLE = b"CUDA_VISIBLE_DEVICES="
ENVIRON_MAX = 256 << 10  # by prctl a process can make its environment look as long as all of its memory


def open_gpus(ours: Iterable[Process], gpus: GpuTable, settings: Settings) -> frozenset[str]:
    """Return the GPUs that a kernel may migrate to, where only our processes are. `ours`: all processes with a shim."""
    if not settings.allow_migration or settings.depth != "context":
        return frozenset()
    pids = {each.pid for each in ours}
    return frozenset(gpu.uuid for gpu in gpus.measured.values() if gpu.pids is not None and gpu.pids <= pids)


def other_gpus(kernel: KernelRecord, are_open: frozenset[str], gpus: GpuTable, now: float) -> tuple[str, ...]:
    """Return the other GPUs on which a waiting kernel may be resumed now, in NVML's order."""
    if not are_open or kernel.wants_since is None:
        return ()
    process = _mover(kernel)
    if process is None or process.connection is None or process.data.depth is not Depth.CONTEXT:
        return ()
    return tuple(
        gpu.uuid
        for gpu in _alike(process, gpus)
        if gpu.uuid in are_open and not _failed_lately(kernel, gpu.uuid, now) and _sees(process, gpu)
    )


def may_be_going_to(kernel: KernelRecord, gpus: GpuTable) -> list[str]:
    """Return the other GPUs that a process may be migrating to without our command: its page does not tell.

    An earlier controller began the resume, or the process was stopped in the midst of one and continues later.
    """
    process = _mover(kernel)
    return [] if process is None else [gpu.uuid for gpu in _alike(process, gpus)]


def read_visible(pid: int, proc: Path = Path("/proc")) -> tuple[str, ...] | None:
    """Return the GPUs in CUDA_VISIBLE_DEVICES with which the process was started; None if it sees all.

    An unreadable or overlong environment counts as one that shows no other GPU. What a program sets later in itself is
    not known.
    """
    try:
        with (proc / str(pid) / "environ").open("rb", buffering=0) as file:
            environ = _read_up_to(file, ENVIRON_MAX + 1)
    except OSError:
        return ()
    if len(environ) > ENVIRON_MAX:
        return ()
    for variable in environ.split(b"\0"):
        if variable.startswith(VISIBLE):
            names = variable[len(VISIBLE) :].decode(errors="replace").split(",")
            return tuple(name.strip() for name in names)
    return None


def _read_up_to(file: RawIOBase, most: int) -> bytes:
    """Return the file's first bytes; /proc gives a page or so at a time."""
    found = b""
    while len(found) < most and (piece := file.read(most - len(found))):
        found += piece
    return found


def _mover(kernel: KernelRecord) -> Process | None:
    """Return a kernel's only process if it can migrate; None if there are several, or none."""
    processes = [process for process in kernel.processes.values() if process.data.state is not State.NONE]
    if len(processes) != 1:
        return None
    return processes[0] if processes[0].hello.flags & HelloFlag.MIGRATES else None


def _alike(process: Process, gpus: GpuTable) -> list[NvmlGpu]:
    """Return the other GPUs like the only one that the process uses; [] if it uses several."""
    used = [gpu.uuid for gpu in process.data.gpus if gpu.resident_bytes or gpu.parked_bytes]
    measured = gpus.measured
    home = measured.get(used[0]) if len(used) == 1 else None
    if home is None:
        return []
    return [gpu for gpu in measured.values() if gpu.uuid != home.uuid and are_alike(home, gpu)]


def _failed_lately(kernel: KernelRecord, gpu: str, now: float) -> bool:
    """Return whether a migration of the kernel to a GPU failed a moment ago."""
    failed = kernel.failures.migration.get(gpu)
    return failed is not None and failed.retry_at > now


def _sees(process: Process, gpu: NvmlGpu) -> bool:
    """Return whether the process may use the GPU by its CUDA_VISIBLE_DEVICES."""
    if process.visible is None:
        return True
    return any(
        name == str(gpu.index) or (len(name) > len("GPU-") and gpu.uuid.startswith(name))
        for name in process.visible
    )

"""On which other GPUs a parked kernel could come back: what is known of it, of them, and of who chose.

Only a process that took its CUDA context along can: the driver restores it on any GPU of the same chip. As at its own
GPU (state/context_depth.py), nobody may be there who could take the room unseen. The shim looks at all of it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import RawIOBase
from pathlib import Path

from ...settings.policy import Settings
from ..model.gpu import NvmlGpu
from ..policy.placement import are_alike
from ..protocol.page import Depth, State
from ..protocol.wire import HelloFlag
from .gpus import GpuTable
from .records import KernelRecord, Process

VISIBLE = b"CUDA_VISIBLE_DEVICES="
ENVIRON_MAX = 256 << 10  # a process can say, by prctl, that its environment is as long as all of its memory


def open_gpus(ours: Iterable[Process], gpus: GpuTable, settings: Settings) -> frozenset[str]:
    """The GPUs that somebody may come to from elsewhere: only ours are there. `ours`: all processes with a shim."""
    if not settings.allow_migration or settings.depth != "context":
        return frozenset()
    pids = {each.pid for each in ours}
    return frozenset(gpu.uuid for gpu in gpus.measured.values() if gpu.pids is not None and gpu.pids <= pids)


def other_gpus(kernel: KernelRecord, are_open: frozenset[str], gpus: GpuTable, now: float) -> tuple[str, ...]:
    """Where else the kernel, if it waits, may be resumed now; in NVML's order."""
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
    """The other GPUs that a resume may be on the way to that is none of ours, or none any more: its page does not say.

    An earlier controller began it, or its process was stopped in the midst of it, and goes on when it is continued.
    """
    process = _mover(kernel)
    return [] if process is None else [gpu.uuid for gpu in _alike(process, gpus)]


def read_visible(pid: int, proc: Path = Path("/proc")) -> tuple[str, ...] | None:
    """The GPUs that the process was started to see, as CUDA_VISIBLE_DEVICES has them; None: all.

    Where that cannot be read, or is too long, it is taken to see none but its own. What a program sets later, in
    itself, is not known.
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
    """The file's first bytes; /proc gives a page or so at a time."""
    found = b""
    while len(found) < most and (piece := file.read(most - len(found))):
        found += piece
    return found


def _mover(kernel: KernelRecord) -> Process | None:
    """The one process of a kernel that knows how to come back elsewhere; None if there are several, or none."""
    processes = [process for process in kernel.processes.values() if process.data.state is not State.NONE]
    if len(processes) != 1:
        return None
    return processes[0] if processes[0].hello.flags & HelloFlag.ELSEWHERE else None


def _alike(process: Process, gpus: GpuTable) -> list[NvmlGpu]:
    """The other GPUs like the only one that the process uses; none if it uses several."""
    used = [gpu.uuid for gpu in process.data.gpus if gpu.resident_bytes or gpu.parked_bytes]
    measured = gpus.measured
    home = measured.get(used[0]) if len(used) == 1 else None
    if home is None:
        return []
    return [gpu for gpu in measured.values() if gpu.uuid != home.uuid and are_alike(home, gpu)]


def _failed_lately(kernel: KernelRecord, gpu: str, now: float) -> bool:
    """Return whether the kernel could not come back on a GPU a moment ago."""
    failed = kernel.failures.migration.get(gpu)
    return failed is not None and failed.retry_at > now


def _sees(process: Process, gpu: NvmlGpu) -> bool:
    """Whether nobody has chosen, for this process, that it does not use the GPU."""
    if process.visible is None:
        return True
    return any(
        name == str(gpu.index) or (len(name) > len("GPU-") and gpu.uuid.startswith(name))
        for name in process.visible
    )

"""The sizes and blocks to measure that fit this machine, decided before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30
CHUNK_BYTES = 2 * MIB
DEFAULT_SIZES = (1 * GIB, 8 * GIB, 32 * GIB)
SIMULATED_SIZES = (64 * MIB, 256 * MIB)
GPU_LEFT_BYTES = 1 * GIB  # for the context, and what libraries take
HOST_LEFT_BYTES = 2 * GIB
SIMULATED_LEFT_BYTES = 256 * MIB


class DoesNotFit(ValueError):
    """Something that was asked for is larger than what is free; the message says by how much."""


@dataclass(frozen=True)
class Room:
    """Free memory in bytes, less what must stay free."""

    gpu: int
    host: int

    @classmethod
    def of(cls, gpu_free: int, host_available: int, *, simulated: bool) -> Room:
        """Return what can be used of what is free; a simulated GPU's memory is host memory too."""
        if simulated:
            left = SIMULATED_LEFT_BYTES
            return cls(max(gpu_free - left, 0), max(host_available - left, 0) // 2)
        return cls(max(gpu_free - GPU_LEFT_BYTES, 0), max(host_available - HOST_LEFT_BYTES, 0))

    def check(self, size: int) -> None:
        """Raise DoesNotFit unless `size` bytes can be held on the GPU and parked."""
        for name, room in (("GPU", self.gpu), ("host", self.host)):
            if size > room:
                raise DoesNotFit(
                    f"{size / GIB:.4g} GiB do not fit: {room / GIB:.4g} GiB of {name} memory can be used now"
                    + (" (a machine whose memory grows: --warm-host)" if name == "host" else "")
                )


@dataclass(frozen=True)
class Plan:
    """Sizes in bytes, ascending."""

    sizes: tuple[int, ...]
    repeats: int

    @property
    def largest(self) -> int:
        """Return the largest size."""
        return self.sizes[-1]


def make_plan(
    room: Room,
    *,
    simulated: bool,
    quick: bool,
    sizes: Sequence[int] = (),
    repeats: int | None = None,
) -> Plan:
    """Return what was asked for, or else what fits of the usual sizes. Raises DoesNotFit."""
    for size in sizes:
        room.check(size)
    usual = SIMULATED_SIZES if simulated else DEFAULT_SIZES
    fitting = tuple(size for size in usual if size <= min(room.gpu, room.host))
    chosen = tuple(sorted(set(sizes))) or (fitting[:1] if quick else fitting)
    if not chosen:
        room.check(usual[0])
    return Plan(chosen, repeats or (1 if quick else 3))


def whole_chunks(text: str) -> int:
    """Return a size in GiB ("32", "0.25") in bytes: a multiple of 2 MiB. Raises ValueError."""
    size = round(float(text) * GIB)
    if size <= 0 or size % CHUNK_BYTES:
        raise ValueError(f"{text} GiB is not a multiple of 2 MiB")
    return size

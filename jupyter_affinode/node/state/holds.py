"""How much a user may keep from being parked at a time."""

from __future__ import annotations

from collections.abc import Iterable

from ...settings.policy import Settings
from ...units import bytes_in_words
from .records import KernelRecord


class HoldRefused(Exception):
    """The user holds as much as they may already; the message says how much that is."""


def check_hold(kernel: KernelRecord, kernels: Iterable[KernelRecord], settings: Settings, now: float) -> None:
    """Raise HoldRefused if its owner may not hold this kernel beside `kernels` (everybody's).

    One that is held already may have its end put off: that takes no more of the quota. So can nobody get more
    by asking twice, and a kernel that grows while it is held stays held until its end.
    """
    is_held = kernel.held_until is not None and kernel.held_until > now
    if settings.hold_bytes_max is None or is_held:
        return
    others = [
        each
        for each in kernels
        if each is not kernel
        and each.account.payer == kernel.account.payer
        and each.held_until is not None
        and each.held_until > now
    ]
    size = sum(_bytes(each) for each in [kernel, *others])
    if size > settings.hold_bytes_max:
        raise HoldRefused(
            f"you would keep {bytes_in_words(size)} of GPU memory, and may keep"
            f" {bytes_in_words(settings.hold_bytes_max)}"
        )


def _bytes(kernel: KernelRecord) -> int:
    return sum(
        gpu.resident_bytes + gpu.parked_bytes + sum(gpu.fixed_bytes) for gpu in kernel.by_gpu().values()
    )

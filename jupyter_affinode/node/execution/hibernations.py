"""Kernels that their own servers, or the keepers that have them, are to put into images on disk.

The controller writes no process. As with an end that it asks for (evictions.py), the kernel's JSON tells that its
hibernation is wanted, and why: a server sees that in its stream, a keeper in the answer to what it says every ten
seconds. They have the kernel's memory written by `DiskTransfers`, its processes by CRIU, and tell when the image is
whole. What is not begun in time is withdrawn, and not asked again for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ..model.backoff import UserBackOff
from ..model.snapshot import Residency
from ..state.records.kernel import IMAGE_TAKES_S, KernelRecord

BEGINS_WITHIN_S = 20.0
NOT_AGAIN_S = 600.0


def ask_to_hibernate(
    kernel: KernelRecord, reason: str, now: float, log: logging.Logger, *, until: float | None = None
) -> None:
    """Have a kernel put into an image. `until`: the controller ends then, and the kernel may be at work until then."""
    asked = kernel.hibernation
    asked.reason, asked.asked_at, asked.is_last = reason, now, until is not None
    asked.until = now + BEGINS_WITHIN_S if until is None else until
    log.info("%s is to hibernate: %s", kernel.id, reason)


def refuse_to_hibernate(kernel: KernelRecord, words: str, now: float, log: logging.Logger) -> None:
    """Note that its server could not do it."""
    kernel.hibernation.reason = None
    kernel.hibernation.backoff.wait(now, NOT_AGAIN_S)
    log.warning("%s does not hibernate: %s", kernel.id, words)


def withdraw_hibernations(
    kernels: Iterable[KernelRecord],
    failed_users: UserBackOff,
    now: float,
    log: logging.Logger,
    on_change: Callable[[], None],
) -> None:
    """Withdraw what is done, what is not wanted any more, and what was not begun in time. `failed_users`: whose kernels
    are not written for others for a while.
    """
    for kernel in kernels:
        asked = kernel.hibernation
        if asked.reason is None:
            continue
        transfer = kernel.disk_transfer
        if kernel.image_bytes is not None or not kernel.may_hibernate:
            asked.reason = None
        elif (transfer is not None and transfer.hibernates) or (
            kernel.is_hibernated and now - asked.asked_at < IMAGE_TAKES_S
        ):
            continue
        elif not asked.is_last and (
            kernel.wants_since is not None or kernel.cell.is_open or kernel.residency is not Residency.PARKED
        ):
            asked.reason = None
            log.info("%s need not hibernate: it is used", kernel.id)
        elif now > asked.until:
            refuse_to_hibernate(kernel, "its server did not begin, or it came to nothing", now, log)
            failed_users.failed(kernel.account.charged_user, asked.asked_at, now)
        else:
            continue
        on_change()

"""Traits of kernels that outlive their server, which a Hub's spawners and the server extension share."""

from __future__ import annotations

from typing import Any

from traitlets import Float, HasTraits, Integer, TraitError, Unicode, validate

from ..units import size_in_bytes

KEPT = ("never", "parked", "all", "hibernated")  # which kernels outlive their server
KEEP_FOR_S = 2 * 86400.0


class KeepLimits(HasTraits):
    """For how long kernels are kept, and how many of a user's."""

    keep_kernels_for_s = Float(
        KEEP_FOR_S,
        min=1.0,
        help="""For how many seconds a kernel is kept without a server; then it is shut down.""",
    ).tag(config=True)
    keep_kernels_per_user = Integer(
        0,
        min=0,
        help="""How many kernels of a user are kept at a time; 0: any number. Of more, the
        kernels that have said nothing for longest end first, and a kernel whose cell runs ends last.""",
    ).tag(config=True)
    keep_kernels_memory = Unicode(
        "",
        help="""How much host memory the processes of a user's kept kernels may have together, as "64GiB", parked GPU
        memory included; empty: any. Of more, kernels end in the same order.""",
    ).tag(config=True)

    @validate("keep_kernels_memory")
    def _check_keep_kernels_memory(self, proposal: Any) -> str:
        return checked_size(proposal)


def checked_size(proposal: Any) -> str:
    """Return a proposed size, as "64GiB" or "", without spaces around it. Raises TraitError."""
    text = str(proposal["value"]).strip()
    try:
        size_in_bytes(text or "0")
    except ValueError as error:
        raise TraitError(f"{proposal['trait'].name}: {error}") from None
    return text

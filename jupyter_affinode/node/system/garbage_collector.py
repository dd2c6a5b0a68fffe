"""Python's garbage collector in the controller's process: no pass of the controller should be held up by it."""

from __future__ import annotations

import gc

YOUNG_MAX = 50_000  # objects; a pass over a thousand kernels makes some ten thousand, and drops them itself


def spare_passes() -> None:
    """Look for cycles after many new objects, not after 700 as by default, and never among what modules brought along.

    A pass makes its picture of all kernels anew and hardly a cycle. A tenth of the time of `decide()` for a thousand
    kernels was the collector's, and each of its looks at everything took ten times as long as the decision.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)

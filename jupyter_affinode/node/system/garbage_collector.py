"""Python's garbage collector in the controller's process: no pass of the controller should be held up by it."""

from __future__ import annotations

import gc

YOUNG_MAX = 50_000  # objects; a pass over a thousand kernels makes some ten thousand, and drops them itself


def spare_passes() -> None:
    """Have cycles looked for after many new objects, not after 700 as by default, and never among modules' objects.

    A pass makes its snapshot of all kernels anew and hardly a cycle. A tenth of the time of `decide()` for a thousand
    kernels was the collector's, and each of its looks at everything took ten times as long as the decision.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)

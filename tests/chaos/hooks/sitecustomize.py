"""On the path of processes under chaos: SIGUSR1 blocks a controller's event loop for CHAOS_BLOCK_S seconds, and it sees
CHAOS_HOST_MIB of host memory (bounded_controller.py).

A handler runs on the main thread, between two steps of the loop; threads go on meanwhile, as they would not if
the process were stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

if "jupyter_affinode.node" in sys.orig_argv and "CHAOS_BLOCK_S" in os.environ:

    def block(number: int, frame: FrameType | None) -> None:
        time.sleep(float(os.environ["CHAOS_BLOCK_S"]))

    signal.signal(signal.SIGUSR1, block)

    if int(os.environ["CHAOS_HOST_MIB"]):
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from bounded_controller import bound

        bound(int(os.environ["CHAOS_HOST_MIB"]) << 20)

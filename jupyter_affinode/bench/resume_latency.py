"""How long a CUDA call in a parked process takes, through a real controller: what a user waits for."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

from .. import environment
from ..client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ..client.starting import end_controller, ensure_controller
from ..units import bytes_in_words
from .child_process import BenchProcess
from .measure import Say, verify

STARTS_WITHIN_S = 15.0
PARKS_WITHIN_S = 120.0


class NotParked(RuntimeError):
    """The controller did not park the process; the message tells why."""


def wake_by_controller(folder: Path, size: int, repeats: int, say: Say) -> list[float]:
    """Return the seconds from a CUDA call in a parked process to its return, with a controller of the bench's own.

    Raises ControllerUnavailable, NotParked and WrongContent.
    """
    say(f"wake: {bytes_in_words(size)}, through a controller")
    kernel_id = str(uuid.uuid4())
    times = []
    arguments = ["--low-watermark=0", "--settle=0"]
    socket = ensure_controller(
        folder / environment.SOCKET_NAME, extra_args=arguments, timeout_s=STARTS_WITHIN_S
    )
    try:
        with BenchProcess(socket=socket, kernel_id=kernel_id) as child:
            child.ask("hold", size=size, block=size)
            for round_ in range(repeats):
                child.ask("change", seed=0xC0FFEE + round_)
                _until_parked(ControllerClient(socket), kernel_id)
                times.append(float(child.ask("touch")["seconds"]))
                verify(child)
    except ControllerUnavailable:
        log = socket.with_name("node.log").read_text(errors="replace").splitlines()
        errors = [line for line in log if " E " in line]  # what is said last is that it ends
        raise NotParked(f"the controller ended: {[*errors[-1:], *log[-1:], 'no words'][0]}") from None
    finally:
        end_controller(socket)
    return times


def _until_parked(client: ControllerClient, kernel_id: str) -> None:
    deadline = time.monotonic() + PARKS_WITHIN_S
    while True:
        try:
            if asyncio.run(client.park(kernel_id))["residency"] == "parked":
                return
        except ControllerRefused as refused:
            if time.monotonic() > deadline or refused.slug not in ("busy", "unknown-kernel"):
                raise NotParked(f"the controller did not park the process: {refused}") from None
            time.sleep(0.02)
        if time.monotonic() > deadline:
            raise NotParked("the controller did not park the process in time")

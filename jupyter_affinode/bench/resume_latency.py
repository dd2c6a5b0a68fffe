"""How long a CUDA call in a parked process takes, through a real controller: what a user waits for."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import environment
from ..client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from ..python_command import module_command
from ..units import bytes_in_words
from .child_process import BenchProcess
from .measure import Say

STARTS_WITHIN_S = 15.0
PARKS_WITHIN_S = 120.0
ENDS_WITHIN_S = 10.0


class NoController(RuntimeError):
    """No private controller could be started; the message tells why."""


def wake_by_controller(folder: Path, size: int, repeats: int, say: Say) -> list[float]:
    """Return the seconds from a CUDA call in a parked process to its return. Raises NoController."""
    say(f"wake: {bytes_in_words(size)}, through a controller")
    kernel_id = str(uuid.uuid4())
    times = []
    with _controller(folder) as client, BenchProcess(socket=client.socket, kernel_id=kernel_id) as child:
        child.ask("hold", size=size, block=size)
        for round_ in range(repeats):
            child.ask("change", seed=0xC0FFEE + round_)
            _until_parked(client, kernel_id)
            times.append(float(child.ask("touch")["seconds"]))
            wrong = child.ask("verify")["differing_words"]
            if wrong:
                raise NoController(f"{wrong} words differ after a resume through the controller")
    return times


@contextlib.contextmanager
def _controller(folder: Path) -> Iterator[ControllerClient]:
    """Run a controller of the bench's own."""
    socket = folder / environment.SOCKET_NAME
    env = environment.controller_environment()
    env[environment.SOCKET] = str(socket)
    command = module_command("jupyter_affinode.node", "--low-watermark=0", "--settle=0")
    with (folder / "stderr.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
        )
    try:
        client = ControllerClient(socket)
        deadline = time.monotonic() + STARTS_WITHIN_S
        while _ask(client.node) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                said = (folder / "stderr.log").read_text(errors="replace").strip().splitlines()
                errors = [line for line in said if " E " in line]  # what is said last is that it ends
                raise NoController(f"it did not come up: {[*said, *errors][-1] if said else 'no words'}")
            time.sleep(0.02)
        yield client
    finally:
        process.terminate()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ask(request: Callable[..., Any], *arguments: Any) -> Any:
    """Return the answer; None while no controller answers."""
    try:
        return asyncio.run(request(*arguments))
    except ControllerUnavailable:
        return None


def _until_parked(client: ControllerClient, kernel_id: str) -> None:
    deadline = time.monotonic() + PARKS_WITHIN_S
    while True:
        try:
            kernel = _ask(client.park, kernel_id)
        except ControllerRefused as refused:
            if time.monotonic() > deadline or refused.slug not in ("busy", "unknown-kernel"):
                raise NoController(f"it did not park the process: {refused}") from None
            time.sleep(0.02)
            continue
        if kernel is None or time.monotonic() > deadline:
            raise NoController("it ended, or did not park the process in time")
        if kernel["residency"] == "parked":
            return

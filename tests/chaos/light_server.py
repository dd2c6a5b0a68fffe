"""A light server: starts light kernels, restarts those that die, and tells the controller of their cells.

`light_server.py NAME BOARDS PROGRAM KERNELS SEED MEBIBYTES THINK_MS WORK_MS BALLAST_MIB [CONTROLLER ARGUMENT …]`

It does to the controller what a Jupyter server with our extension does, and starts one where none answers. Ends
when all its kernels have ended by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from live_machine import UnixConnection

from jupyter_affinode import environment
from jupyter_affinode.client.errors import ControllerRefused, ControllerUnavailable
from jupyter_affinode.client.kernel_messages import KernelMessages
from jupyter_affinode.client.starting import ensure_controller
from jupyter_affinode.hibernation import hibernate as images
from jupyter_affinode.hibernation.hibernate import CannotHibernate, CannotWake
from jupyter_affinode.hibernation.image import Image
from jupyter_affinode.hibernation.store import image_of
from jupyter_affinode.keeping.processes import Adopted
from jupyter_affinode.provisioning.preload import manage

sys.path.insert(0, str(Path(__file__).resolve().parent))

from light_kernels import AWAY, HERE_AGAIN, Board, Phase, incarnation_path, wish_path

ROUND_S = 0.02
ASK_TIMEOUT_S = 2.0
LOOK_EVERY_S = 0.5
PATIENCE_S = (
    10.0  # until a kernel can leave the GPU: not in its first three seconds, nor in the midst of a move
)
START_AGAIN_S = 0.5  # after a controller could not be started or asked


class Kernel:
    """One kernel of the server, through its restarts."""

    def __init__(self, kernel_id: str, number: int):
        self.id, self.number = kernel_id, number
        self.generation = 0
        self.process: subprocess.Popen[bytes] | Adopted
        self.board: Board
        self.told: tuple[int, bool] | None = None  # which cell, whether it was open
        self.sleep: threading.Thread | None = None  # in which it is hibernated and woken again
        self.sleeps = 0

    @property
    def cell(self) -> tuple[int, bool]:
        seen = self.board.seen
        return seen.cells, seen.phase is Phase.IN_CELL


class LightServer:
    """All of it, for the life of the process."""

    def __init__(self, arguments: list[str]):
        self.name, boards, self.program, count, seed, *rest = arguments
        self.boards, self.seed, self.work, self.controller = Path(boards), int(seed), rest[:4], rest[4:]
        self.socket = environment.socket_path()
        self.known: tuple[int, int] | None = (
            None  # the controller's socket that our kernels were described to
        )
        self.ask_again_at = self.look_at = 0.0
        self.kernels = [Kernel(f"{self.name}-{number}", number) for number in range(int(count))]
        self.environment = dict(os.environ) | {"LIGHT_SERVER": str(os.getpid())}
        images = self.environment.get("CHAOS_IMAGES", "")
        self.images = Path(images) if images else None
        depth = "context" if images else None
        manage(self.environment, "", [self.program], python=False, server=True, depth=depth)

    def serve(self) -> None:
        """Until every kernel has ended."""
        self.find_controller()
        for kernel in self.kernels:
            self.start(kernel)
        while self.kernels:
            for kernel in list(self.kernels):
                self.look_after(kernel)
            if time.monotonic() > self.ask_again_at:
                self.tell()
            time.sleep(ROUND_S)

    def start(self, kernel: Kernel) -> None:
        path = self.boards / f"{kernel.id}.{kernel.generation}"
        Board.create(path)
        kernel.board, kernel.told = Board(path), None
        seed = self.seed * 1_000_003 + kernel.number * 1009 + kernel.generation
        kernel.process = subprocess.Popen(
            [self.program, path, str(seed % 2**63), *self.work],
            env=self.environment | {environment.KERNEL_ID: kernel.id},
            stdin=subprocess.DEVNULL,
        )

    def look_after(self, kernel: Kernel) -> None:
        """Start it again if it died, as a Jupyter server does; forget it if it ended by itself."""
        if kernel.sleep is not None:
            if kernel.sleep.is_alive():
                kernel.process.poll()  # its process, which has ended, is not to keep its number
                return
            kernel.sleep = None
        status = kernel.process.poll()
        if status is None:
            if self.images is not None and wish_path(kernel.board.path).exists():
                kernel.sleep = threading.Thread(target=self.hibernate, args=(kernel,), daemon=True)
                kernel.sleep.start()
            return
        print(f"{kernel.id}.{kernel.generation} ended with {status}", flush=True)
        if kernel.board.seen.phase is Phase.ENDED:
            self.kernels.remove(kernel)
            return self.ask("DELETE", f"/kernels/{kernel.id}")
        kernel.generation += 1
        self.start(kernel)

    def hibernate(self, kernel: Kernel) -> None:
        """Put it into an image for a while, and wake it."""
        assert self.images is not None
        wish = wish_path(kernel.board.path)
        asleep_s = float(wish.read_text())
        wish.unlink()
        try:
            asyncio.run(self.have_sleep(kernel, image_of(self.images, kernel.id), asleep_s))
        except CannotHibernate as refused:
            print(f"{kernel.id}.{kernel.generation} is not hibernated: {refused}", flush=True)
        say_incarnation(kernel, HERE_AGAIN)

    async def have_sleep(self, kernel: Kernel, image: Image, asleep_s: float) -> None:
        """Do so. A wake that is refused is tried again: its image stays."""

        async def leave_gpu(folder: Path) -> bool:
            end = time.monotonic() + PATIENCE_S
            while True:
                try:
                    if (count := await asyncio.to_thread(KernelMessages(kernel.id).hibernate, folder)) > 0:
                        return bool(count)
                    error: Exception = CannotHibernate("the controller does not know its process yet")
                except (ControllerRefused, ControllerUnavailable) as refused:
                    error = refused
                if time.monotonic() > end:
                    raise CannotHibernate(str(error)) from None
                await asyncio.sleep(START_AGAIN_S)

        manifest = await images.hibernate(
            image,
            kernel.process.pid,
            leave_gpu,
            lambda: say_incarnation(kernel, AWAY),
            record={"kernel_id": kernel.id},
            undelivered={},
        )
        print(f"{kernel.id}.{kernel.generation} is hibernated", flush=True)
        await asyncio.sleep(asleep_s)
        while True:
            try:
                kernel.process = Adopted(await images.wake(image))
                break
            except CannotWake as refused:
                print(f"{kernel.id}.{kernel.generation} is not woken: {refused}", flush=True)
                await asyncio.sleep(START_AGAIN_S)
            except ProcessLookupError:
                image.not_woken()  # it was killed at once
        image.let_back()
        assert manifest.has_cuda
        kernel.sleeps += 1
        print(f"{kernel.id}.{kernel.generation} is awake", flush=True)

    def tell(self) -> None:
        """Tell the controller what changed, or everything if it is another one."""
        if self.known is None or self.known != self.identity() or not self.is_answered():
            self.find_controller()
        for kernel in self.kernels:
            cell = kernel.cell
            if cell != kernel.told and self.known is not None:
                kernel.told = cell
                self.ask(
                    "POST", f"/kernels/{kernel.id}/cell", {"open": cell[1], "cell_id": f"cell {cell[0]}"}
                )

    def find_controller(self) -> None:
        self.known = None
        try:
            ensure_controller(self.socket, extra_args=self.controller)
        except ControllerUnavailable as error:
            print(error, flush=True)
            self.ask_again_at = time.monotonic() + START_AGAIN_S
            return
        self.known = self.identity()
        for kernel in self.kernels:
            kernel.told = None
            if self.known is not None:
                self.ask(
                    "PUT", f"/kernels/{kernel.id}", {"name": "light", "path": kernel.id, "server": self.name}
                )

    def identity(self) -> tuple[int, int] | None:
        try:
            status = self.socket.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def is_answered(self) -> bool:
        """Whether a controller listens; looked at now and then, also while there is nothing to tell."""
        if time.monotonic() < self.look_at:
            return True
        self.look_at = time.monotonic() + LOOK_EVERY_S
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ASK_TIMEOUT_S)
            probe.connect(str(self.socket))
            return True
        return False

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """One request; a controller that does not answer is looked for again."""
        connection = UnixConnection(self.socket, timeout=ASK_TIMEOUT_S)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, f"/api/v1{path}", payload, {"Content-Type": "application/json"})
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            print(f"{method} {path}: {error}", flush=True)
            self.known = None
            self.ask_again_at = time.monotonic() + START_AGAIN_S
        finally:
            connection.close()


def say_incarnation(kernel: Kernel, where: bytes) -> None:
    """Say whether it is in an image: before its process ends, and after it was woken."""
    path = incarnation_path(kernel.board.path)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(b"%s %d" % (where, kernel.sleeps))
    fresh.rename(path)


if __name__ == "__main__":
    LightServer(sys.argv[1:]).serve()

"""A kernel with the shim of an earlier version: it knows single moves; no preparing, budgets, lots or trims.

`old_shim.py BOARD SEED MEBIBYTES THINK_MS KERNEL_ID MIN_VERSION MAX_VERSION`

It moves one real block of the simulated GPU between there and its own memory by itself, keeps a board as a light
kernel does, and looks at every byte in every cell.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import random
import select
import socket
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "node" / "support"))

import fake_shim as wire
from light_kernels import Board, Phase

from jupyter_affinode.settings.policy import MIB

BEAT_S = 0.5
CONNECT_AGAIN_S = 0.2
ALONE_AFTER_S = 2.0
OUT_OF_MEMORY = 2


class Gpu:
    """One block on the simulated GPU, through the driver API; every call by the same thread."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._block = ctypes.c_uint64()
        self._context = ctypes.c_void_p()
        self._ok("cuInit", 0)
        uuid = ctypes.create_string_buffer(16)
        self._ok("cuDeviceGetUuid", uuid, 0)
        self.uuid = uuid.raw
        while self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0) == OUT_OF_MEMORY:
            time.sleep(CONNECT_AGAIN_S)
        self._ok("cuCtxSetCurrent", self._context)

    def put(self, content: bytes) -> bool:
        """Allocate and fill; False if the GPU is full."""
        status = self._driver.cuMemAlloc_v2(ctypes.byref(self._block), ctypes.c_size_t(len(content)))
        if status == OUT_OF_MEMORY:
            return False
        assert status == 0, status
        self._ok("cuMemcpyHtoD_v2", self._block, content, ctypes.c_size_t(len(content)))
        return True

    def look(self, size: int) -> bytes:
        content = ctypes.create_string_buffer(size)
        self._ok("cuMemcpyDtoH_v2", content, self._block, ctypes.c_size_t(size))
        return content.raw

    def take(self, size: int) -> bytes:
        """The content, and free."""
        content = self.look(size)
        self._ok("cuMemFree_v2", self._block)
        return content

    def _ok(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        assert status == 0, f"{name}: {status}"


class OldShim:
    """The process, on one thread: the link, the moves and the cells in turn."""

    def __init__(self, board: str, seed: str, mebibytes: str, think_ms: str, kernel_id: str, *versions: str):
        self.board = Board(Path(board))
        self.random = random.Random(int(seed))
        self.size = int(mebibytes) * MIB
        self.think_s = float(think_ms) / 1000
        self.kernel_id, self.versions = kernel_id, (int(versions[0]), int(versions[1]))
        self.folder = Path(os.environ["AFFINODE_SOCKET"]).parent
        self.page = wire.FakePage()
        self.gpu = Gpu()
        self.page.memory = {self.gpu.uuid: [0, 0, 0]}
        self.content = self.random.randbytes(self.size)  # while it is not on the GPU
        self.digest = hashlib.sha256(self.content).digest()
        self.link: socket.socket | None = None
        self.connect_at = self.beat_at = 0.0
        self.alone_at: float | None = None
        self.asked: int | None = None  # the number of our request for room
        self.requests = self.cells = 0
        self.cell_at = time.monotonic()
        self.page.state = wire.NONE
        self.page.write()
        self.tell(Phase.THINKING)

    def run(self) -> None:
        """Until it is told to end and its memory has been looked at."""
        while True:
            self.keep_link()
            now = time.monotonic()
            if now >= self.cell_at or self.board.told_end:
                self.cell()
                if self.board.told_end and self.page.state == wire.RESIDENT:
                    return self.tell(Phase.ENDED)
            self.come_back_alone(now)

    def cell(self) -> None:
        """Use the GPU, or wait for it."""
        if self.page.state in (wire.NONE, wire.PARKED):
            self.tell(Phase.IN_CELL)
        if self.page.state == wire.NONE:
            return self.begin()
        if self.page.state == wire.PARKED:
            self.become(wire.QUEUED)
            return self.say(wire.notify(wire.WANT))
        if self.page.state != wire.RESIDENT:
            return
        self.tell(Phase.IN_CELL)
        self.page.last_activity = time.monotonic_ns()
        self.page.write()
        assert hashlib.sha256(self.gpu.look(self.size)).digest() == self.digest, "wrong content"
        self.cells += 1
        self.cell_at = time.monotonic() + self.think_s * self.random.uniform(0, 2)
        self.tell(Phase.THINKING)

    def begin(self) -> None:
        """The first allocation; a full GPU is asked about as long as it takes."""
        if self.asked is None and self.gpu.put(self.content):
            self.move_done(wire.RESIDENT)
        elif self.asked is None and self.link is not None:
            self.requests += 1
            self.asked = self.requests
            self.say(wire.notify(wire.ROOM, self.size, number=self.asked, gpu=self.gpu.uuid))

    def move_done(self, state: int) -> None:
        there = state == wire.RESIDENT
        self.page.memory[self.gpu.uuid][:2] = [self.size, 0] if there else [0, self.size]
        self.page.last_activity = time.monotonic_ns()
        self.become(state)

    def come_back_alone(self, now: float) -> None:
        """Without a controller, a call that waits is served by ourselves."""
        if self.link is not None or self.page.state != wire.QUEUED:
            self.alone_at = None
        elif self.alone_at is None:
            self.alone_at = now + ALONE_AFTER_S
        elif now >= self.alone_at:
            self.resume()

    def resume(self) -> bool:
        if not self.gpu.put(self.content):
            return False
        self.page.resumes += 1
        self.move_done(wire.RESIDENT)
        return True

    def obey(self, kind: int, epoch: int) -> None:
        status = wire.NOTHING
        if kind == wire.PARK and self.page.state == wire.RESIDENT:
            self.content = self.gpu.take(self.size)
            self.page.parks += 1
            self.move_done(wire.PARKED)
            status = wire.OK
        elif kind == wire.RESUME and self.page.state in (wire.PARKED, wire.QUEUED):
            status = wire.OK if self.resume() else wire.NO_GPU_ROOM
        self.say(wire.reply(kind, epoch, status, self.size))

    def keep_link(self) -> None:
        """Connect if there is no link; beat; take what comes."""
        now = time.monotonic()
        if self.link is None and now >= self.connect_at:
            self.connect_at = now + CONNECT_AGAIN_S
            self.asked = None
            with contextlib.suppress(OSError):
                self.link = wire.connect(self.folder / "link.sock")
                wire.send(self.link, wire.hello(self.kernel_id, versions=self.versions), self.page.descriptor)
        if self.link is None:
            return time.sleep(0.02)
        if now >= self.beat_at:
            self.beat_at = now + BEAT_S
            self.say(wire.message(wire.HEARTBEAT, b""))
        if self.link is not None and select.select([self.link], [], [], 0.02)[0]:
            self.take()

    def take(self) -> None:
        assert self.link is not None
        try:
            data = self.link.recv(4096)
        except OSError:
            data = b""
        if not data:
            return self.lose_link()
        _, _, kind, _, epoch = wire.HEADER.unpack_from(data)
        if kind != 0x82:  # COMMAND
            return
        number, request, deadline, argument, _ = wire.COMMAND.unpack(data[wire.HEADER.size :])
        if number == wire.ROOM_ANSWER and request == self.asked:
            self.asked = None
            self.say(wire.notify(wire.ROOM_END, self.size, number=request, gpu=self.gpu.uuid))
        elif number in (wire.PARK, wire.RESUME):
            self.page.epoch = epoch
            if deadline and time.monotonic_ns() > deadline:
                return self.say(wire.reply(number, epoch, wire.STALE))
            assert argument & 0xFF == 0, "a flag that an old shim does not know"
            self.obey(number, epoch)

    def say(self, data: bytes) -> None:
        try:
            if self.link is not None:
                self.link.send(data)
        except OSError:
            self.lose_link()

    def lose_link(self) -> None:
        if self.link is not None:
            self.link.close()
        self.link, self.asked = None, None

    def become(self, state: int) -> None:
        self.page.state, self.page.state_since = state, time.monotonic_ns()
        self.page.write()
        self.say(wire.notify(wire.STATE))

    def tell(self, phase: Phase) -> None:
        self.board.write(os.getpid(), phase, self.cells + (phase is Phase.IN_CELL), self.size)


if __name__ == "__main__":
    OldShim(*sys.argv[1:]).run()

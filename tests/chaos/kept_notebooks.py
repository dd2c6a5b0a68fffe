"""Real servers and kernels for keeping.py, and the tabs that run cells in them and know each cell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.extend(str(Path(__file__).resolve().parents[1] / each) for each in ("", "chaos", "server/keeping"))

from gpu_cells import SETUP
from live_server import JupyterServer, exists
from tab import Tab
from waiting import NotInTime, until

if TYPE_CHECKING:
    from live_machine import Machine

BLOCK_MIB = 4
PARTS = 3  # lines of each cell
PAUSE_S = 1.5  # between two cells of a tab, at most
AHEAD = 3  # cells that a tab sends before it waits for answers
# Much, for a machine that has other work.
END_S, START_S, ANSWERS_S = 180.0, 240.0, 120.0
ON_ITS_WAY = "on its way"
KEEP = "--AffinodeExtension.keep_kernels=all"
OPTIONS = (KEEP, "--AffinodeExtension.images_spare=0")

BEGIN = """
import json, os, time
done, ends, block, wanted = [], {}, None, None
def cell(number, seconds):
    global wanted
    done.append(number)
    for part in range(PARTS):
        print(number, part, flush=True)
        time.sleep(seconds / PARTS)
    if block is not None:
        assert block.checksum() == wanted, "other contents on the GPU"
        block.fill(number)
        wanted = block.checksum()
    ends[number] = time.time()
    return number
def look():
    same = block is None or block.checksum() == wanted
    print("LOOK", json.dumps({"done": done, "ends": ends, "pid": os.getpid(), "same": same}))
""".replace("PARTS", str(PARTS))
ON_GPU = f"{SETUP}\n{BEGIN}\nblock = Block({BLOCK_MIB}, seed=1)\nwanted = block.checksum()"
LINE = re.compile(r"^(\d+) (\d)$", re.M)


class Loss(AssertionError):
    """Something was lost, is stuck, or was done twice."""


@dataclass
class Cell:
    """A cell that a tab sent. `connection`: over which of its connections."""

    number: int
    message_id: str
    connection: int
    sent_at: float = field(default_factory=time.time)
    is_settled: bool = False
    never_came: bool = False  # its connection broke on the way


class CountingTab(Tab):
    """A tab that knows how often it was answered."""

    def __init__(self, kernel_id: str):
        super().__init__(kernel_id)
        self.answered: Counter[str] = Counter()
        self.connections = 0

    @property
    def is_attached(self) -> bool:
        """Whether its connection is open."""
        return self._reading is not None and not self._reading.done()

    async def attach(self, server: JupyterServer) -> CountingTab:
        """Connect, again after the server's end."""
        self.connections += 1
        await super().attach(server)
        return self

    async def _read(self, socket: Any) -> None:
        while (text := await socket.read_message()) is not None:
            message = json.loads(text)
            parent = message["parent_header"].get("msg_id", "")
            if message["channel"] == "iopub":
                self.outputs.setdefault(parent, []).append(message)
            elif message["channel"] == "shell":
                self.replies[parent] = message["content"]
                self.answered[parent] += 1

    def lines(self, message_id: str) -> list[tuple[int, int]]:
        """The lines that a cell has printed, by number and part; what else comes is no cell's own."""
        text = "".join(
            message["content"]["text"]
            for message in self.outputs.get(message_id, [])
            if message["content"].get("name") == "stdout"
        )
        return [(int(number), int(part)) for number, part in LINE.findall(text)]


class Site:
    """A server in a folder of its own, and the one that takes its place when it ends."""

    def __init__(self, machine: Machine, name: str):
        self.name = name
        self.server = JupyterServer(machine)
        self.server.transport = "tcp"
        self.server.root = machine.folder / name
        self.server.root.mkdir(exist_ok=True)
        self.change: asyncio.Task[None] | None = None

    @property
    def is_changing(self) -> bool:
        """Whether its server is ending, or is not there yet."""
        return self.change is not None and not self.change.done()

    async def start(self) -> None:
        """Start the server; again where it is killed meanwhile."""
        while True:
            try:
                await asyncio.to_thread(self.server.start, *OPTIONS, port=self.server.port, timeout=START_S)
                return
            except NotInTime as late:
                raise Loss(f"server {self.name} does not start: {late}") from None
            except AssertionError:
                process = self.server.process
                if process is None or process.poll() != -signal.SIGKILL:
                    raise Loss(f"server {self.name} does not start: {self.server.log()[-3000:]}") from None

    async def replace(self, how: signal.Signals, pause_s: float) -> None:
        """End the server, and start the next one."""
        process = self.server.process
        assert process is not None
        process.send_signal(how)
        try:
            await asyncio.to_thread(process.wait, END_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR2)  # it says where it is
            await asyncio.sleep(2)
            raise Loss(f"server {self.name} does not end after {how.name}") from None
        await asyncio.sleep(pause_s)
        await self.start()


class Notebook:
    """A kernel, and the tab that runs cells in it."""

    def __init__(self, site: Site, path: str, has_gpu: bool, source: random.Random):
        self.site, self.path, self.has_gpu = site, path, has_gpu
        self._source = source
        self.kernel_id = self.session_id = ""
        self.pid = 0
        self.tab: CountingTab
        self.cells: list[Cell] = []
        self.rests_until = 0.0
        self.is_paused = False
        self.reloads = False  # whether a deaf tab is attached anew
        self.times_deaf = 0
        self.earlier_paths: dict[str, float] = {}  # and until when it had each

    def __str__(self) -> str:
        return f"{self.path} ({self.kernel_id[:8]}, process {self.pid})"

    async def begin(self) -> None:
        """Start the kernel."""
        body = {"name": self.path, "path": self.path, "type": "notebook", "kernel": {"name": "python3"}}
        status, model = await asyncio.to_thread(self.site.server.request, "POST", "/api/sessions", body)
        if status != 201:
            raise Loss(f"no kernel for {self.path}: {model}")
        self.kernel_id, self.session_id = model["kernel"]["id"], model["id"]
        self.tab = await CountingTab(self.kernel_id).attach(self.site.server)
        begun = self.tab.run(ON_GPU if self.has_gpu else BEGIN)
        await until(lambda: self.tab.is_done(begun), START_S, f"the start of {self.path}")
        if self.tab.replies[begun]["status"] != "ok":
            raise Loss(f"{self.path} does not begin: {self.tab.replies[begun]}")
        self.pid = (await self.look())["pid"]

    async def work(self) -> None:
        """Run cells, for ever."""
        while True:
            await asyncio.sleep(self._source.uniform(0.1, PAUSE_S))
            if self.is_paused or time.monotonic() < self.rests_until:
                continue
            if not self.tab.is_attached:
                await self.attach_if_it_can_be()
            elif len([cell for cell in self.cells if not self.is_answered(cell)]) < AHEAD:
                self.send()

    async def attach_if_it_can_be(self) -> None:
        """Attach the tab, as a page does again and again."""
        with contextlib.suppress(
            Exception
        ):  # of tornado's and Linux's: the server is not there, or is stopped
            await asyncio.wait_for(self.tab.attach(self.site.server), 20)

    def send(self) -> None:
        """Send one more cell."""
        number = len(self.cells) + 1
        seconds = 0.05 if self._source.random() < 0.8 else self._source.uniform(0.5, 3)
        with contextlib.suppress(Exception):  # the connection has broken, and the cell was not sent
            message_id = self.tab.run(f"cell({number}, {seconds:.2f})")
            self.cells.append(Cell(number, message_id, self.tab.connections))

    def is_answered(self, cell: Cell) -> bool:
        """Whether there is nothing to wait for: its answer is here, or its connection broke."""
        is_broken = cell.connection != self.tab.connections
        return cell.is_settled or is_broken or self.tab.is_done(cell.message_id)

    async def look(self) -> dict[str, Any]:
        """Have the kernel say what it has. Raises Loss if it does not."""
        end, unanswered = time.monotonic() + ANSWERS_S, 0
        while time.monotonic() < end:
            if not self.tab.is_attached:
                await self.attach_if_it_can_be()
                await asyncio.sleep(0.2)
                continue
            asked = self.tab.run("look()")
            with contextlib.suppress(NotInTime):
                await until(
                    lambda asked=asked: self.tab.is_done(asked) or not self.tab.is_attached, ANSWERS_S / 4
                )
            if not self.tab.is_done(asked):
                if self.reloads and self.tab.is_attached:
                    await self.reload()
                else:
                    unanswered += self.tab.is_attached
                continue
            if unanswered:
                raise Loss(
                    f"{self} answered only the {unanswered + 1}. of the same requests on whole connections"
                )
            found = re.search(r"^LOOK (.*)$", self.tab.text(asked), re.M)
            if found is None:
                raise Loss(f"{self} has lost its variables: {self.tab.replies[asked]}")
            return dict(json.loads(found[1]))
        raise Loss(f"{self} is stuck: it does not answer within {ANSWERS_S:g} s ({unanswered} requests)")

    async def reload(self) -> None:
        """Attach a tab anew that is deaf, as another session: the same one would get the same sockets. What it was not
        told is counted as one loss.
        """
        self.times_deaf += 1
        self.tab.session = uuid.uuid4().hex
        for cell in self.cells:
            cell.is_settled = True
        await self.tab.close()
        await self.attach_if_it_can_be()

    def where(self) -> str:
        """Where the kernel is."""
        image = self.site.server.machine.folder / "disk" / "images" / self.kernel_id
        if (image / "woken.json").exists():
            return "woken"  # the image counts until its GPU memory is back
        if (image / "manifest.json").exists() and not exists(self.pid):
            return "image"
        is_moving = any((image / name).exists() for name in ("away", "manifest.json", "waking.json"))
        return ON_ITS_WAY if is_moving else "process"


def lines_of(cell: Cell) -> list[tuple[int, int]]:
    """What a cell prints."""
    return [(cell.number, part) for part in range(PARTS)]

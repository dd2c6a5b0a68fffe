"""Kernels of each kind: how one comes into its state, and how it is seen that nothing of it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import Any

from gpu_cells import SETUP
from hibernating import moved
from live_server import JupyterServer
from tab import Tab
from waiting import NotInTime, until

CHECK_S = 90.0
LATER_S = 5.0  # of two messages by different sockets, the second

COUNTING = """
import itertools, pathlib, time
for number in itertools.count():
    print(number, flush=True)
    time.sleep(0.05)
    if pathlib.Path({until!r}).exists():
        break
value = "counted"
"""


class Counted(dict[str, Any]):
    """Answers by the id of their request; `times`: how many came of each."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, int] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        self.times[key] = self.times.get(key, 0) + 1
        super().__setitem__(key, value)


class CountingTab(Tab):
    """A tab that counts answers."""

    def __init__(self, kernel_id: str):
        super().__init__(kernel_id)
        self.replies: Counted = Counted()

    async def result(self, code: str) -> str:
        """Return what a cell prints."""
        cell = self.run(code)
        await until(lambda: self.is_done(cell), CHECK_S, lambda: f"{code!r} {self.seen(cell)}")
        return self.text(cell).rpartition("It is tried again.\n")[-1]

    async def answered(self, cell: str) -> bool:
        """Whether a cell is answered, once one that was sent later is."""
        await self.result("pass")
        with contextlib.suppress(NotInTime):
            return await until(lambda: self.is_done(cell), LATER_S)
        return False

    def seen(self, cell: str) -> str:
        """Return what the tab has of a cell, for a message."""
        kinds = [message["header"]["msg_type"] for message in self.outputs.get(cell, [])]
        return (
            f"has the reply {self.replies.get(cell)} and the output {self.text(cell)[-300:]!r} ({kinds[-5:]})"
        )

    def errors(self, cell: str) -> list[str]:
        """Return the names of the errors that a cell told of."""
        return [
            message["content"]["ename"]
            for message in self.outputs.get(cell, [])
            if message["header"]["msg_type"] == "error"
        ]


class Kind:
    """A kernel that is idle, without a GPU."""

    spec = "python3"
    setup = "pass"
    look = "print(kept)"

    def __init__(self, name: str, server: JupyterServer, holds: Path):
        self.name, self.server, self.holds = name, server, holds
        self.kernel_id = ""
        self.cell = ""

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return await asyncio.to_thread(self.server.request, method, path, body)

    async def start(self) -> None:
        """Start a kernel, with a tab, and give it contents."""
        path = f"{self.name}.ipynb"
        kernel = {"name": path, "path": path, "type": "notebook", "kernel": {"name": self.spec}}
        status, model = await self.request("POST", "/api/sessions", kernel)
        assert status == 201, (self.name, model, self.server.log()[-2000:])
        self.kernel_id = model["kernel"]["id"]
        self.tab = await CountingTab(self.kernel_id).attach(self.server)
        await self.tab.result(self.setup)
        await self.tab.result(self.fill)
        self.before = await self.tab.result(self.look)
        assert self.before.strip(), self.name

    @property
    def fill(self) -> str:
        return f"kept, count = {{'name': {self.name!r}}}, 0"

    async def begin(self) -> None:
        """Come into the state."""

    async def attach(self) -> None:
        """Attach the tab to the next server."""
        status, _ = await self.request("GET", f"/api/kernels/{self.kernel_id}")
        assert status == 200, "the next server does not have it"
        await self.tab.attach(self.server)

    async def check(self, is_interrupted: bool) -> None:
        """Assert that all is there. A cell that ran says that it was interrupted, or has all of its output."""
        now = await self.tab.result(self.look)
        assert now == self.before, f"{now!r} instead of {self.before!r}"
        twice = [cell for cell, times in self.tab.replies.times.items() if times > 1]
        assert not twice, f"answered more than once: {[self.tab.seen(cell) for cell in twice]}"

    def processes(self) -> list[int]:
        """Return the processes of the kernel."""
        mark, found = f"AFFINODE_KERNEL_ID={self.kernel_id}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    async def is_gone(self) -> None:
        """Assert that nothing is left of it."""
        await until(lambda: not self.processes(), CHECK_S, "its process lives on")
        image = self.server.machine.folder / "images" / self.kernel_id
        await until(lambda: not image.exists(), CHECK_S, "its image is left")
        listed = (await self.request("GET", "/api/kernels"))[1]
        assert self.kernel_id not in [each["id"] for each in listed], "the next server lists it"


class OnGpu(Kind):
    """A kernel with GPU memory."""

    setup = SETUP
    look = "print(kept, block.checksum())"

    @property
    def fill(self) -> str:
        return f"{super().fill}\nblock = Block(8, seed=7)"


class Context(Kind):
    setup = SETUP


class Cell(Kind):
    """A kernel whose cell runs."""

    async def begin(self) -> None:
        self.enough = self.holds / f"enough-{self.name}"
        self.cell = self.tab.run(COUNTING.format(until=str(self.enough)))
        await until(lambda: "3\n" in self.tab.text(self.cell))

    async def check(self, is_interrupted: bool) -> None:
        tab, cell = self.tab, self.cell
        if not is_interrupted:
            self.enough.touch()
        assert await tab.answered(cell), f"its cell {tab.seen(cell)}"
        counted = [int(number) for number in re.findall(r"^\d+$", tab.text(cell), re.M)]
        once = list(dict.fromkeys(counted))
        assert once == list(range(len(once))), f"output is missing: {counted}"
        # What a server had written to the tab when it was killed, and not noted yet, comes again.
        assert len(counted) - len(once) <= 1, f"output comes twice: {counted}"
        if is_interrupted:
            assert tab.errors(cell) == ["KeyboardInterrupt"], tab.seen(cell)
            assert tab.replies[cell]["status"] == "error", tab.seen(cell)
        else:
            assert tab.replies[cell]["status"] == "ok", tab.seen(cell)
            assert await tab.result("print(value)") == "counted\n"
        await super().check(is_interrupted)


class CellOnGpu(Cell):
    setup, look = OnGpu.setup, OnGpu.look

    @property
    def fill(self) -> str:
        return f"{super().fill}\nblock = Block(8, seed=7)"


class Input(Kind):
    """A kernel that waits in input()."""

    async def begin(self) -> None:
        self.cell = self.tab.run("print('I am', input('who? '), flush=True)", allow_stdin=True)
        await until(lambda: self.tab.questions)

    async def check(self, is_interrupted: bool) -> None:
        tab, cell = self.tab, self.cell
        if not is_interrupted:
            tab.send("input_reply", {"value": "here"}, "stdin", tab.questions[0]["header"])
        assert await tab.answered(cell), f"its question {tab.seen(cell)}"
        if is_interrupted:
            assert tab.errors(cell) == ["KeyboardInterrupt"], tab.seen(cell)
        else:
            assert tab.text(cell) == "I am here\n", tab.seen(cell)
        assert len({question["header"]["msg_id"] for question in tab.questions}) == 1, "it asks again"
        await super().check(is_interrupted)


class Hibernated(OnGpu):
    async def begin(self) -> None:
        await moved(self.server, self.kernel_id, "hibernate")


class Hibernating(OnGpu):
    """CRIU is about to write it."""

    async def begin(self) -> None:
        (self.holds / f"dump-{self.kernel_id}").touch()
        path = f"/affinode/api/kernels/{self.kernel_id}/hibernate"
        self.going = asyncio.create_task(self.request("POST", path, {}))
        await until((self.holds / f"held-dump-{self.kernel_id}").exists, message=self.server.log)

    async def check(self, is_interrupted: bool) -> None:
        await asyncio.gather(self.going, return_exceptions=True)  # its answer may not come any more
        await super().check(is_interrupted)


class Waking(OnGpu):
    """CRIU is about to start it, for a tab's cell."""

    async def begin(self) -> None:
        await moved(self.server, self.kernel_id, "hibernate")
        (self.holds / f"restore-{self.kernel_id}").touch()
        self.cell = self.tab.run("count += 1; print('counted')")
        await until((self.holds / f"held-restore-{self.kernel_id}").exists, message=self.server.log)

    async def check(self, is_interrupted: bool) -> None:
        tab, cell = self.tab, self.cell
        is_answered = await tab.answered(cell)
        await super().check(is_interrupted)
        assert is_answered, f"all is there, but the cell that wakes it {tab.seen(cell)}"
        count = "1\n" if tab.replies[cell]["status"] == "ok" else "0\n"
        assert is_interrupted or count == "1\n", tab.seen(cell)
        assert await tab.result("print(count)") == count, "it was not executed once"


class Bash(Kind):
    spec, setup, look = "shell", "true", "echo $kept"
    fill = "kept=there"


class Warm(Kind):
    """A kernel that no server has had yet. The next notebook has one that is ready."""

    spec = "warm"

    async def start(self) -> None:
        """Wait until one is ready."""
        from warm_stage import WarmStage

        self.warm = WarmStage(self.server.machine)
        await asyncio.to_thread(self.warm.until, "warm", "ready")

    async def attach(self) -> None:
        """Nothing is attached yet."""

    async def check(self, is_interrupted: bool) -> None:
        await asyncio.to_thread(self.warm.until, "warm", "ready")
        status, model = await self.request("POST", "/api/kernels", {"name": "warm"})
        assert status == 201, model
        self.kernel_id = model["id"]
        tab = await CountingTab(self.kernel_id).attach(self.server)
        assert await tab.result("print(prepared)") == "42\n"
        await tab.close()
        await self.request("DELETE", f"/api/kernels/{self.kernel_id}")


MADE: dict[str, type[Kind]] = {
    "gpu": OnGpu,
    "plain": Kind,
    "context": Context,
    "cell": Cell,
    "gpu_cell": CellOnGpu,
    "input": Input,
    "hibernated": Hibernated,
    "hibernating": Hibernating,
    "waking": Waking,
    "warm": Warm,
    "bash": Bash,
}


def all_of(mark: str) -> list[int]:
    """Return all processes that live with this in their environment, but for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if int(path.parent.name) != os.getpid() and mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found

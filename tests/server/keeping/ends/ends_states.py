"""One kernel of a server, with GPU memory and a tab: into each state of its life, and a kill there."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

from ends_kinds import CHECK_S, COUNTING, CountingTab
from ends_scene import odd_in
from gpu_cells import SETUP
from hibernating import images, moved, prepare
from keepers import keepers
from live_machine import Machine
from live_server import JupyterServer, exists
from stopping_criu import CRIU_THAT_STOPS
from waiting import until, wait_until

HOOKS = Path(__file__).parent / "hooks"
LOOK = "print(os.getpid(), kept, block.checksum())"
COUNT = "count += 1; print('counted')"
AT_EXIT = """
import atexit, pathlib, time
def wait():
    pathlib.Path({begun!r}).touch()
    while not pathlib.Path({go!r}).exists():
        time.sleep(0.01)
_ = atexit.register(wait)
"""
TOLD_OF_DEATH = r"restarting kernel|its process (?:has |was )?ended"


class Life:
    """A server with one kernel."""

    def __init__(self, machine: Machine, criu: str):
        self.machine = machine
        self.folder = machine.folder
        wrapper = self.folder / "criu.py"
        wrapper.write_text(f"CRIU = {criu.split()!r}\n{CRIU_THAT_STOPS}")
        machine.simulate(memory="4GiB")
        machine.environment.update(STOPPING=str(self.folder), PYTHONPATH=str(HOOKS))
        self.server = prepare(JupyterServer(machine), f"{sys.executable} {wrapper}")
        self.cell = ""
        self.going: asyncio.Task[tuple[int, object]] | None = None

    def start_server(self) -> None:
        """Start a server, the first or the next one."""
        settings = ("settle_s=0", "keep_kernels=all")
        self.server.start(*(f"--AffinodeExtension.{setting}" for setting in settings), port=self.server.port)
        wait_until(lambda: self.server.affinode()[1]["available"], message=self.server.log)

    async def begin(self) -> None:
        """Start the kernel, and give it contents."""
        await asyncio.to_thread(self.start_server)
        kernel = {"name": "work", "path": "work.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
        status, model = await asyncio.to_thread(self.server.request, "POST", "/api/sessions", kernel)
        assert status == 201, (model, self.server.log())
        self.id = model["kernel"]["id"]
        self.tab = await CountingTab(self.id).attach(self.server)
        await self.tab.result(
            f"{SETUP}\nimport os\nkept, count, block = {{'a': [1, 2]}}, 0, Block(8, seed=7)"
        )
        self.before = await self.tab.result(LOOK)
        self.pid = int(self.before.split()[0])

    @property
    def image(self) -> Path:
        """The folder of its image."""
        return self.folder / "images" / self.id

    # ---- its states

    async def come_into(self, state: str) -> None:
        """Come into a state. Where a kernel wakes, it does for a tab's cell."""
        what = state.partition(": ")[0]
        if what == "running":
            self.cell = self.tab.run(COUNTING.format(until=str(self.folder / "enough")) + COUNT)
            await until(lambda: "3\n" in self.tab.text(self.cell))
        elif what == "hibernate":
            self._stop_at(state)
            self.going = self._ask("POST", f"/affinode/api/kernels/{self.id}/hibernate")
            await self._stopped()
        elif what == "in its image":
            await moved(self.server, self.id, "hibernate")
        elif what == "wake":
            await moved(self.server, self.id, "hibernate")
            self._stop_at(state)
            self.cell = self.tab.run(COUNT)
            await self._stopped()
        elif what == "mute":
            await moved(self.server, self.id, "hibernate")
            self._stop_at("wake: go_on")
            self.cell = self.tab.run(COUNT)
            await self._stopped()
            assert self.server.process is not None
            self.server.process.send_signal(signal.SIGSTOP)  # it hears nothing
            self._let_go()
            await until(self._is_mute, CHECK_S, self.logs)
        elif what == "provisional":
            await moved(self.server, self.id, "hibernate")
            self.cell = self.tab.run(COUNT)
            await until(lambda: self.tab.is_done(self.cell), CHECK_S, self.server.log)
            assert (self.image / "woken.json").exists(), "its GPU memory is not to be back yet"
        elif what == "ending":
            begun = self.folder / "begun"
            await self.tab.result(AT_EXIT.format(begun=str(begun), go=str(self.folder / "go")))
            self.going = self._ask("DELETE", f"/api/kernels/{self.id}")
            await until(begun.exists, CHECK_S, self.server.log)

    def _is_mute(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat")
        runs = state.exists() and state.read_text().rpartition(")")[2].split()[0] in "RS"
        return runs and (self.image / "woken.json").exists() and (self.image / "unheard").exists()

    def _ask(self, method: str, path: str) -> asyncio.Task[tuple[int, object]]:
        return asyncio.create_task(asyncio.to_thread(self.server.request, method, path, {}, timeout=120))

    def _stop_at(self, state: str) -> None:
        for name in ("stopped", "go"):
            (self.folder / name).unlink(missing_ok=True)
        what, _, step = state.partition(": ")
        if step == "midst of CRIU":
            action = "dump" if what == "hibernate" else "restore"
            (self.folder / "stop-criu").write_text(f"{action} {self.pid}")
        else:
            (self.folder / "stop").write_text(state)

    async def _stopped(self) -> None:
        await until((self.folder / "stopped").exists, CHECK_S, self.logs)

    def _let_go(self) -> None:
        (self.folder / "go").touch()

    # ---- the kill

    async def kill(self, victim: str) -> None:
        """Kill it at once, and have all else go on."""
        pids = {
            "keeper": lambda: keepers(self.machine),
            "server": lambda: [self.server.process.pid],  # type: ignore[union-attr]
            "controller": lambda: [self.machine.controller_pid()],
            "kernel": lambda: [self.pid],
            "criu": lambda: [int(pid) for pid in (self.folder / "criu-pids").read_text().split()],
        }[victim]()
        assert pids
        for pid in pids:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        assert self.server.process is not None
        if victim == "server":
            await asyncio.to_thread(self.server.process.wait, 60)
        else:
            self.server.process.send_signal(signal.SIGCONT)
        self._let_go()
        if victim == "server":
            await asyncio.to_thread(self.start_server)
        elif victim == "criu" and self.going is not None:
            await asyncio.wait([self.going])

    def has_died(self, victim: str) -> bool:
        """Whether the kernel's process was killed; where CRIU is killed in a process, that may die with it."""
        is_answered = self.going is not None and self.going.done() and self.going.exception() is None
        if victim == "criu" and is_answered and self.going is not None:
            return "its process ended meanwhile" in str(self.going.result())
        return victim == "kernel"

    # ---- what is seen

    async def see_that_it_has_ended(self) -> None:
        """Assert that nothing is left of a kernel that was shut down."""
        assert self.going is not None
        await asyncio.gather(self.going, return_exceptions=True)
        await until(lambda: not exists(self.pid), CHECK_S, "its process lives on")
        await until(lambda: not self.image.exists(), CHECK_S, "its image is left")

        def is_listed() -> bool:
            return self.id in [each["id"] for each in self.server.request("GET", "/api/kernels")[1]]

        await asyncio.to_thread(
            lambda: wait_until(lambda: not is_listed(), CHECK_S, "a kernel that was shut down is listed")
        )

    async def see_that_its_death_is_told(self) -> None:
        """Assert that a sentence tells that it ended, and that it starts anew."""
        if self.going is not None:
            status, answer = await self.going
            assert status == 409, (status, answer)
            assert "its process" in str(answer) or "ended" in str(answer), answer
            assert not re.search(r"Traceback|Error\b|Exception|\bErrno", str(answer)), answer
        await until(lambda: re.search(TOLD_OF_DEATH, self.server.log()), CHECK_S, self.server.log)
        await until(lambda: not self.image.exists(), CHECK_S, "an image that never was whole is left")
        await self.tab.attach(self.server)
        assert await self.tab.result("print('kept' in globals())") == "False\n"

    async def see_that_all_is_well(
        self, *, count: int, was_server_killed: bool = False, is_death_told: bool = False
    ) -> None:
        """Assert that contents are as they were, and that the tab's cell was executed once; it hibernates as ever."""
        if was_server_killed:
            await self.tab.attach(self.server)
        if is_death_told:  # what is sent to a kernel of which no part knows yet that it has ended is lost
            await until(lambda: re.search(TOLD_OF_DEATH, self.server.log()), CHECK_S, "its death is not told")
        (self.folder / "enough").touch()
        tab = self.tab
        cell = self.cell = self.cell or tab.run(COUNT)
        is_answered = await tab.answered(cell)
        assert await tab.result(LOOK) == self.before
        wrong = []
        if not is_answered:
            wrong.append(f"its cell {tab.seen(cell)}")
        elif tab.replies[cell]["status"] != "ok" or tab.text(cell).count("counted\n") != 1:
            wrong.append(f"its cell is not answered once: it {tab.seen(cell)}")
        if (now := await tab.result("print(count)")) != f"{count}\n":
            wrong.append(f"its cell was not executed once: {now!r} instead of {count}")
        if self.going is not None:
            await asyncio.gather(self.going, return_exceptions=True)
        await moved(self.server, self.id, "hibernate")
        assert images(self.server) == [self.id]
        assert await tab.result(LOOK) == self.before
        twice = [tab.seen(cell) for cell, times in tab.replies.times.items() if times > 1]
        if twice:
            wrong.append(f"answered more than once: {twice}")
        assert not wrong, "\n".join(["contents are as they were, but", *wrong])

    def see_that_logs_are_in_words(self) -> None:
        """Assert that no line of a log is for a person who reads Python."""
        odd = odd_in(self.logs())
        assert not odd, "\n".join(odd)

    def logs(self) -> str:
        """Return what server, keeper and controller said."""
        keeper = Path(self.machine.environment["AFFINODE_FOLDER"]) / "keeper.log"
        said = keeper.read_text(errors="replace") if keeper.exists() else ""
        parts = ("server", self.server.log(), "keeper", said, "controller", self.machine.controller_log())
        return "---- {}\n{}\n---- {}\n{}\n---- {}\n{}".format(*parts)

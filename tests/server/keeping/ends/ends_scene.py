"""One server with kernels of all kinds, a part that ends, and what is seen of each kernel afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ends_kinds import MADE, Kind, all_of
from ends_table import Outcome, outcome, outcome_of_idle
from hibernating import prepare
from keepers import keepers
from live_machine import Machine
from live_server import JupyterServer, exists
from waiting import until, wait_until
from warm_stage import WarmStage

SUPERVISOR = "jupyter_affinode.client.supervisor\0jupyter_affinode.keeping.keeper"
# What a log must not say: names of Python's own errors, and where they came from.
ODD_LINE = re.compile(r"^(?:\[[EWIDC] )?20\d\d-.*(?:\bKeyError\b|\b[A-Z]\w*(?:Error|Exception): ).*$", re.M)
TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+.*")
# Waits before it writes or starts a kernel of which a file here tells.
HOLDING_CRIU = """#!/bin/sh
case " $* " in *" dump "*) what=dump ;; *" restore "*) what=restore ;; *) exec {criu} "$@" ;; esac
for told in {holds}/$what-*; do
    id=${{told#{holds}/$what-}}
    case "$*" in *"$id"*)
        : >{holds}/held-$what-$id
        while [ -e "$told" ]; do sleep 0.02; done
    esac
done
exec {criu} "$@"
"""


class Scene:
    """A machine with a server, which has a kernel of each of these kinds."""

    def __init__(self, machine: Machine, criu: str, mode: str, kinds: Sequence[str]):
        self.machine, self.mode = machine, mode
        self.holds = machine.folder / "holds"
        self.holds.mkdir()
        holding = machine.folder / "criu.sh"
        holding.write_text(HOLDING_CRIU.format(criu=criu, holds=self.holds))
        holding.chmod(0o755)
        machine.simulate(memory="4GiB")
        self.server = prepare(JupyterServer(machine), str(holding))
        self.kinds = [MADE[name](name, self.server, self.holds) for name in kinds]
        if "bash" in kinds:
            write_bash(machine)
        if "warm" in kinds:
            WarmStage(machine).write("warm", "prepared = 42")
        self.failures: list[str] = []

    def start_server(self) -> None:
        """Start a server, the first or the next one."""
        settings = ("settle_s=0", f"keep_kernels={self.mode}")
        self.server.start(*(f"--AffinodeExtension.{setting}" for setting in settings), port=self.server.port)
        wait_until(lambda: self.server.affinode()[1]["available"], message=self.server.log)

    async def play(self, part: str, how: str) -> None:
        """Have a part end, and note what is wrong of each kernel then."""
        await asyncio.to_thread(self.start_server)
        try:
            await self._start_kernels()
            await asyncio.gather(*(kind.begin() for kind in self.kinds))
            await self._end(part, how)
            is_servers_end = part in ("server", "all at once")
            if is_servers_end:
                await self._next_server(lambda kind: outcome(part, how, self.mode, kind.name))
            else:
                await self._each(lambda kind: self._kept(kind, is_interrupted=False, is_next=False))
                self._end_warm_kernels()
                await self._end("server", "SIGTERM")
                await self._next_server(lambda kind: outcome_of_idle(self.mode, kind.name), is_idle=True)
            self._look_at_logs()
        finally:
            for kind in self.kinds:
                if hasattr(kind, "tab"):
                    await kind.tab.close()

    async def _start_kernels(self) -> None:
        """Start them, a few at a time: another program may get a port before the kernel that it is meant for."""
        few = asyncio.Semaphore(2)

        async def start(kind: Kind) -> None:
            async with few:
                await kind.start()

        await asyncio.gather(*map(start, self.kinds))

    def _end_warm_kernels(self) -> None:
        self.kinds = [kind for kind in self.kinds if kind.name != "warm"]

    # ---- the end

    async def _end(self, part: str, how: str) -> None:
        pids = self._processes_of(part)
        assert pids, f"no {part} runs"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, getattr(signal, how))
        ends_server = part in ("server", "all at once")
        process = self.server.process
        assert process is not None
        if ends_server:
            await until(
                lambda: (
                    process.poll() is not None
                    or "received signal" in self.server.log().rpartition("Jupyter Server")[2]
                )
            )
        else:
            await until(lambda: not any(map(exists, pids)), 60, f"the {part} does not end")
        for held in (*self.holds.glob("dump-*"), *self.holds.glob("restore-*")):
            held.unlink()
        if ends_server:
            await asyncio.to_thread(process.wait, 120)
        if part == "all at once" and self.mode == "hibernated":  # a job or a container: the rest is killed
            for pid in all_of(self._mark()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await until(lambda: not any(map(exists, all_of(self._mark()))))

    def _has_noted_signal(self) -> bool:
        return "received signal" in self.server.log().rpartition("Jupyter Server")[2]

    def _processes_of(self, part: str) -> list[int]:
        assert self.server.process is not None
        if part == "server":
            return [self.server.process.pid]
        if part == "keeper":
            return keepers(self.machine)
        if part == "supervisor":
            return self.machine.pids_with(SUPERVISOR)
        if part == "controller":
            pid = self.machine.controller_pid()
            return [pid] if pid is not None else []
        return all_of(self._mark())

    def _mark(self) -> str:
        return f"AFFINODE_SOCKET={self.machine.socket}"

    # ---- what is seen

    async def _next_server(self, wanted: Callable[[Kind], Outcome], is_idle: bool = False) -> None:
        said = self.server.log()
        await asyncio.to_thread(self.start_server)

        async def look(kind: Kind) -> None:
            expected = wanted(kind)
            if expected.lost is None and is_idle:
                await kind.attach()
                await Kind.check(kind, is_interrupted=False)
            elif expected.lost is None:
                await self._kept(kind, expected.is_interrupted, is_next=True)
            else:
                sentence = expected.lost.replace("{kernel}", f"(?:{kind.kernel_id}|{kind.name}.ipynb)")
                assert re.search(sentence, said), f"no sentence said before that it is lost: {sentence}"
                await kind.is_gone()

        await self._each(look)

    async def _kept(self, kind: Kind, is_interrupted: bool, is_next: bool) -> None:
        if is_next:
            await kind.attach()
        await kind.check(is_interrupted)

    async def _each(self, look: Callable[[Kind], object]) -> None:
        async def one(kind: Kind) -> None:
            try:
                await look(kind)  # type: ignore[misc]
            except Exception as error:
                self.failures.append(f"{kind.name}: {type(error).__name__}: {error}")

        await asyncio.gather(*map(one, self.kinds))

    def _look_at_logs(self) -> None:
        for name, text in self.logs().items():
            self.failures.extend(f"{name}'s log says {line}" for line in odd_in(text))

    def logs(self) -> dict[str, str]:
        """Return what server, keeper and controller said."""
        own = Path(self.machine.environment["AFFINODE_FOLDER"])
        keeper = own / "keeper.log"
        return {
            "server": self.server.log(),
            "keeper": keeper.read_text(errors="replace") if keeper.exists() else "",
            "controller": self.machine.controller_log(),
        }


def odd_in(log: str) -> list[str]:
    """Return what a log says that no person can read: of our code, not of a kernel whose port was taken."""
    traces = [trace for trace in TRACEBACK.findall(log) if "jupyter_affinode" in trace]
    return list(dict.fromkeys([*(line.strip() for line in ODD_LINE.findall(log)), *traces]))


def write_bash(machine: Machine) -> None:
    """Write a kernelspec of bash's."""
    folder = Path(machine.environment["JUPYTER_DATA_DIR"]) / "kernels" / "shell"
    folder.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "shell", "language": "bash"})
    )

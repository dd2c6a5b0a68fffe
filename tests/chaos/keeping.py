"""Random faults while real servers have kernels that outlive them and hibernate: nothing lost, stuck, or done twice.

`python tests/chaos/keeping.py --faults 200` has Jupyter servers with one keeper, a controller with a simulated GPU,
CRIU, and a tab for each kernel, which runs cells all the time. It prints what was injected, where the kernels were, and
how it ended; its status is 1 after a loss. With `--seed` the same faults are drawn in the same order, as far as
processes allow. The suite injects a few (test_keeping.py).

Each cell notes its number in its kernel, prints three lines and changes what is on the GPU. After some faults
everything is let run again, and each kernel is compared with its tab: every cell ran once and in order, and was
answered once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.extend(str(Path(__file__).resolve().parents[1] / each) for each in ("", "chaos", "server/keeping"))

import faults as f
from keepers import keepers
from keeping_faults import FULL_DISK, KINDS
from kept_notebooks import END_S, ON_ITS_WAY, START_S, Cell, Loss, Notebook, Site, lines_of
from live_server import exists
from waiting import NotInTime, until

if TYPE_CHECKING:
    from live_machine import Machine

DISK_MIB = 512
LATE_S = 15.0  # until what a kernel has said is with its tab
NEAR_S = 10.0  # a server that is killed may have been stopped before, and had read nothing since
CHECK_EVERY = 6
AIM_S = (
    2.0  # half of the faults that hit programs wait that long for a kernel on its way into its image or back
)
LOGS = ("own/*.log", "server-*.log", "run/node.log", "controller.log")


class Keeping:
    """The machine, its servers, and what is injected."""

    def __init__(
        self,
        machine: Machine,
        seed: int,
        criu: str,
        servers: int,
        kernels: int,
        without: tuple[str, ...] = (),
    ):
        """`kernels`: of each server with memory on the GPU; the first has one more without. `without`: kinds of faults
        that are left out.
        """
        self.machine, self.seed = machine, seed
        self.without = without if os.path.ismount(machine.folder / "disk") else (*without, FULL_DISK)
        self.hits: dict[str, Counter[str]] = {}
        self.outcomes: Counter[str] = Counter()
        self.events: list[tuple[float, str, str]] = []  # when, what, to which server
        self.began = time.time()
        self.disk = machine.folder / "disk"
        machine.simulate("4GiB")
        machine.environment |= {
            "AFFINODE_FOLDER": str(machine.folder / "own"),
            "AFFINODE_SIM_CONTEXT": "1MiB",
            "AFFINODE_CRIU": criu,
            "AFFINODE_HIBERNATE_DIR": str(self.disk / "images"),
            "XDG_STATE_HOME": str(machine.folder / "state"),
        }
        self.sites = [Site(machine, f"s{number}") for number in range(servers)]
        self.notebooks = [
            Notebook(site, f"{site.name}-{number}.ipynb", number < kernels, self._source_of(site, number))
            for site in self.sites
            for number in range(kernels + (site is self.sites[0]))
        ]
        self._background: set[asyncio.Task[None]] = set()
        self._failures: list[asyncio.Task[None]] = []  # of what was done beside
        self._stopped: set[int] = set()
        self._filled: Path = self.disk / "filler"

    def _source_of(self, site: Site, number: int) -> random.Random:
        return random.Random(f"{self.seed} {site.name} {number}")

    # ---- what faults use

    def notebook(self, fault: f.Fault) -> Notebook:
        """The kernel that a fault is for."""
        return self.notebooks[fault.choice % len(self.notebooks)]

    async def aim(self, fault: f.Fault) -> str:
        """Wait for a kernel on its way, for half of the faults; return where kernels are."""
        if fault.choice % 2:
            with contextlib.suppress(NotInTime):
                await until(lambda: any(each.where() == ON_ITS_WAY for each in self.notebooks), AIM_S)
        found = Counter(each.where() for each in self.notebooks)
        return next((where for where in (ON_ITS_WAY, "woken", "image") if found[where]), "process")

    def site(self, fault: f.Fault) -> Site:
        """The server that a fault is for."""
        return self.sites[fault.choice % len(self.sites)]

    def note(self, what: str, site: Site | None = None) -> None:
        """Remember what was done, and to which server; to none in particular: to all."""
        self.events.append((time.time(), what, site.name if site else ""))

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something while faults go on."""

        def ended(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self._failures.append(task)

        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(ended)

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        """Undo something then."""

        async def undo() -> None:
            await asyncio.sleep(seconds)
            what()

        self.beside(undo())

    def send(self, pids: list[int], number: signal.Signals) -> bool:
        """Send a signal to processes; return whether there was one."""
        return bool([pid for pid in pids if f.send(pid, number)])

    def stop(self, pids: list[int], seconds: float) -> bool:
        """Stop processes for a while; return whether there was one."""
        self._stopped.update(pids)

        def go_on() -> None:
            self.send(pids, signal.SIGCONT)
            self._stopped.difference_update(pids)

        self.later(seconds, go_on)
        return self.send(pids, signal.SIGSTOP)

    def controllers(self) -> list[int]:
        """The controller that has the lock, also while it does not answer."""
        with contextlib.suppress(OSError):
            said = re.search(r"process (\d+)", self.machine.socket.with_name("node.lock").read_text())
            pid = int(said[1]) if said else 0
            if b"jupyter_affinode.node" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return [pid]
        return []

    def ask(self, notebook: Notebook, action: str) -> None:
        """Have a kernel do something by its server's REST API, beside other work; count what comes of it."""

        async def asked() -> None:
            path = f"kernels/{notebook.kernel_id}/{action}"
            try:
                status, answer = await asyncio.to_thread(notebook.site.server.affinode, path, "POST", {})
            except OSError:
                self.outcomes[f"{action}: no server"] += 1
                return
            why = "" if status == 200 else f" {said_shortly(answer)}"
            self.outcomes[f"{action}: {status}{why}"] += 1

        self.beside(asked())

    def command(self, *arguments: str) -> None:
        """Run a command line beside other work; count what comes of it."""

        async def run() -> None:
            try:
                done = await asyncio.to_thread(self.machine.affinode, *arguments, timeout=END_S)
            except subprocess.TimeoutExpired:
                raise Loss(f"`{' '.join(arguments)}` does not end within {END_S:g} s") from None
            why = f" {done.stderr.strip()[-120:]}" if done.returncode else ""
            why = re.sub(r"[0-9a-f]{8}[-0-9a-f]*|\S+\.ipynb|\d+(\.\d+)?", "…", why)
            self.outcomes[f"command {arguments[0]}: {done.returncode}{why}"] += 1

        self.beside(run())

    def fill_disk(self, left_mib: int) -> None:
        """Leave so much free."""
        free = shutil.disk_usage(self.disk).free
        with contextlib.suppress(OSError), self._filled.open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(free - (left_mib << 20), 1))

    def empty_disk(self) -> None:
        """Have room again."""
        self._filled.unlink(missing_ok=True)

    # ---- the run

    async def run(self, count: int, gap_s: float, tell: Callable[[str], object] = lambda line: None) -> None:
        """Inject so many faults, about `gap_s` apart. Raises Loss at the first thing that must not be."""
        source = random.Random(self.seed)
        kinds = {name: kind for name, kind in KINDS.items() if name not in self.without}
        await asyncio.gather(*(site.start() for site in self.sites))
        await asyncio.gather(*(notebook.begin() for notebook in self.notebooks))
        work = [asyncio.create_task(notebook.work()) for notebook in self.notebooks]
        try:
            for number, fault in enumerate(f.draw(source, count, kinds), 1):
                where = Counter(notebook.where() for notebook in self.notebooks)
                state = await kinds[fault.kind][1](self, fault)
                self.hits.setdefault(fault.kind, Counter())[state] += 1
                tell(
                    f"{time.time() - self.began:6.1f} s, fault {number}: {fault.kind}, {state}; {dict(where)}"
                )
                await asyncio.sleep(gap_s * source.uniform(0, 2))
                self._raise_failures(work)
                if number % CHECK_EVERY == 0 or number == count:
                    await self.check(work)
                    deaf = sum(notebook.times_deaf for notebook in self.notebooks)
                    tell(
                        f"{time.time() - self.began:6.1f} s: "
                        + (f"deaf tabs so far: {deaf}" if deaf else "all is well")
                    )
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await self.end()
            if deaf := sum(notebook.times_deaf for notebook in self.notebooks):
                raise Loss(f"{deaf} times a tab was deaf on a whole connection, and was reloaded")
        finally:
            for task in (*work, *self._background):
                task.cancel()

    def _raise_failures(self, work: list[asyncio.Task[None]]) -> None:
        """Raise what a task has raised."""
        changes = [site.change for site in self.sites if site.change is not None]
        for task in (*work, *changes, *self._failures):
            if task.done():
                task.result()

    async def check(self, work: list[asyncio.Task[None]]) -> None:
        """Let everything run again, and compare each kernel with its tab."""
        end = time.monotonic() + END_S + START_S
        for notebook in self.notebooks:
            notebook.is_paused = True
        for pid in list(self._stopped):
            f.send(pid, signal.SIGCONT)
        self.empty_disk()
        while waited := [*self._background, *(site.change for site in self.sites if site.is_changing)]:
            if time.monotonic() > end:
                raise Loss(f"these do not come to an end: {waited}")
            await asyncio.wait(waited, timeout=1)
        self._raise_failures(work)
        await asyncio.gather(*map(self._compare, self.notebooks))
        for site in self.sites:
            await asyncio.to_thread(self._compare_lists, site)
        for notebook in self.notebooks:
            notebook.is_paused, notebook.rests_until = False, 0.0

    def _compare_lists(self, site: Site) -> None:
        """What a server has is what it should have. Raises Loss."""
        ours = {notebook.kernel_id: notebook for notebook in self.notebooks if notebook.site is site}
        listed = [each["id"] for each in site.server.request("GET", "/api/kernels")[1]]
        if sorted(listed) != sorted(ours):
            raise Loss(f"server {site.name} has {sorted(listed)}, and should have {sorted(ours)}")
        sessions = {each["kernel"]["id"]: each for each in site.server.request("GET", "/api/sessions")[1]}
        for kernel_id, notebook in ours.items():
            session = sessions.get(kernel_id)
            if session is None:
                raise Loss(f"{notebook} has no session any more")
            path = session["path"]
            if path != notebook.path:
                # A server that is killed a moment after a rename may not have told of it yet.
                until_when = notebook.earlier_paths.get(path, 0.0)
                if not self.happened("server", site, until_when - 1, until_when + NEAR_S):
                    raise Loss(f"{notebook} was renamed, and is {path} again")
                self.outcomes["renames that a server told nobody of"] += 1
                notebook.path = path
            notebook.session_id = session["id"]

    async def _compare(self, notebook: Notebook) -> None:
        """Raises Loss."""
        seen = await notebook.look()
        done = seen["done"]
        if seen["pid"] != notebook.pid:
            raise Loss(f"{notebook} is another process: {seen['pid']}")
        if not seen["same"]:
            raise Loss(f"{notebook} has other contents on the GPU")
        if len(done) != len(set(done)):
            raise Loss(f"{notebook} ran cells twice: {done[-20:]}")
        if done != sorted(done):
            raise Loss(f"{notebook} ran cells out of order: {done[-20:]}")
        with contextlib.suppress(NotInTime):
            await until(lambda: all(self._is_whole(notebook, cell, done) for cell in notebook.cells), LATE_S)
        for cell in notebook.cells:
            self._settle(notebook, cell, cell.number in done, float(seen["ends"].get(str(cell.number), 0)))

    def _is_whole(self, notebook: Notebook, cell: Cell, done: list[int]) -> bool:
        """Whether nothing of a cell is missing."""
        lines = notebook.tab.lines(cell.message_id)
        return (
            cell.is_settled
            or cell.number not in done
            or (notebook.tab.is_done(cell.message_id) and lines == lines_of(cell))
        )

    def _settle(self, notebook: Notebook, cell: Cell, was_run: bool, ended_at: float) -> None:
        """Compare one cell. Raises Loss."""
        if cell.never_came and was_run:
            raise Loss(f"{notebook}: cell {cell.number} ran late, after others")
        if cell.is_settled:
            return
        tab, site, name = notebook.tab, notebook.site, f"{notebook}: cell {cell.number}"
        lines, answers = tab.lines(cell.message_id), tab.answered[cell.message_id]
        cell.is_settled = True
        if not was_run:
            if lines or answers:
                raise Loss(f"{name} was answered and not run: {lines}, {tab.replies.get(cell.message_id)}")
            if cell.connection == tab.connections:
                raise Loss(f"{name} was never run, though its connection is whole")
            cell.never_came = True
            self.outcomes["cells whose connection broke on the way"] += 1
            return
        if answers and tab.replies[cell.message_id]["status"] != "ok":
            raise Loss(f"{name} failed: {tab.replies[cell.message_id]}")
        kills = self.happened("server SIGKILL", site, cell.sent_at - NEAR_S, time.time())
        if answers > 1 + kills:
            raise Loss(f"{name} was answered {answers} times")
        once = list(dict.fromkeys(lines))
        if len(lines) - len(once) > kills:
            raise Loss(f"{name} printed lines more than once: {lines}")
        self.outcomes["lines that came again after a kill"] += len(lines) - len(once)
        if once != sorted(once) or any(number != cell.number for number, _ in once):
            raise Loss(f"{name} printed other lines: {lines}")
        # What a keeper held of kernels without a server is lost with it.
        keeper = self.happened("keeper", None, cell.sent_at - NEAR_S, time.time())
        server = self.happened("server", site, cell.sent_at - NEAR_S, time.time())
        if once != lines_of(cell):
            if not (keeper and server):
                raise Loss(f"{name} ran, and its tab has of it only {lines}")
            self.outcomes["cells whose output a killed keeper held"] += 1
        elif not answers:
            near = self.happened("server", site, ended_at - NEAR_S, ended_at + NEAR_S)
            if not (near or (keeper and server)):
                raise Loss(f"{name} ran and printed all, and was not answered")
            self.outcomes["answers lost at a server's end"] += 1
        else:
            self.outcomes["cells that were run and answered"] += 1

    def happened(self, what: str, site: Site | None, since: float, to: float) -> int:
        """How often something happened then to a server, or to all."""
        names = {"", site.name if site else ""}
        return sum(
            since <= when <= to and kind.startswith(what) and where in names
            for when, kind, where in self.events
        )

    async def end(self) -> None:
        """End all, and see that nothing is left. Raises Loss."""
        for notebook in self.notebooks:
            await notebook.tab.close()
            status, _ = await asyncio.to_thread(
                notebook.site.server.request, "DELETE", f"/api/kernels/{notebook.kernel_id}"
            )
            if status != 204:
                raise Loss(f"{notebook} is not shut down: {status}")
        for site in self.sites:
            await asyncio.to_thread(site.server.terminate)
        left = {
            "processes": lambda: [n.pid for n in self.notebooks if exists(n.pid)],
            "images": lambda: [path.name for path in (self.disk / "images").glob("[!.]*") if path.is_dir()],
            "records": lambda: [path.name for path in (self.machine.folder / "own" / "kept").glob("*.json")],
            "keepers": lambda: keepers(self.machine),
        }
        for what, find in left.items():
            try:
                await until(lambda find=find: not find(), 60)
            except NotInTime:
                raise Loss(f"{what} are left at the end: {find()}") from None

    @property
    def faults(self) -> int:
        """How many were injected."""
        return sum(states.total() for states in self.hits.values())

    def account(self) -> str:
        """How it went."""
        lines = [f"seed {self.seed}: {self.faults} faults in {time.time() - self.began:.0f} s"]
        for kind, states in sorted(self.hits.items()):
            at = ", ".join(f"{state} {count}" for state, count in sorted(states.items()))
            lines.append(f"  {kind:28} {states.total():5}   {at}")
        lines += [f"  {count:5} {what}" for what, count in sorted(self.outcomes.items()) if count]
        cells = sum(len(notebook.cells) for notebook in self.notebooks)
        lines.append(f"{len(self.notebooks)} kernels were sent {cells} cells")
        return "\n".join(lines)


def said_shortly(answer: Any) -> str:
    """What a refusal says, without names and figures, so that those of a kind are counted together."""
    text = str(answer.get("message", answer) if isinstance(answer, dict) else answer)[:160]
    return re.sub(r"/\S+|[0-9a-f]{8}-[-0-9a-f]*|\d+(\.\d+)?", "…", text)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[str]:
    """Mount a small file system; yield why not, if it cannot be: then its kind of fault is left out."""
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
        why_not = mounted.stderr.strip() if mounted.returncode else ""
    except OSError as error:
        why_not = str(error)
    try:
        yield why_not
    finally:
        if not why_not:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def last_words(machine: Machine, lines: int = 60) -> str:
    """The ends of all logs."""
    told = []
    for pattern in LOGS:
        for path in sorted(machine.folder.glob(pattern)):
            told += [f"---- {path.name}", *path.read_text(errors="replace").splitlines()[-lines:]]
    return "\n".join(told)


def main() -> int:
    """The command line."""
    from fetched_criu import fetched_criu
    from live_machine import new_machine

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--kernels", type=int, default=2, help="of each server, with memory on the GPU")
    parser.add_argument("--gap", type=float, default=1.0, help="seconds between two faults, on average")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument(
        "--without", action="append", default=[], choices=KINDS, help="leave a kind of faults out"
    )
    parser.add_argument(
        "--reload", action="store_true", help="reload tabs that are deaf, and go on to the end"
    )
    parser.add_argument("--logs", default="", help="a folder for all logs after a loss")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with new_machine() as machine, small_disk(machine.folder / "disk") as why_not:
        if why_not:
            print(f"the disk is never full: {why_not}", flush=True)
        chaos = Keeping(
            machine, given.seed, fetched_criu(), given.servers, given.kernels, tuple(given.without)
        )
        for notebook in chaos.notebooks:
            notebook.reloads = given.reload
        try:
            asyncio.run(chaos.run(given.faults, given.gap, lambda line: print(line, flush=True)))
        except Loss as loss:
            print(last_words(machine))
            if given.logs:
                kept = Path(given.logs)
                kept.mkdir(parents=True, exist_ok=True)
                for path in (path for pattern in LOGS for path in machine.folder.glob(pattern)):
                    shutil.copy(path, kept)
            print(f"{chaos.account()}\nLOST, seed {given.seed}: {loss}", flush=True)
            return 1
        print(f"{chaos.account()}: none lost, stuck, or run twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())

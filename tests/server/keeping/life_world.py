"""A kernel's life without processes: its image is an empty folder, and each step of its work waits to be let go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jupyter_affinode.hibernation.hibernate import CannotHibernate, CannotWake, Recovered
from jupyter_affinode.keeping import life as life_module
from jupyter_affinode.keeping import lives as lives_module
from jupyter_affinode.keeping.life import LeaseLost, Life
from jupyter_affinode.keeping.life_table import State
from jupyter_affinode.keeping.lives import Lives
from jupyter_affinode.keeping.messages import Undelivered
from jupyter_affinode.keeping.processes import ProcessName
from jupyter_affinode.keeping.records import Owner, Record

OWNER = Owner("server", "/")
STEPS = ("quiet", "dump", "end", "restore", "hear", "gpu", "recover")


class Image:
    """What a manifest's name says of an image, and nothing else of it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def _name(self) -> str:
        return next((path.name for path in self.folder.glob("*.json") if path.stem != "terms"), "")

    is_whole = property(lambda self: self._name() == "manifest.json")
    is_being_woken = property(lambda self: self._name() == "waking.json")
    was_woken = property(lambda self: self._name() == "woken.json")
    bytes = 7
    warned_at = None
    has_cuda = True

    @property
    def unheard_file(self) -> Path:
        return self.folder / "unheard"

    def named(self, name: str) -> None:
        """Have its manifest have this name; "": none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("*.json"):
            if path.stem != "terms":
                path.unlink()
        if name:
            (self.folder / name).touch()

    def manifest(self) -> Any:
        return self

    def not_woken(self) -> None:
        self.named("manifest.json")

    def let_back(self) -> None:
        pass

    def let_speak(self) -> None:
        self.unheard_file.unlink(missing_ok=True)

    def keep_gpu_file(self) -> None:
        self.named("")

    def be_nothing(self) -> None:
        self.named("")

    def give_up(self) -> None:
        for path in self.folder.glob("*"):
            path.unlink()
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class Known:
    """What is known of an image."""

    since, bytes, has_cuda = 0.0, 7, True
    undelivered = Undelivered()

    def __init__(self, image: Image):
        self.image = image

    @classmethod
    def of(cls, image: Image, manifest: object) -> Known:
        return cls(image)

    @property
    def manifest(self) -> Any:
        return SimpleNamespace(needed={})

    def objection(self, reserved: object) -> None:
        return None

    def announced_end(self, keep_s: float) -> None:
        return None

    deleted_at = announced_end


class Kernel:
    """A kernel's process, as the keeper follows it."""

    def __init__(
        self, record: Record, ended: Callable[[Any], None], is_due: Callable[[str], object], log: object
    ):
        self.record, self._ended = record, ended
        if record.process not in World.now.living:
            raise ProcessLookupError
        self.is_kept, self.dying, self.is_closed = False, None, False
        self.hibernate_asked, self.heard_at, self.kept_for_s = None, 0.0, 0.0
        self.open_cells: set[str] = set()
        self.got: list[Undelivered] = []

    @property
    def is_alive(self) -> bool:
        return self.record.process in World.now.living

    def dies(self) -> None:
        """Have its process end."""
        World.now.living.discard(self.record.process)
        if not self.is_closed:
            self._ended(self)

    async def keep(self) -> None:
        self.is_kept = True

    def take(self) -> Undelivered:
        self.is_kept = False
        return Undelivered()

    async def is_idle_within(self, seconds: float) -> bool:
        await World.now.step("quiet")
        return True

    async def is_heard_within(self, seconds: float) -> bool:
        await World.now.step("hear")
        return True

    def undelivered(self) -> Undelivered:
        return Undelivered()

    def put_before(self, undelivered: Undelivered) -> None:
        self.got.append(undelivered)

    def belongs_to(self, record: Record) -> None:
        self.record = record

    def begin_end(self, why: str) -> asyncio.Task[None]:
        if self.dying is None:
            self.dying = asyncio.get_running_loop().create_task(self._end())
        return self.dying

    async def _end(self) -> None:
        await World.now.step("end")
        self.dies()

    def close(self) -> None:
        self.is_closed = True

    def view(self) -> dict[str, Any]:
        return {"kept_since": 0.0, "state": "idle", "quiet_s": 0.0}


class Server:
    """A server that has the kernel."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.has_ended = asyncio.Event()

    async def until_quiet(self, kernel_id: str) -> None:
        await self._or_end(World.now.step("quiet"))

    async def until_heard(self, kernel_id: str, process: ProcessName, undelivered: Undelivered) -> None:
        await self._or_end(World.now.step("hear"))

    async def _or_end(self, step: Any) -> None:
        waits = [asyncio.ensure_future(step), asyncio.ensure_future(self.has_ended.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if self.has_ended.is_set():
            raise LeaseLost
        await waits[0]

    def show(self, view: dict[str, Any]) -> None:
        self.shown.append(view["life"])


class Gpu:
    """The kernel's GPU memory."""

    async def settled(self) -> None:
        pass

    async def leave(self, record: Record, folder: Path) -> bool:
        return True

    async def until_back(self, record: Record) -> None:
        await World.now.step("gpu")


class World:
    """One kernel, its keeper's lives, and the gates at which its work waits."""

    now: World

    def __init__(self, folder: Path, monkeypatch: Any):
        World.now = self
        self.folder = folder
        self.living: set[ProcessName] = set()
        self.gates = {name: asyncio.Event() for name in STEPS}
        self.reached: list[str] = []
        self.fails: set[str] = set()
        self.numbers = 0
        self._dead: list[Life] = []
        for module in (life_module, lives_module):
            monkeypatch.setattr(module, "image_of", lambda store, kernel_id: self.image)
            monkeypatch.setattr(module, "lives", self.living.__contains__)
            monkeypatch.setattr(module, "images", self)
        monkeypatch.setattr(life_module, "Hibernated", Known)
        monkeypatch.setattr(life_module, "GpuMemory", Gpu)
        monkeypatch.setattr(life_module, "RECONNECTED_S", 0.0)
        monkeypatch.setattr(life_module, "folder_of", lambda pid: "")
        monkeypatch.setattr(life_module, "write_terms", self._write_terms)
        self.image = Image(folder / "images" / "one")
        self.terms: Record | None = None
        self.lives = self.keeper()
        self.server = Server()

    def keeper(self) -> Lives:
        """A keeper's lives: those of the first, or of one that starts after it."""
        made = Lives(self.folder, logging.getLogger("keeper"), lambda kernel_id: None, lambda: None)
        made.means.listen = Kernel  # type: ignore[assignment]
        return made

    def _write_terms(self, folder: Path, record: Record) -> None:
        self.terms = record
        (folder / "terms.json").touch()

    def process(self) -> ProcessName:
        """A new process."""
        self.numbers += 1
        name = ProcessName(self.numbers, self.numbers, "boot")
        self.living.add(name)
        return name

    async def starts_anew(self, life: Life) -> None:
        """Have its server end its process and start another."""
        self.living.clear()
        await life.update(replace(life.record, process=self.process()))

    def kill_keeper(self, life: Life) -> Lives:
        """Have the keeper be dead, with what it has under way; return the next one's lives."""
        life._means.changed = lambda life: None
        life._means.claims.leave(self.image)  # type: ignore[arg-type]
        self._dead.append(life)
        self.gates = {name: asyncio.Event() for name in STEPS}
        self.lives = self.keeper()
        return self.lives

    async def close(self) -> None:
        """End what is under way."""
        for life in (*self._dead, *self.lives):
            life._is_now = lambda state: None  # type: ignore[method-assign]
            for work in (life._work, life._watch):
                if work is not None:
                    work.cancel()
                    await asyncio.wait([work])

    def record(self, **changes: Any) -> Record:
        """What the kernel's server tells."""
        told = {"kernel_id": "one", "kernel_name": "python3", "owner": OWNER, "process_group": None}
        told |= {"connection_file": "", "connection": {}, "is_managed": False}
        told |= {"hibernate_dir": str(self.folder / "images"), "process": None}
        return Record(**{**told, "process": None, **changes})

    async def step(self, name: str) -> None:
        """Wait at a step of the work until it is let go."""
        self.reached.append(name)
        await self.gates[name].wait()
        if name in self.fails:
            raise OSError("this is a test")

    def let(self, *names: str) -> None:
        """Let work go past these steps."""
        for name in names:
            self.gates[name].set()

    # ---- what hibernate.py does

    async def hibernate(
        self, image: Image, pid: int, leave_gpu: Any, about_to_end: Callable[[], None], **_: object
    ) -> Image:
        (process,) = [each for each in self.living if each.pid == pid]
        try:
            image.named("")
            image.unheard_file.touch()
            await leave_gpu(image.folder)
            await self.step("dump")
            if process not in self.living:
                raise OSError("its process ended meanwhile")
        except BaseException as error:
            image.give_up()
            if isinstance(error, OSError):
                raise CannotHibernate(str(error)) from None
            raise
        image.named("manifest.json")
        about_to_end()
        await self.step("end")
        self.living.discard(process)
        return image

    async def wake(self, image: Image) -> ProcessName:
        if not image.is_whole:
            raise CannotWake("its manifest cannot be read")
        image.named("waking.json")
        try:
            await self.step("restore")
        except BaseException as error:
            image.not_woken()
            if isinstance(error, OSError):
                raise CannotWake(str(error)) from None
            raise
        image.named("woken.json")
        return self.process()

    async def recover(self, image: Image, process: ProcessName | None = None) -> Recovered:
        await self.step("recover")
        if not image._name():
            image.give_up()
            return Recovered()
        if image.is_whole and process is not None:
            image.give_up()
            return Recovered()
        if image.is_whole:
            return Recovered(image)  # type: ignore[arg-type]
        if image.is_being_woken or not self.living:
            self.living.clear()
            image.not_woken()
            return Recovered(image)  # type: ignore[arg-type]
        (living,) = self.living
        return Recovered(image, living)  # type: ignore[arg-type]

    # ---- a state

    async def reach(self, state: State, *, has_server: bool) -> Life:
        """Bring the kernel into a state by what leads there."""
        life = await self.lives.update(self.record(process=self.process()), self.server)
        if not has_server:
            await life.lost(self.server)
        if state in (State.LEAVING, State.LEFT, State.IN_IMAGE, State.WAKING, State.MUTE, State.PROVISIONAL):
            await self._leave(life, state)
        if state in (State.WAKING, State.MUTE, State.PROVISIONAL):
            await self._wake(life, state)
        if state is State.ENDING:
            life.begin_end("this is a test")
        elif state is State.GONE:
            assert life.kernel is not None
            life.kernel.dies()  # type: ignore[attr-defined]
        assert life.state is state, (life.state, self.reached)
        return life

    async def _leave(self, life: Life, state: State) -> None:
        self.let("quiet")
        going = asyncio.ensure_future(life.hibernate())
        going.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self.until(lambda: "dump" in self.reached)
        if state is State.LEAVING:
            return
        self.let("dump")
        await self.until(lambda: life.state is State.LEFT)
        if state is not State.LEFT:
            self.let("end")
            await self.until(lambda: life.state is State.IN_IMAGE)
            self.gates["end"].clear()
            self.gates["dump"].clear()

    async def _wake(self, life: Life, state: State) -> None:
        coming = asyncio.ensure_future(life.wake())
        coming.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self.until(lambda: "restore" in self.reached)
        if state is State.WAKING:
            return
        self.let("restore")
        await self.until(lambda: life.state is State.MUTE)
        if state is State.PROVISIONAL:
            self.let("hear")
            await self.until(lambda: life.state is State.PROVISIONAL)

    async def until(self, is_so: Callable[[], object]) -> None:
        """Let the loop turn until something is so."""
        for _ in range(1000):
            if is_so():
                return
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # a thread
        assert is_so(), self.reached

    async def turns(self) -> None:
        """Let the loop turn for a while, without time passing."""
        for _ in range(30):
            await asyncio.sleep(0)

"""A server's connection to its user's keeper. As long as it is open, the server has its kernels."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import environment
from ..python_command import module_command
from .at_hub import AtHub
from .life_table import IS_OUT, State
from .lines import ANSWER_S, Connection, HungUp, Refused, Unanswered
from .messages import Held, Undelivered
from .processes import ProcessName
from .records import LINE_BYTES_MAX, SOCKET_NAME, VERSION, Owner, Record, from_json, to_json

SPEAKS = 2  # how requests look: lines.py
START_S = 10.0
REVIVED_S = 2.0
TRY_EVERY_S = 0.05


class KeeperUnavailable(OSError):
    """No keeper answers, and none can be started; the message says why."""


class KeeperEnded(KeeperUnavailable):
    """The keeper has ended."""


class KeeperRefused(RuntimeError):
    """The keeper did not do it; the message says why."""


@dataclass(frozen=True)
class Kept:
    """A kernel as the keeper shows it. `state`: "busy" while a cell runs; `quiet_s`: since its last message."""

    record: Record
    life: State
    kept_since: float  # or in an image, by the time of day
    state: str
    quiet_s: float
    bytes: int = 0  # of its image, or of what is written of it
    has_server: bool = False  # one that runs
    deleted_at: float | None = None  # by the time of day, once it was said that its image is deleted by age
    objection: str | None = None  # why it could not be woken now, and what to do
    refusal: str | None = None  # why it did not hibernate, or was not woken, the last time

    @property
    def is_out(self) -> bool:
        """Whether it lives on disk."""
        return self.life in IS_OUT

    @classmethod
    def of(cls, view: dict[str, Any]) -> Kept:
        """Return what a view says. Raises ValueError and LookupError."""
        return cls(
            from_json(view["record"]),
            State(view["life"]),
            view["kept_since"] or time.time(),
            view["state"],
            view["quiet_s"],
            view["bytes"],
            view["has_server"],
            view["deleted_at"],
            view["objection"],
            view["refusal"],
        )


@dataclass(frozen=True)
class Ended:
    """A kernel whose process ended while no server had it."""

    record: Record
    at: float  # by the time of day


async def _nothing(*_: object) -> None:
    pass


class Keeper:
    """Speaks to the keeper. All raise KeeperUnavailable if it is gone, and KeeperRefused."""

    def __init__(self, connection: Connection | None):
        """Use a connection; `connected` makes one."""
        self._connection = connection
        # What the keeper asks of the server that has a kernel, and shows it.
        self.on_life: Callable[[Kept], None] = lambda kept: None
        self.on_quiet: Callable[[str], Awaitable[None]] = _nothing  # pass nothing on to a kernel
        self.on_hear: Callable[[str, ProcessName, Undelivered], Awaitable[None]] = _nothing  # one was woken
        self.on_end: Callable[[], None] = lambda: None  # called when the keeper has ended
        self._reading: asyncio.Task[None] | None = None
        if connection is not None:
            connection.handlers = {"life": self._life, "quiet": self._quiet, "hear": self._hear}
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="affinode-keeper")

    @property
    def is_gone(self) -> bool:
        """Whether the keeper has ended."""
        return self._connection is None or self._connection.is_closed

    async def update(
        self, record: Record, at_hub: AtHub | None = None, open_cells: Sequence[str] = ()
    ) -> Kept:
        """Say that this server has a kernel, with what adopting it takes; again whenever that has changed.

        `at_hub`: the server's place at its Hub, by which the keeper asks for the kernel's user and grant. `open_cells`:
        the requests that the kernel executes, which a new keeper has not heard begin.
        """
        told = await self._ask(
            "update", record=to_json(record), at_hub=at_hub and asdict(at_hub), open_cells=list(open_cells)
        )
        return Kept.of(told)

    async def forget(self, kernel_id: str) -> None:
        """Say that a kernel is shut down."""
        await self._ask("forget", kernel=kernel_id)

    async def hand_over(self, record: Record, at_hub: AtHub | None = None) -> dict[str, str]:
        """Have a kernel kept from now on. What it says from then on reaches the next server.

        Return why kernels are ended for that, by their ids.
        """
        told = await self._ask("hand_over", record=to_json(record), at_hub=at_hub and asdict(at_hub))
        return dict(told or {})

    async def release(self, kernel_id: str, undelivered: Undelivered) -> dict[str, str]:
        """Give what this server got of a kernel that it handed over, and delivered to no client.

        Return why kernels are ended for that, by their ids.
        """
        told = await self._ask("release", kernel=kernel_id, undelivered=undelivered.to_json())
        return dict(told or {})

    def tell_delivered(self, kernel_id: str, reader: str, channel: str, header: bytes) -> None:
        """Say that a tab has got a message, given by its header; left out while the keeper is far behind.

        Written at once and without an answer: the keeper gets it also where this server is killed next.
        """
        if self._connection is not None and not self.is_gone and not self._connection.is_behind:
            told = {"kernel": kernel_id, "reader": reader, "channel": channel, "header": header.decode()}
            self._tell_delivered(self._connection, told)

    def _tell_delivered(self, connection: Connection, told: dict[str, str]) -> None:
        connection.tell("delivered", **told)

    def tell_held(self, kernel_id: str, held: Held) -> None:
        """Have the keeper have what a tab sent to a kernel that is held back, for the server after this one."""
        if self._connection is not None:
            self._connection.tell("held", kernel=kernel_id, held=held.to_json())

    def tell_passed(self, kernel_id: str) -> None:
        """Say that what tabs have sent is passed on next, or is void."""
        if self._connection is not None:
            self._connection.tell("passed", kernel=kernel_id)

    async def offered(self, owner: Owner, store: str = "") -> tuple[list[Kept], list[Ended]]:
        """Return the kernels that such a server may `take`, and which have ended. `store`: a folder of images."""
        answer = await self._ask("offered", None, owner=asdict(owner), store=store)
        return (
            [Kept.of(each) for each in answer["kernels"]],
            [Ended(from_json(each["record"]), each["at"]) for each in answer["ended"]],
        )

    async def take(self, kernel_id: str) -> tuple[Kept, Undelivered, list[Held]]:
        """Have a kernel from now on; return where it is, what its tabs have not got, and what they sent while it was
        held back.
        """
        told = await self._ask("take", kernel=kernel_id)
        held = [Held.from_json(each) for each in told["held"]]
        return Kept.of(told["view"]), Undelivered.from_json(told["undelivered"]), held

    async def decline(self, kernel_id: str) -> None:
        """Say that this server does not take a kernel that was offered; nobody waits for it."""

    async def look(self, kernel_id: str) -> Kept:
        """Return where a kernel is."""
        return Kept.of(await self._ask("look", kernel=kernel_id))

    async def list_kept(self, store: str = "", *, all: bool = False) -> list[Kept]:
        """Return the kernels that are kept, as processes or in images, whatever server they are for.

        `all`: also those that a server has.
        """
        return [Kept.of(each) for each in await self._ask("list", None, store=store, all=all)]

    async def hibernate(self, kernel_id: str) -> Kept:
        """Put a kernel into an image, and end its processes. A server that has it is asked to have it quiet."""
        return Kept.of(await self._ask("hibernate", None, kernel=kernel_id))

    async def wake(self, kernel_id: str, store: str = "") -> Kept:
        """Have a kernel run. If no server has it, it is kept then."""
        return Kept.of(await self._ask("wake", None, kernel=kernel_id, store=store))

    async def stop(self, kernel_id: str) -> None:
        """Have a kernel stay where it is, if it is on its way into an image or back, and that can still be stopped."""
        await self._ask("stop", None, kernel=kernel_id)

    async def end(self, kernel_id: str, *, by_server: bool = False) -> None:
        """Shut a kernel down that is kept, or on disk, and return when it has ended. `by_server`: this one has it."""
        await self._ask("end", None, kernel=kernel_id, by_server=by_server)

    async def want_warm(
        self, want: dict[str, Any], at_hub: AtHub | None = None, *, stays: bool = False, again: bool = False
    ) -> dict[str, Any]:
        """Have a kernelspec's warm kernels made, and return what there is of them.

        `want`: `spec`, its folder; `environ`, that kernels are made with; `settings`. `stays`: as long as this client
        is connected. `again`: also if its prelude failed, and has not changed since.
        """
        told = await self._ask(
            "warm_want", **want, at_hub=at_hub and asdict(at_hub), stays=stays, again=again
        )
        return dict(told)

    async def offer_warm(self, want: dict[str, Any], patience_s: float, **kernel: Any) -> dict[str, Any]:
        """Ask for a warm kernel: return `offer`, or None with `why`, and `failed`, a file that says how its prelude
        failed.

        `kernel`: `kernel_environ`, `command` and `pid`, of the program that takes it, which says then that it
        `has_warm`.
        """
        return dict(await self._ask("warm_offer", patience_s, **want, **kernel))

    async def has_warm(self, kernel_id: str, *, outlives: bool) -> None:
        """Say that this client has the kernel that it was offered, and whether that outlives it."""
        await self._ask("warm_taken", id=kernel_id, outlives=outlives)

    async def list_warm(self) -> list[dict[str, Any]]:
        """Return all warm kernels, by kernelspec."""
        return list(await self._ask("warm_list"))

    async def drop_warm(self, spec: str) -> None:
        """End a kernelspec's warm kernels, and have none made any more."""
        await self._ask("warm_drop", spec=spec)

    async def __aenter__(self) -> Keeper:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up: what this server has is kept from now on."""
        if self._reading is not None and self._connection is not None:
            self._reading.cancel()
            self._connection.close()
            await self._connection.closed()

    # ---- what the keeper says

    def _life(self, view: dict[str, Any]) -> None:
        self.on_life(Kept.of(view))

    async def _quiet(self, kernel: str) -> None:
        await self.on_quiet(kernel)

    async def _hear(self, kernel: str, process: dict[str, Any], undelivered: dict[str, Any]) -> None:
        await self.on_hear(kernel, ProcessName(**process), Undelivered.from_json(undelivered))

    async def _read(self) -> None:
        assert self._connection is not None
        try:
            await self._connection.serve()
        finally:
            self.on_end()

    async def _ask(self, what: str, patience_s: float | None = ANSWER_S, **request: Any) -> Any:
        assert self._connection is not None
        try:
            return await self._connection.ask(what, patience_s, **request)
        except Refused as refused:
            raise KeeperRefused(str(refused)) from None
        except HungUp:
            raise KeeperEnded("the keeper of kernels has ended") from None
        except Unanswered as error:
            raise KeeperUnavailable(f"the keeper of kernels does not answer: {error}") from None


async def connected() -> Keeper:
    """Return a connection to the user's keeper, which is started if need be. Raises KeeperUnavailable."""
    loop = asyncio.get_running_loop()
    began, started = loop.time(), None
    while True:
        wants_one = False
        try:
            folder = environment.user_folder()
            environment.make_folder(folder)
            return await _greeted(str(folder / SOCKET_NAME))
        except (KeeperEnded, ConnectionResetError, BrokenPipeError):  # at this moment
            pass
        except KeeperUnavailable:
            raise
        except FileNotFoundError:
            wants_one = True
        except (
            ConnectionRefusedError
        ):  # one that was killed leaves its socket, and its supervisor starts the next
            wants_one = loop.time() > began + REVIVED_S
        except OSError as error:
            raise KeeperUnavailable(f"no kernel can be kept: {error}") from None
        if wants_one and (started is None or started.poll() is not None):  # another one may just have ended
            started = _start()
        if loop.time() > began + START_S:
            raise KeeperUnavailable(f"the keeper of kernels did not start within {START_S:g} s")
        await asyncio.sleep(TRY_EVERY_S)


async def _greeted(path: str) -> Keeper:
    """Return a connection to the keeper at a socket, which may have run since before an upgrade."""
    reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES_MAX)
    try:
        writer.write(json.dumps({"do": "hello", "speaks": SPEAKS}).encode() + b"\n")
        await writer.drain()
        line = await asyncio.wait_for(reader.readline(), ANSWER_S)
        if not line:
            raise KeeperEnded("the keeper of kernels has ended")
        answer = json.loads(line).get("answer")
        if isinstance(answer, dict) and answer.get("version") == VERSION:
            return Keeper(Connection(reader, writer, _words))
        if answer == VERSION:
            from .earlier_keeper import EarlierKeeper  # for one release

            return EarlierKeeper(path, reader, writer)
        raise ValueError
    except asyncio.TimeoutError:
        writer.close()
        raise KeeperUnavailable("the keeper of kernels does not answer") from None
    except (ValueError, AttributeError):
        writer.close()
        raise KeeperUnavailable(
            "the keeper of this user's kernels is of another release of jupyter-affinode, and cannot be asked."
            " Its kernels run on until their time is over"
        ) from None
    except BaseException:
        writer.close()
        raise


def _words(error: Exception) -> str:
    """Return what the keeper is told of a failed request: why a kernel is not quiet."""
    return str(error) or type(error).__name__


def is_there() -> bool:
    """Return whether a keeper listens; none is started."""
    try:
        return environment.listens(environment.user_folder() / SOCKET_NAME)
    except OSError:
        return False


def _start() -> subprocess.Popen[bytes]:
    """Start a keeper, and what starts it again when it is killed, out of reach of what ends this server."""
    environ = {
        name: value
        for name, value in environment.controller_environment().items()
        if not name.startswith("JUPYTERHUB_")  # it outlives this server's tokens
    }
    try:
        with (environment.user_folder() / "keeper.log").open("ab") as log:
            return subprocess.Popen(
                module_command("jupyter_affinode.client.supervisor", "jupyter_affinode.keeping.keeper"),
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except (OSError, environment.SimulationRefused) as error:
        raise KeeperUnavailable(f"the keeper of kernels cannot be started: {error}") from None

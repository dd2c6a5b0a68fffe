"""A server's connection to its user's keeper. As long as it is open, the server has its kernels."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .. import environment
from ..python_command import module_command
from .at_hub import AtHub
from .messages import Undelivered
from .records import LINE_BYTES_MAX, SOCKET_NAME, VERSION, Owner, Record, from_json, to_json

START_S = 10.0
REVIVED_S = 2.0
TRY_EVERY_S = 0.05
ANSWER_S = 30.0
UNREAD_BYTES_MAX = 1 << 20
IMAGE_S = 1800.0  # until a disk has written, or read, an image


class KeeperUnavailable(OSError):
    """No keeper answers, and none can be started; the message says why."""


class KeeperEnded(KeeperUnavailable):
    """The keeper has ended."""


class KeeperRefused(RuntimeError):
    """The keeper did not do it; the message says why."""


@dataclass(frozen=True)
class Kept:
    """A kernel that the keeper knows. `state`: "busy" while a cell runs; `quiet_s`: since its last message."""

    record: Record
    kept_since: float  # or in an image, by the time of day
    state: str
    quiet_s: float
    bytes: int = 0  # of its image, if it is in one
    has_server: bool = False  # one that runs
    deleted_at: float | None = None  # by the time of day, once it was said that its image is deleted by age
    objection: str | None = None  # why it could not be woken now, and what to do


@dataclass(frozen=True)
class Ended:
    """A kernel whose process ended while no server had it."""

    record: Record
    at: float  # by the time of day


class Keeper:
    """Speaks to the keeper. All raise KeeperUnavailable if it is gone, and KeeperRefused."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        """Use a connection; `connected` makes one."""
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()
        # Called with "hibernate" or "wake" and a kernel of this server's, when a command line asks the keeper for that.
        self.on_wish: Callable[[str, str], None] = lambda wish, kernel_id: None
        self.on_end: Callable[[], None] = lambda: None  # called when the keeper has ended
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="affinode-keeper")

    @property
    def is_gone(self) -> bool:
        """Whether the keeper has ended."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def greet(self) -> None:
        """Make sure that the keeper, which may have run since before an upgrade, is of a release like this one."""
        try:
            version = await self._ask("hello")
        except KeeperRefused:
            version = None
        if version != VERSION:
            await self.close()
            raise KeeperUnavailable(
                "the keeper of this user's kernels is of another release of jupyter-affinode, and cannot be asked."
                " Its kernels run on until their time is over"
            )

    async def own(self, record: Record, at_hub: AtHub | None = None) -> None:
        """Say that this server has a kernel, with what adopting it takes; again whenever that has changed.

        `at_hub`: the server's place at its Hub, by which the keeper asks for the kernel's user and grant.
        """
        await self._ask("own", record=to_json(record), at_hub=at_hub and asdict(at_hub))

    async def forget(self, kernel_id: str) -> None:
        """Say that a kernel is shut down."""
        await self._ask("forget", kernel=kernel_id)

    async def hand_over(self, record: Record, at_hub: AtHub | None = None) -> None:
        """Have a kernel kept from now on. What it says from then on reaches the next server."""
        await self._ask("hand_over", record=to_json(record), at_hub=at_hub and asdict(at_hub))

    async def deliver(self, kernel_id: str, undelivered: Undelivered) -> None:
        """Give what this server got of a kernel that it handed over, and delivered to no client."""
        await self._ask("deliver", kernel=kernel_id, undelivered=undelivered.to_json())

    def tell_delivered(self, kernel_id: str, reader: str, channel: str, header: bytes) -> None:
        """Say that a tab has got a message, given by its header; left out while the keeper is far behind.

        Written at once and without an answer: the keeper gets it also where this server is killed next.
        """
        if not self.is_gone and self._writer.transport.get_write_buffer_size() < UNREAD_BYTES_MAX:
            told = {"kernel": kernel_id, "reader": reader, "channel": channel, "header": header.decode()}
            self._writer.write(json.dumps({"do": "delivered", **told}).encode() + b"\n")

    async def adopt(self, owner: Owner, store: str = "") -> tuple[list[Kept], list[Ended]]:
        """Take all kernels that are kept for such a server, also those in the images of `store`, which stay there.

        Return them, and those that have ended.
        """
        answer = await self._ask("adopt", IMAGE_S, owner=asdict(owner), store=store)
        return (
            [_kept(each) for each in answer["kernels"]],
            [Ended(from_json(each["record"]), each["at"]) for each in answer["ended"]],
        )

    async def take(self, kernel_id: str) -> Undelivered:
        """Take what the tabs of an adopted kernel have not got. From now on this server has the kernel."""
        return Undelivered.from_json(await self._ask("take", kernel=kernel_id))

    async def give_back(self, kernel_id: str) -> None:
        """Say that this server could not have a kernel that it adopted: it is kept as before."""
        await self._ask("give_back", kernel=kernel_id)

    async def list_kept(self, store: str = "", *, all: bool = False) -> list[Kept]:
        """Return the kernels that are kept, as processes or in images, whatever server they are for.

        `all`: also those that a server has.
        """
        return [_kept(each) for each in (await self._ask("list", store=store, all=all))["kernels"]]

    async def hibernate(self, kernel_id: str, *, by_server: bool = False) -> Kept:
        """Put a kernel into an image, and end its processes.

        `by_server`: this is the server that has it, which passes no message on to it meanwhile. Another client's wish
        for such a kernel the keeper passes on to its server.
        """
        return _kept(await self._ask("hibernate", IMAGE_S, kernel=kernel_id, by_server=by_server))

    async def wake(self, kernel_id: str, store: str = "") -> Kept:
        """Start a hibernated kernel's processes again. If no server has it, it is kept then."""
        return _kept(await self._ask("wake", IMAGE_S, kernel=kernel_id, store=store))

    async def wake_own(self, kernel_id: str, store: str) -> tuple[Record, Undelivered]:
        """Start a hibernated kernel's processes again for this server, which has it.

        Return its record as it is now, and what its tabs had not got when it went.
        """
        answer = await self._ask("wake", IMAGE_S, kernel=kernel_id, store=store, by_server=True)
        return from_json(answer["record"]), Undelivered.from_json(answer["undelivered"])

    async def heard(self, kernel_id: str) -> None:
        """Say that all tabs of a woken kernel hear it, so that it may speak."""
        await self._ask("heard", kernel=kernel_id)

    async def stop(self, kernel_id: str) -> None:
        """Have a kernel stay where it is, if it is on its way into an image or back, and that can still be stopped."""
        await self._ask("stop", IMAGE_S, kernel=kernel_id)

    async def progress(self, kernel_id: str) -> dict[str, Any] | None:
        """Return how far a kernel is that is on its way: `step`, `bytes` of the image so far; None: it is not."""
        return await self._ask("progress", kernel=kernel_id)

    async def wish_done(self, kernel_id: str, error: str | None) -> None:
        """Say that a wish was fulfilled, or why not."""
        await self._ask("wish_done", kernel=kernel_id, error=error)

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

    async def end(self, kernel_id: str) -> None:
        """Shut a kept kernel down, and return when it has ended."""
        await self._ask("end", kernel=kernel_id)

    async def __aenter__(self) -> Keeper:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Hang up: what this server has is kept from now on."""
        self._reading.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        """Take the keeper's lines: answers, and wishes in between."""
        try:
            while line := await self._reader.readline():
                told = json.loads(line)
                if "wish" in told:
                    self.on_wish(told["wish"], told["kernel"])
                else:
                    self._answers.put_nowait(told)
        except (OSError, ValueError):
            self._writer.close()
        finally:
            self._answers.put_nowait(None)
            self.on_end()

    async def _ask(self, what: str, patience_s: float = ANSWER_S, **request: Any) -> Any:
        # A request that is cancelled is answered all the same: the next one would take that answer for its own.
        exchange = asyncio.ensure_future(self._exchange(what, patience_s, request))
        # A caller that was cancelled does not ask for its request's error, which asyncio would log as never retrieved.
        exchange.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(exchange)

    async def _exchange(self, what: str, patience_s: float, request: dict[str, Any]) -> Any:
        async with self._turn:
            try:
                self._writer.write(json.dumps({"do": what, **request}).encode() + b"\n")
                await self._writer.drain()
                answer = await asyncio.wait_for(self._answers.get(), patience_s)
            except ConnectionError as error:
                raise KeeperEnded(f"the keeper of kernels has ended: {error}") from None
            except (OSError, asyncio.TimeoutError) as error:
                self._writer.close()  # a late answer would be taken for that of the next request
                raise KeeperUnavailable(f"the keeper of kernels does not answer: {error}") from None
        if answer is None:
            self._answers.put_nowait(None)
            raise KeeperEnded("the keeper of kernels has ended")
        if "error" in answer:
            raise KeeperRefused(answer["error"])
        return answer["answer"]


async def connected() -> Keeper:
    """Return a connection to the user's keeper, which is started if need be. Raises KeeperUnavailable."""
    loop = asyncio.get_running_loop()
    began, started = loop.time(), None
    while True:
        wants_one = False
        try:
            folder = environment.user_folder()
            environment.make_folder(folder)
            reader, writer = await asyncio.open_unix_connection(
                str(folder / SOCKET_NAME), limit=LINE_BYTES_MAX
            )
            keeper = Keeper(reader, writer)
            await keeper.greet()
            return keeper
        except KeeperEnded:  # at this moment
            pass
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


def _kept(told: dict[str, Any]) -> Kept:
    return Kept(
        from_json(told["record"]),
        told["kept_since"] or time.time(),
        told["state"],
        told["quiet_s"],
        told.get("bytes", 0),
        told.get("has_server", False),
        told.get("deleted_at"),
        told.get("objection"),
    )

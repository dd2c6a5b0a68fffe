"""Servers of the release before this one, which run on after an upgrade: how they asked, for one release.

Each of their requests is a line with `do`, answered in order. They had hibernations and wakes in their own hands: the
keeper told one what another program wished for its kernel, and it asked for that by itself, over another connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..hibernation.hibernate import CannotHibernate
from .life import LeaseLost, Life
from .life_table import State
from .messages import Undelivered
from .processes import ProcessName
from .records import VERSION

if TYPE_CHECKING:
    from .keeper import Keeper

HEARD_S = 30.0
PROCESS, IMAGE = "process", "image"  # where its kernels were said to be

Answer = dict[str, Any]


class EarlierServer:
    """A connection of such a server, or command line; the lease of its kernels."""

    def __init__(
        self, keeper: Keeper, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: Answer
    ):
        """`first`: the request that it began with."""
        self._keeper = keeper
        self._reader, self._writer = reader, writer
        self._first = first
        self._is_quiet: set[str] = set()
        self._wishes: dict[str, asyncio.Future[None]] = {}
        self._hears: dict[str, asyncio.Future[None]] = {}
        self._woken: dict[str, asyncio.Event] = {}
        warm = keeper.warm
        self._requests: dict[str, Callable[[Answer], Any]] = {
            "hello": lambda told: VERSION,
            "own": self._own,
            "forget": lambda told: keeper.forget(self, told["kernel"]),
            "delivered": lambda told: keeper.delivered(
                self, told["kernel"], told["reader"], told["channel"], told["header"]
            ),
            "hand_over": self._hand_over,
            "deliver": self._deliver,
            "adopt": self._adopt,
            "take": self._take,
            "give_back": lambda told: keeper.lives.get(told["kernel"]).lost(self),
            "list": self._list,
            "end": lambda told: keeper.end(told["kernel"]),
            "hibernate": self._hibernate,
            "wake": self._wake,
            "stop": lambda told: keeper.stop(told["kernel"]),
            "progress": self._progress,
            "wish_done": self._wish_done,
            "heard": self._heard,
            "warm_want": lambda told: warm.want(self, told),
            "warm_offer": lambda told: warm.offer(self, told),
            "warm_taken": lambda told: warm.taken(self, told),
            "warm_list": lambda told: warm.list_all(self, told),
            "warm_drop": lambda told: warm.drop(self, told),
        }

    async def serve(self) -> None:
        """Answer until it hangs up."""
        told = self._first
        try:
            while True:
                answer = await self._answer(told)
                if told["do"] != "delivered":
                    self._writer.write(json.dumps(answer).encode() + b"\n")
                    await self._writer.drain()
                if not (line := await self._reader.readline()):
                    break
                told = json.loads(line)
        finally:
            for waits in (*self._wishes.values(), *self._hears.values()):
                if not waits.done():
                    waits.set_exception(LeaseLost())

    async def _answer(self, told: Answer) -> Answer:
        try:
            answer = self._requests[told["do"]](told)
            return {"answer": await answer if asyncio.iscoroutine(answer) else answer}
        except Exception as error:
            return {"error": self._keeper.words(error)}

    # ---- the lease

    async def until_quiet(self, kernel_id: str) -> None:
        """Have it pass nothing on to a kernel: it has asked itself, or does when it gets this wish."""
        if kernel_id in self._is_quiet:
            return self._is_quiet.discard(kernel_id)
        await self._wish("hibernate", kernel_id)

    async def wakes(self, kernel_id: str) -> None:
        """Have it wake a kernel of its own. Raises CannotHibernate with its words."""
        await self._wish("wake", kernel_id)

    async def _wish(self, what: str, kernel_id: str) -> None:
        done = self._wishes[kernel_id] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(json.dumps({"wish": what, "kernel": kernel_id}).encode() + b"\n")
            await done
        finally:
            del self._wishes[kernel_id]

    async def until_heard(self, kernel_id: str, process: ProcessName, undelivered: Undelivered) -> None:
        """Wait until it says so."""
        heard = self._hears[kernel_id] = asyncio.get_running_loop().create_future()
        self._woken.setdefault(kernel_id, asyncio.Event()).set()
        try:
            await asyncio.wait_for(heard, HEARD_S)
        except asyncio.TimeoutError:
            pass
        finally:
            self._woken.pop(kernel_id, None)
            del self._hears[kernel_id]

    def show(self, view: Answer) -> None:
        """It asks."""

    # ---- requests

    async def _own(self, told: Answer) -> None:
        await self._keeper.update(self, told["record"], told.get("at_hub"))
        life = self._keeper.lives.get(told["record"]["kernel_id"])
        if life.state is State.GONE:
            raise ProcessLookupError(f"kernel {life.id} has ended")
        if life.kernel is not None and life.kernel.is_kept:  # the keeper before was killed
            life.kernel.take()

    async def _hand_over(self, told: Answer) -> None:
        await self._keeper.hand_over(self, told["record"], told.get("at_hub"))
        life = self._keeper.lives.get(told["record"]["kernel_id"])
        if life.is_out:
            await life.lost(self)

    async def _deliver(self, told: Answer) -> None:
        await self._keeper.release(self, told["kernel"], told["undelivered"])

    async def _adopt(self, told: Answer) -> Answer:
        offered = await self._keeper.offered(told["owner"], told.get("store", ""))
        found = []
        for each in offered["kernels"]:
            life = self._keeper.lives.find(each["record"]["kernel_id"])
            if life is not None and life.lease is None and life.state is not State.ELSEWHERE:
                life.lease = self  # its messages are taken next, once it listens itself
                await life.settled()
                found.append(_view(life))
        return {**offered, "kernels": found}

    def _take(self, told: Answer) -> Answer:
        life = self._keeper.lives.get(told["kernel"])
        if life.lease is not self or life.kernel is None:
            raise LookupError(f"kernel {life.id} is not this server's")
        return life.kernel.take().to_json()

    async def _list(self, told: Answer) -> Answer:
        listed = await self._keeper.list_all(told.get("store") or "", bool(told.get("all")))
        lives = map(self._keeper.lives.find, (each["record"]["kernel_id"] for each in listed))
        return {"kernels": [_view(life) for life in lives if life is not None]}

    async def _hibernate(self, told: Answer) -> Answer:
        life = self._keeper.lives.get(told["kernel"])
        if told.get("by_server") and isinstance(life.lease, EarlierServer):
            life.lease.is_quiet(life.id)
        await self._keeper.hibernate(told["kernel"])
        return _view(life)

    def is_quiet(self, kernel_id: str) -> None:
        """Note that it passes nothing on to a kernel."""
        wish = self._wishes.get(kernel_id)
        if wish is None:
            self._is_quiet.add(kernel_id)
        elif not wish.done():
            wish.set_result(None)

    async def _wake(self, told: Answer) -> Answer:
        kernel_id = told["kernel"]
        if not told.get("by_server"):
            await self._keeper.wake(kernel_id, told.get("store") or "")
            return _view(self._keeper.lives.get(kernel_id))
        life = self._keeper.lives.get(kernel_id)
        undelivered = Undelivered() if life.hibernated is None else life.hibernated.undelivered
        if isinstance(life.lease, EarlierServer):
            await life.lease.until_woken(life)
        else:
            await life.wake()
        return {**_view(life), "undelivered": undelivered.to_json()}

    async def until_woken(self, life: Life) -> None:
        """Have a kernel wake, and return when it is to be heard, or awake. Raises CannotWake."""
        woken = self._woken.setdefault(life.id, asyncio.Event())
        waits = asyncio.ensure_future(woken.wait())
        waking = asyncio.ensure_future(life.wake())
        waking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([waits, waking], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        if waking.done():
            self._woken.pop(life.id, None)
            waking.result()

    def _progress(self, told: Answer) -> Answer | None:
        life = self._keeper.lives.find(told["kernel"])
        if life is None or not life.is_moving:
            return None
        return {"bytes": life.written_bytes, "can_stop": life.state in (State.LEAVING, State.WAKING)}

    def _wish_done(self, told: Answer) -> None:
        wish = self._wishes.get(told["kernel"])
        if wish is None or wish.done():
            return
        if told["error"] is None:
            wish.set_result(None)
        else:
            wish.set_exception(CannotHibernate(told["error"]))

    def _heard(self, told: Answer) -> None:
        lease = self._keeper.lives.get(told["kernel"]).lease
        if isinstance(lease, EarlierServer):
            lease.hears(told["kernel"])

    def hears(self, kernel_id: str) -> None:
        """Note that its tabs hear a kernel."""
        heard = self._hears.get(kernel_id)
        if heard is not None and not heard.done():
            heard.set_result(None)


def _view(life: Life) -> Answer:
    """Return what such a server is told of a kernel: its record said where it is."""
    view = life.view()
    return {**view, "record": {**view["record"], "place": IMAGE if life.is_out else PROCESS}}

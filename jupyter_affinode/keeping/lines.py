"""A connection between the keeper and a server or command line: both ask, both answer, in any order.

Each line is a JSON object in the shape of JSON-RPC: a request has `method`, `params` and `id`, an answer `id` with
`result` or `error`, and what wants no answer has no `id`. A request that takes long holds up no other, and an answer
that comes late is that of its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

ANSWER_S = 30.0
UNREAD_BYTES_MAX = 1 << 20
AT_ONCE_MAX = 1000  # requests of one connection that are worked on

Handler = Callable[..., Any]


class HungUp(ConnectionError):
    """The other end has hung up; what it was asked may have been done."""


class Refused(RuntimeError):
    """The other end did not do it; the message says why."""


class Unanswered(OSError):
    """The other end did not answer in time."""


class Connection:
    """One end. `serve` must run for answers to come."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        words: Callable[[Exception], str],
    ):
        """`words` says to the other end, in a sentence, what an exception of a handler means."""
        self._reader, self._writer = reader, writer
        self._words = words
        # By method; each gets the parameters, and may be a coroutine function. Set before `serve`.
        self.handlers: Mapping[str, Handler] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._at_work: set[asyncio.Task[None]] = set()

    @property
    def is_closed(self) -> bool:
        """Whether one end has hung up."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def ask(self, method: str, patience_s: float | None = ANSWER_S, **params: Any) -> Any:
        """Return the answer. Raises Refused, Unanswered, and HungUp."""
        if self.is_closed:
            raise HungUp("the connection is closed")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._write({"id": number, "method": method, "params": params})
            await self._writer.drain()
            return await asyncio.wait_for(answer, patience_s)
        except asyncio.TimeoutError:
            raise Unanswered(f"no answer within {patience_s:g} s") from None
        except ConnectionError as error:
            raise HungUp(str(error)) from None
        finally:
            self._asked.pop(number, None)

    def tell(self, method: str, **params: Any) -> None:
        """Say something that wants no answer. It is written at once."""
        if not self.is_closed:
            self._write({"method": method, "params": params})

    @property
    def is_behind(self) -> bool:
        """Whether the other end has much to read yet."""
        return self._writer.transport.get_write_buffer_size() > UNREAD_BYTES_MAX

    def _write(self, told: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(told).encode() + b"\n")

    async def serve(self) -> None:
        """Take the other end's lines until one end hangs up; what it has asked for goes on."""
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
                while len(self._at_work) >= AT_ONCE_MAX:
                    await asyncio.wait(self._at_work, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            logging.getLogger(__name__).debug("a connection ends", exc_info=True)
        finally:
            self.close()

    def _take(self, told: Mapping[str, Any]) -> None:
        if "method" in told:
            task = asyncio.get_running_loop().create_task(self._answer(told))
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)
            return
        answer = self._asked.get(told["id"])
        if answer is None or answer.done():
            return  # it came late
        if "error" in told:
            answer.set_exception(Refused(told["error"]["message"]))
        else:
            answer.set_result(told["result"])

    async def _answer(self, told: Mapping[str, Any]) -> None:
        answer: dict[str, Any]
        try:
            done = self.handlers[told["method"]](**told.get("params", {}))
            answer = {"result": await done if inspect.isawaitable(done) else done}
        except Exception as error:  # what waits for the answer is told, and the connection goes on
            answer = {"error": {"message": self._words(error)}}
        if "id" in told and not self.is_closed:
            self._write({"id": told["id"], **answer})

    def close(self) -> None:
        """Hang up; requests that wait fail."""
        self._writer.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(HungUp("the other end has hung up"))
                answer.exception()  # its caller may have given up

    async def closed(self) -> None:
        """Return once the system has closed it."""
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

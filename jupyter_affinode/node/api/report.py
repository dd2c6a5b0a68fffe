"""The API's reports from the ledger, read on a thread so that a slow disk delays only the client that asked."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from typing import ClassVar

from ...threads import on_own_thread
from ..ledger.past import LONGEST_S, SHORTEST_S, Past, Window, past_json
from ..ledger.report import Question, ReportRefused, audit_rows, report
from ..ledger.writer import Ledger
from ..model.reasons import Refusal
from .errors import ApiError
from .handler import Handler, Json

READERS_MAX = 4  # at a time; of each user one, where there are several
AUDIT_ROWS, AUDIT_ROWS_MAX = 100, 1000
PARAMETERS = ("since", "until", "by", "user")


class LedgerHandler(Handler):
    """What is read from the ledger."""

    _readers: ClassVar[list[str]] = []  # users

    def ledger(self) -> Ledger:
        """Return the ledger. Raises ApiError 409."""
        ledger = self.controller.history.ledger
        if ledger is None:
            raise ApiError(409, Refusal.NO_LEDGER, "this controller keeps no history")
        return ledger

    async def read(self, answer: Callable[[], Json]) -> None:
        """Answer with what a function returns, run on a thread. Raises ApiError."""
        user, readers = self.identity.charged_user or "", LedgerHandler._readers
        is_reading = bool(user) and user in readers
        if is_reading or len(readers) >= READERS_MAX:
            whose = "you are" if is_reading else "others are"
            raise ApiError(429, Refusal.TOO_MANY_REQUESTS, f"{whose} reading a report; try again in a moment")
        readers.append(user)
        try:
            found = await on_own_thread(answer, timeout_s=None)
        except ReportRefused as refused:
            raise ApiError(409, Refusal.NO_LEDGER, str(refused)) from None
        finally:
            readers.remove(user)
        await self.finish(found)

    def only_known(self, parameters: Iterable[str]) -> None:
        """Raise ApiError 400 if the query has other parameters."""
        unknown = self.request.query_arguments.keys() - set(parameters)
        if unknown:
            raise ApiError(400, Refusal.BAD_REQUEST, f"{min(unknown)!r} is not known here")


class ReportHandler(LedgerHandler):
    """GPU memory held, used and freed; parks, waits and refusals."""

    async def get(self) -> None:
        """Serve GET /report."""
        ledger = self.ledger()
        asked = {name: self.get_query_argument(name, None) for name in PARAMETERS}
        self.only_known(PARAMETERS)
        try:
            question = Question.of(_today(), **asked, only=self.only())
        except ReportRefused as refused:
            raise ApiError(400, Refusal.BAD_REQUEST, str(refused)) from None
        await self.read(lambda: report(ledger.path, question))

    def only(self) -> str | None:
        """Return the identity whose figures the client may see; None: all."""
        return None if self.identity.is_admin else self.identity.owner


class PastHandler(LedgerHandler):
    """Where kernels' memory was in the last minutes or hours, by GPU."""

    async def get(self) -> None:
        """Serve GET /past."""
        ledger = self.ledger()
        self.only_known(("seconds",))
        text = self.get_query_argument("seconds", "3600")
        is_number = text.isascii() and text.isdecimal() and len(text) <= 5
        if not (is_number and SHORTEST_S <= int(text) <= LONGEST_S):
            raise ApiError(
                400, Refusal.BAD_REQUEST, f"seconds is a number from {SHORTEST_S:g} to {LONGEST_S:g}"
            )
        now = time.time()
        window, present = Window(now - int(text), now), self.controller.present_kernels(now)
        gpus, unwritten = self.controller.node_json(self.identity)["gpus"], ledger.unwritten()
        identity = self.identity
        await self.read(lambda: past_json(Past(ledger.path, window, unwritten, present), gpus, identity))


class AuditHandler(LedgerHandler):
    """What administrators did to other users' kernels and to the settings."""

    async def get(self) -> None:
        """Serve GET /audit."""
        self.for_admins("what administrators did", verb="see")
        ledger = self.ledger()
        text = self.get_query_argument("limit", str(AUDIT_ROWS))
        if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= AUDIT_ROWS_MAX):
            raise ApiError(400, Refusal.BAD_REQUEST, f"limit is a number from 1 to {AUDIT_ROWS_MAX}")
        limit = int(text)
        try:
            rows = await on_own_thread(lambda: audit_rows(ledger.path, limit), timeout_s=None)
        except ReportRefused as refused:
            raise ApiError(409, Refusal.NO_LEDGER, str(refused)) from None
        await self.finish({"audit": rows})


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.timezone.utc).date()

"""The API's reports from the ledger, read on a thread so that a slow disk delays only the client that asked."""

from __future__ import annotations

import datetime
from typing import ClassVar

from ...threads import on_own_thread
from ..ledger.report import Question, ReportRefused, audit_rows, report
from ..model.reasons import Refusal
from .errors import ApiError
from .handler import Handler

READERS_MAX = 4  # at a time; of each user one, where there are several
AUDIT_ROWS, AUDIT_ROWS_MAX = 100, 1000
PARAMETERS = ("since", "until", "by", "user")


class ReportHandler(Handler):
    """GPU memory held, used and freed; parks, waits and refusals."""

    _readers: ClassVar[list[str]] = []  # users

    async def get(self) -> None:
        """Serve GET /report."""
        ledger = self.controller.history.ledger
        if ledger is None:
            raise ApiError(409, Refusal.NO_LEDGER, "this controller keeps no history")
        asked = {name: self.get_query_argument(name, None) for name in PARAMETERS}
        unknown = self.request.query_arguments.keys() - set(PARAMETERS)
        if unknown:
            raise ApiError(400, Refusal.BAD_REQUEST, f"{sorted(unknown)[0]!r} is not known here")
        try:
            question = Question.of(_today(), **asked, only=self.only())
        except ReportRefused as refused:
            raise ApiError(400, Refusal.BAD_REQUEST, str(refused)) from None
        user, readers = self.identity.charged_user or "", ReportHandler._readers
        is_reading = bool(user) and user in readers
        if is_reading or len(readers) >= READERS_MAX:
            whose = "you are" if is_reading else "others are"
            raise ApiError(429, Refusal.TOO_MANY_REQUESTS, f"{whose} reading a report; try again in a moment")
        readers.append(user)
        try:
            answer = await on_own_thread(lambda: report(ledger.path, question), timeout_s=None)
        except ReportRefused as refused:
            raise ApiError(409, Refusal.NO_LEDGER, str(refused)) from None
        finally:
            readers.remove(user)
        await self.finish(answer)

    def only(self) -> str | None:
        """Return the identity whose figures the client may see; None: all."""
        return None if self.identity.is_admin else self.identity.owner


class AuditHandler(Handler):
    """What administrators did to other users' kernels and to the settings."""

    async def get(self) -> None:
        """Serve GET /audit."""
        self.for_admins("what administrators did", verb="see")
        ledger = self.controller.history.ledger
        if ledger is None:
            raise ApiError(409, Refusal.NO_LEDGER, "this controller keeps no history")
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

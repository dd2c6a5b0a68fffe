"""The API's handler of requests for room: `POST /room`."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import quote

from ...settings.rules import GRANTED
from ..identity.identity import Identity, of_granted_user, of_unix_user
from ..state.room_requests import RequestedRoom
from ..system.user_names import uid_of
from .handler import Handler

TOLD_EVERY_S = 5.0  # the line is said again, so that both ends notice when the other is gone


class RoomHandler(Handler):
    """Make room on a GPU for a kernel that is about to start."""

    async def post(self) -> None:
        """Serve POST /room."""
        body = self.body()
        size, priority, timeout_s = body["bytes"], body.get("priority"), body["timeout_s"]
        identity = self._identity_for(body.get("user"))
        request = self.controller.ask_for_room(identity, size, priority, may_raise=self.identity.is_admin)
        self.set_header("Content-Type", "application/x-ndjson")
        try:
            await self._follow_until(request, time.monotonic() + timeout_s)
        except asyncio.CancelledError:
            return  # the controller ends
        finally:
            self.controller.room_requests.withdraw(request)

    def _identity_for(self, user: str | None) -> Identity:
        """Return whose request it is: administrators may name a user, others only themselves."""
        own = self.identity
        if user is None or own.owner is None or user in (own.name, own.owner):
            return own
        self.for_admins("the user that room is asked for")
        if user.startswith(GRANTED):
            return Identity(of_granted_user(user.removeprefix(GRANTED)), user)
        uid = int(user) if user.isdigit() else uid_of(user)
        # A user that is made at the first spawn has no number yet.
        return Identity(f"name-{quote(user, safe='')}" if uid is None else of_unix_user(uid), user)

    async def _follow_until(self, request: RequestedRoom, deadline: float) -> None:
        """Send the request's status, each time that it changes, until it is answered."""
        requests = self.controller.room_requests
        while True:
            request.news.clear()
            line = requests.line(request)
            if not await self.send(json.dumps(line).encode() + b"\n") or line["state"] != "waiting":
                return
            left_s = min(deadline - time.monotonic(), TOLD_EVERY_S)
            news = asyncio.ensure_future(request.news.wait())
            ends: set[asyncio.Future[Any]] = {news, self.gone}
            await asyncio.wait(ends, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if self.gone.done() or self.identity.is_revoked:
                return
            if time.monotonic() >= deadline:
                requests.give_up(request)

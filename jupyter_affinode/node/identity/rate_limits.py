"""Rate limits: what one user may take of the controller itself, so that none can take it from the others."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

BURST_S = 8.0  # the requests of so many seconds may come at once
BYTES_A_REQUEST = 8192  # a longer answer counts as several requests: that is what making it takes
FULL_AGAIN_S = 60.0  # an account without anything open is forgotten after that; every bucket is full by then


@dataclass(frozen=True)
class Limits:
    """Limits for each user; `everyone` are for all together. Rates are a second's, bursts what may come at once."""

    links: int  # processes with a shim
    kernels: int
    clients: int  # connections of the API
    streams: int  # of these, streams of events
    messages_per_s: float  # of all their shims; some count for more, see `connection.DEAR`
    hellos_per_s: float
    requests_per_s: float  # of the API
    streams_per_s: float  # new ones
    links_everyone: int
    clients_everyone: int
    # connections from one place (a user in a container) that have not identified themselves
    unidentified: int = 16
    unidentified_everyone: int = 256


ONE_USER = Limits(
    512, 4096, 256, 256, 1e6, 1e6, 1e6, 1e6, 512, 256, unidentified=64, unidentified_everyone=64
)
MANY_USERS = Limits(
    256,
    256,
    64,
    16,
    messages_per_s=1000.0,
    hellos_per_s=50.0,
    requests_per_s=50.0,
    streams_per_s=1.0,
    links_everyone=4096,
    clients_everyone=2048,
)


class TokenBucket:
    """Lets `rate` a second through, and `burst` at once."""

    def __init__(self, rate: float, burst: float):
        self._rate, self._burst = rate, burst
        self._tokens, self._at = burst, time.monotonic()

    def take(self) -> bool:
        """Take a token; return whether there was one."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def spend(self, tokens: float) -> None:
        """Take tokens beyond the first for what passed; the bucket may go into debt."""
        self._tokens -= tokens


class Account:
    """One user's open connections, and how fast they may send."""

    def __init__(self, limits: Limits):
        self.links = self.clients = self.streams = 0
        self.messages = TokenBucket(limits.messages_per_s, 4 * limits.messages_per_s)
        self.hellos = TokenBucket(limits.hellos_per_s, limits.links)
        self.requests = TokenBucket(limits.requests_per_s, BURST_S * limits.requests_per_s)
        self.new_streams = TokenBucket(limits.streams_per_s, 2 * limits.streams)
        self.turn = asyncio.Lock()  # of a long answer one piece at a time is made
        self.used_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Return whether the user has nothing open."""
        return not (self.links or self.clients or self.streams)


class Accounts:
    """The accounts of all users, by owner.

    Bounded, since one user may have thousands of user ids (those of user namespaces): there are places for
    every user who can have something open, and as many again. Beyond that the user who asked longest ago and has
    nothing open is forgotten.
    """

    def __init__(self, limits: Limits):
        self.limits = limits
        self.places = 2 * (limits.links_everyone + limits.clients_everyone)
        self._accounts: OrderedDict[str | None, Account] = OrderedDict()  # the most recent user last

    def of(self, owner: str | None) -> Account:
        """Return a user's account; make it if there is none."""
        account = self._accounts.get(owner)
        if account is None:
            self._make_place()
            account = self._accounts[owner] = Account(self.limits)
        self._accounts.move_to_end(owner)
        account.used_at = time.monotonic()
        return account

    def __len__(self) -> int:
        return len(self._accounts)

    def _make_place(self) -> None:
        for _ in range(len(self._accounts)):
            if len(self._accounts) < self.places:
                return
            owner, account = self._accounts.popitem(last=False)
            if not account.is_idle:  # half of all at most are such; to the end
                self._accounts[owner] = account

    def tidy(self, now: float) -> None:
        """Forget users that have nothing open; called now and then, or names from grants would pile up."""
        for owner, account in list(self._accounts.items()):
            if account.is_idle and now - account.used_at > FULL_AGAIN_S:
                del self._accounts[owner]

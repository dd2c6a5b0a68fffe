"""The API's connections: the user of each, and how many each user may have."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tornado.iostream import IOStream

from ..identity.access import Access, Caller, NotAllowed
from ..identity.identity import Identity
from ..identity.rate_limits import BURST_S, Account, Accounts, TokenBucket
from ..identity.unidentified import one_too_many
from ..model.reasons import Refusal
from ..system.peer_socket import PeerSocket
from ..system.peers import Place, oldest_of_largest_user, peer_of

PLACES_REMEMBERED = 1024


class TooMuch(Exception):
    """A user has more open, or asks more often, than one may; the message says which."""


@dataclass
class Client:
    """One connection. Its user is the one that its first request names; every request names it anew."""

    caller: Caller
    peer_place: Place
    account: Account | None = None


class Clients:
    """The connections. Used by the server for each connection and by handlers for each request."""

    def __init__(self, access: Access, accounts: Accounts):
        self._access = access
        self._accounts = accounts
        self._clients: dict[IOStream, Client] = {}  # oldest first
        self._new: OrderedDict[Place, TokenBucket] = OrderedDict()  # the last that connected, last

    def may_connect(self, place: Place) -> bool:
        """Return whether a place does not connect more often than one user may ask."""
        bucket = self._new.get(place)
        if bucket is None:
            rate = self._accounts.limits.requests_per_s
            bucket = self._new[place] = TokenBucket(rate, BURST_S * rate)
            if len(self._new) > PLACES_REMEMBERED:
                self._new.popitem(last=False)
        self._new.move_to_end(place)
        return bucket.take()

    def enter(self, stream: IOStream) -> str | None:
        """Take a connection, before a byte of it is read; return why not, in words, or None."""
        limits = self._accounts.limits
        connected = stream.socket
        assert isinstance(connected, PeerSocket)
        if connected.closing.is_behind(connected.peer_place):
            return "closing what it sent takes too long"
        try:
            client = Client(self._access.recognise(connected, peer_of(connected)), connected.peer_place)
        except (NotAllowed, OSError) as refused:
            return str(refused)
        unidentified = {other: its.peer_place for other, its in self._clients.items() if its.account is None}
        goes = one_too_many(unidentified, client.peer_place, limits)
        if goes is None and len(self._clients) >= limits.clients_everyone:
            goes = oldest_of_largest_user(unidentified)
            if goes is None:
                return f"{limits.clients_everyone} clients are connected already"
        if goes is not None:
            self._close(goes)
        self._clients[stream] = client
        return None

    def introduce(self, stream: IOStream, grant: str | None) -> Identity:
        """Return the user that asks, at the beginning of each request. Raises NotAllowed and TooMuch."""
        client = self._clients.get(stream)
        if client is None:
            raise NotAllowed(Refusal.GONE, "the connection is closed")
        identity = self._access.identify(client.caller, grant)
        account = self._accounts.of(identity.charged_user)
        if not account.requests.take():
            raise TooMuch("you ask more often than one user may; wait a second")
        if client.account is not account:
            if account.clients >= self._accounts.limits.clients and not identity.is_admin:
                raise TooMuch(f"you have {account.clients} connections open already")
            if client.account is not None:
                client.account.clients -= 1
            client.account = account
            account.clients += 1
        return identity

    def pid_of(self, stream: IOStream | None) -> int:
        """Return the process behind a connection; 0 if it is gone or cannot be seen."""
        client = None if stream is None else self._clients.get(stream)
        return 0 if client is None else client.caller.peer.pid

    def leave(self, stream: IOStream) -> None:
        """Forget a connection that ended."""
        client = self._clients.pop(stream, None)
        if client is not None and client.account is not None:
            client.account.clients -= 1

    def _close(self, stream: IOStream) -> None:
        self.leave(stream)
        stream.close()

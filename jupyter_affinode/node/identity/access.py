"""Access: which users may connect, the controller's own alone or every user of the machine."""

from __future__ import annotations

import grp
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from ...settings.controller import ControllerSettings
from ...settings.rules import GRANTED
from ..model.reasons import Refusal
from ..system.peers import Peer, groups_of, is_beside_us
from ..system.subuid import SubordinateIds
from ..system.user_names import name_of
from .grants import GrantExpired, GrantRefused, GrantsUnavailable, GrantVerifier
from .identity import OWN_USER, Identity, of_granted_user, of_unix_user
from .rate_limits import MANY_USERS, ONE_USER, Limits

WasLetIn = Callable[[str], bool]


def never(owner: str) -> bool:
    """Return False: no user was admitted before."""
    return False


class NoSuchGroup(ValueError):
    """The group of administrators does not exist here."""


class NotAllowed(Exception):
    """A peer may not connect, or not do this; `slug` is for programs, the message for users."""

    def __init__(self, slug: Refusal, message: str):
        super().__init__(message)
        self.slug = slug


@dataclass(frozen=True)
class Caller:
    """The peer, as it was when it connected."""

    peer: Peer
    is_admin: bool = False  # by user id or group; a grant takes its place


class Access(Protocol):
    """Decides which user a connection belongs to."""

    limits: Limits
    is_shared: bool  # whether there are other users here
    socket_mode: int

    def recognise(self, connected: socket.socket, peer: Peer) -> Caller:
        """Return what is known of the peer before a byte is read. Raises NotAllowed."""

    def identify(self, caller: Caller, grant: str | None, *, was_let_in: WasLetIn = never) -> Identity:
        """Return the caller's identity, by its grant if there is one. Raises NotAllowed.

        `was_let_in(owner)` returns whether an earlier grant of that owner's admitted this process.
        """

    def identify_administrator(self, grant: str | None, audience: str) -> Identity:
        """Return the administrator that a grant names, for a request over the network. Raises NotAllowed."""


class OwnUserAccess:
    """One user's controller: that user and root alone may enter, and both may do everything."""

    limits = ONE_USER
    is_shared = False
    socket_mode = 0o600

    def recognise(self, connected: socket.socket, peer: Peer) -> Caller:
        """Return the caller if it is the controller's own user or root. Raises NotAllowed."""
        if not peer.is_own_user:
            raise NotAllowed(Refusal.FORBIDDEN, f"it belongs to user {peer.uid}")
        return Caller(peer, is_admin=True)

    def identify(self, caller: Caller, grant: str | None, *, was_let_in: WasLetIn = never) -> Identity:
        """Return the own user's identity; grants mean nothing here."""
        return OWN_USER

    def identify_administrator(self, grant: str | None, audience: str) -> Identity:
        """Refuse: this controller has no administrators. Raises NotAllowed."""
        raise NotAllowed(Refusal.FORBIDDEN, "this controller has no administrators")


class EveryUserAccess:
    """A system controller's access: each user has their own kernels.

    A valid grant names the user. Without one it is the Unix user, unless grants are required (where containers share
    user ids). A bad grant is always refused. An expired one is good for a process that was admitted before, so that
    neither a pause nor the controller's end strands what it has parked. Root and the admin group's members are admins
    if they are outside of containers: inside one, a user id or group is what its image says.
    """

    is_shared = True
    socket_mode = 0o666

    def __init__(
        self,
        *,
        admin_group: str = "",
        grants: GrantVerifier | None = None,
        require_grants: bool = False,
        limits: Limits = MANY_USERS,
        subordinate_ids: SubordinateIds | None = None,
    ):
        """Prepare. A number as `admin_group` is taken as a group id. Raises NoSuchGroup."""
        self._subordinate_ids = subordinate_ids or SubordinateIds()
        self.limits = limits
        self._admin_gid = _gid(admin_group) if admin_group else None
        self._grants = grants
        self._require_grants = require_grants

    def recognise(self, connected: socket.socket, peer: Peer) -> Caller:
        """Return the caller; every peer may connect."""
        may_be = peer.uid == 0 or (
            self._admin_gid is not None and self._admin_gid in groups_of(connected, peer)
        )
        return Caller(peer, is_admin=may_be and is_beside_us(connected, peer))

    def identify(self, caller: Caller, grant: str | None, *, was_let_in: WasLetIn = never) -> Identity:
        """Return the caller's identity, by its grant or its Unix user. Raises NotAllowed."""
        uid = caller.peer.uid
        if grant and self._grants is not None:
            grants = self._grants
            try:
                claims = grants.verify(grant, uid)
            except GrantExpired as expired:
                if not was_let_in(of_granted_user(expired.claims.user)):
                    raise NotAllowed(Refusal.BAD_GRANT, str(expired)) from None
                claims = expired.claims
            except GrantRefused as refused:
                raise NotAllowed(Refusal.BAD_GRANT, str(refused)) from None
            return Identity(
                of_granted_user(claims.user),
                GRANTED + claims.user,
                server=claims.server,
                priority=claims.priority,
                caps=claims.caps,
                groups=tuple(GRANTED + group for group in claims.groups),
                account=claims.account,
                job=claims.job,
                granted_at=claims.issued_at,
                key_is_known=partial(grants.still_has, claims.kid, claims.key),
            )
        if self._require_grants and not caller.is_admin:
            raise NotAllowed(
                Refusal.GRANT_REQUIRED, "this machine's controller asks for a grant, and there is none"
            )
        owner = self._subordinate_ids.owner_of(uid)
        return Identity(
            of_unix_user(uid),
            name_of(owner),
            is_admin=caller.is_admin,
            counts_for=None if owner == uid else of_unix_user(owner),
        )

    def identify_administrator(self, grant: str | None, audience: str) -> Identity:
        """Return the administrator that a grant names. Raises NotAllowed."""
        if not grant or self._grants is None:
            raise NotAllowed(Refusal.GRANT_REQUIRED, "this asks for a grant of an administrator")
        try:
            claims = self._grants.verify_administrator(grant, audience)
        except GrantRefused as refused:
            raise NotAllowed(Refusal.BAD_GRANT, str(refused)) from None
        return Identity(of_granted_user(claims.user), GRANTED + claims.user, is_admin=True)


def access_for(settings: ControllerSettings) -> Access:
    """Return the access that these settings ask for. Raises GrantsUnavailable and NoSuchGroup."""
    if not settings.system:
        if settings.api_port:
            raise GrantsUnavailable("api_port is for the controller of all users: --system")
        return OwnUserAccess()
    grants = None
    if settings.grant_keys:
        grants = GrantVerifier(Path(settings.grant_keys), settings.grant_audiences)
    if settings.require_grants and grants is None:
        raise GrantsUnavailable("require_grants needs grant_keys, the folder with the keys to check them")
    if settings.api_port and grants is None:
        raise GrantsUnavailable("api_port needs grant_keys, the folder with the keys to check administrators")
    return EveryUserAccess(
        admin_group=settings.admin_group, grants=grants, require_grants=settings.require_grants
    )


def _gid(group: str) -> int:
    if group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise NoSuchGroup(f"there is no group {group!r} for admin_group") from None

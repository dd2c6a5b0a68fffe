"""Identities: which user a connection belongs to, and which kernels that user may see and move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote


@dataclass(frozen=True)
class Identity:
    """A user, as a connection proved it to be.

    `owner` goes before the ids of a user's kernels, so that no user can name, guess or take another's. It is
    None on a controller that serves one user: all peers are that user.
    """

    owner: str | None
    name: str | None = None  # for users, and for rules that name users (rules.py)
    is_admin: bool = False
    server: str | None = None
    priority: int = 0
    caps: Mapping[str, float] = field(default_factory=dict)
    groups: tuple[str, ...] = ()  # of the grant, as rules name them
    account: str = ""  # … and of a batch system, "" without one, as is …
    job: str = ""
    # when the grant was signed, in seconds since the epoch; None: there is none
    granted_at: float | None = None
    counts_for: str | None = None  # whose limits it takes of; None: the owner's own
    # the one that signed the grant
    key_is_known: Callable[[], bool] | None = field(default=None, compare=False)

    @property
    def is_revoked(self) -> bool:
        """Return whether the key that signed its grant was removed. Expiry ends no open connection."""
        return self.key_is_known is not None and not self.key_is_known()

    @property
    def charged_user(self) -> str | None:
        """Return the user whose limits its use counts in."""
        return self.owner if self.counts_for is None else self.counts_for

    @property
    def origin(self) -> str:
        """Return the user and the user's server, where a process cannot be told from others by its pid."""
        return f"{self.owner or ''}/{self.server or ''}"

    def scoped(self, kernel_id: str) -> str:
        """Return the id under which this controller knows the user's kernel `kernel_id`."""
        return kernel_id if self.owner is None else f"{self.owner}/{kernel_id}"

    def sees(self, owner: str | None) -> bool:
        """Return whether the user may see and move that owner's kernels."""
        return self.is_admin or owner == self.owner

    def shown_id(self, kernel_id: str, owner: str | None) -> str:
        """Return a kernel's id as the user knows it: their own without their name, others' (for admins) whole."""
        if self.owner is None or owner != self.owner:
            return kernel_id
        return kernel_id[len(self.owner) + 1 :]


def of_unix_user(uid: int) -> str:
    """Return the owner name of a Unix user."""
    return f"uid-{uid}"


def of_granted_user(name: str) -> str:
    """Return the owner name of a user named by grants; it never equals a Unix user's."""
    return f"user-{quote(name, safe='@')}"


OWN_USER = Identity(None, is_admin=True)  # where one user's controller serves that user and root

"""Signs grants, by which a machine's controller knows which user of the Hub a server belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_affinode.client.grant_signing import sign_grant

DAY_S = 86400.0


def hub_groups(spawner: Any) -> list[str]:
    """Return the names of the groups that the Hub has for the server's user."""
    return [group.name for group in spawner.user.groups]


def sign(
    key: Path,
    audience: str | Sequence[str],
    *,
    user: str,
    server: str = "",
    groups: Sequence[str] = (),
    priority: int = 0,
    lifetime_s: float = DAY_S,
    is_administrator: bool = False,
) -> str:
    """Return a grant for a server of the Hub's user, or for one request of an administrator's.

    Raises CannotSign and OSError.

    `key` is the file of the private key, read each time, so that it can be changed; its name without `.key` is the
    key's name on the nodes. `audience` is the site's name for its controllers.
    """
    return sign_grant(
        key.read_bytes(),
        key.stem,
        user=user,
        audience=audience,
        lifetime_s=lifetime_s,
        server=server or None,
        priority=priority,
        groups=groups,
        is_administrator=is_administrator,
    )

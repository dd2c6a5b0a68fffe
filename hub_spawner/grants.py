"""Signs grants, by which a machine's controller knows which user of the Hub a server belongs to.

A server gets a new grant for its own token: the Hub says which user the token is of, and the token, which server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_affinode.client.grant_signing import sign_grant

DAY_S = 86400.0


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


class GrantNotGiven(Exception):
    """The token is not one of a server; the message says so."""


def grant_for(model: Mapping[str, Any], key: str, audience: Sequence[str], lifetime_s: float) -> str:
    """Return a grant for a server. `model`: how the Hub describes its token.

    Raises GrantNotGiven, and OSError where the key cannot be read.
    """
    server = server_of(model)
    groups = list(model.get("groups", ()))
    return sign(
        Path(key), list(audience), user=model["name"], server=server, groups=groups, lifetime_s=lifetime_s
    )


def server_of(model: Mapping[str, Any]) -> str:
    """Return the name of the server that the token was made for; "" is the user's default one. Raises GrantNotGiven."""
    if model.get("kind") != "user":
        raise GrantNotGiven("grants are for users' servers")
    own = f"access:servers!server={model['name']}/"  # one that is shared with the user is another user's
    for scope in model.get("scopes", ()):
        if scope.startswith(own):
            return str(scope.removeprefix(own))
    raise GrantNotGiven("grants are for servers, by their own tokens")

"""New grants for servers that run: the Hub says whose token it is, and the token says which server's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..grants import sign


class GrantNotGiven(Exception):
    """The token is not one of a server; the message says so."""


def grant_for(model: Mapping[str, Any], key: str, audience: Sequence[str], lifetime_s: float) -> str:
    """Return a grant for the server whose token the Hub described by `model`.

    Raises GrantNotGiven, and OSError where the key cannot be read.
    """
    server = server_of(model)
    groups = list(model.get("groups", ()))
    return sign(
        Path(key), list(audience), user=model["name"], server=server, groups=groups, lifetime_s=lifetime_s
    )


def server_of(model: Mapping[str, Any]) -> str:
    """Return the name of the server whose own token it is; "" is the user's default server. Raises GrantNotGiven."""
    if model.get("kind") != "user":
        raise GrantNotGiven("grants are for users' servers")
    own = f"access:servers!server={model['name']}/"  # one that is shared with the user is another user's
    for scope in model.get("scopes", ()):
        if scope.startswith(own):
            return str(scope.removeprefix(own))
    raise GrantNotGiven("grants are for servers, by their own tokens")

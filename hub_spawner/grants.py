"""Signs grants, by which a machine's controller knows which user of the Hub a server belongs to.

A server gets a new grant for its own token and its last grant: the Hub says which user the token is of, the token,
which server, and the last grant, what the spawner decided for that server.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_affinode import private_folders
from jupyter_affinode.client.grant_signing import ALGORITHM, GRANT_BYTES_MAX, sign_grant
from jupyter_affinode.node.identity.grants import Claims, GrantRefused, parse_claims

DAY_S = 86400.0
KEY_BYTES_MAX = 1 << 16
TOKEN = "token"  # the claim that binds a grant to the server that it was made for
# claims that the spawner, or a batch system, alone decides
CARRIED_OVER = ("priority", "caps", "uid", "account", "job", TOKEN)


def sign(
    key: Path,
    audience: str | Sequence[str],
    *,
    user: str,
    server: str = "",
    groups: Sequence[str] = (),
    priority: int = 0,
    token: str = "",
    lifetime_s: float = DAY_S,
    is_administrator: bool = False,
) -> str:
    """Return a grant for a server of the Hub's user, or for one request of an administrator's.

    Raises CannotSign and OSError.

    `key` is the file of the private key, read each time, so that it can be changed; its name without `.key` is the
    key's name on the nodes. `audience` is the site's name for its controllers. `token` is the server's own: the grant
    can be renewed by that alone, and after its end, too.
    """
    return sign_grant(
        private_folders.read_file(key, KEY_BYTES_MAX),
        key.stem,
        user=user,
        audience=audience,
        lifetime_s=lifetime_s,
        server=server or None,
        priority=priority,
        groups=groups,
        is_administrator=is_administrator,
        token=digest(token) if token else None,
    )


def digest(token: str) -> str:
    """Return what a grant says of a server's token, which cannot be computed from it."""
    return hashlib.sha256(token.encode()).hexdigest()


class GrantNotGiven(Exception):
    """The token is not one of a server, or no grant of that server came with it; the message says which."""


def renewed(
    last: str, token: str, model: Mapping[str, Any], key: Path, audience: Sequence[str], lifetime_s: float
) -> str:
    """Return a new grant for a server that shows its last one. `model`: how the Hub describes its token.

    The user, groups and server are as the Hub says now; what the spawner decided is as in the last grant. Raises
    GrantNotGiven and CannotSign, and OSError where the key cannot be read.
    """
    server = server_of(model)
    claims, raw = _verified(last, key)
    if claims.is_administrator or (claims.user, claims.server or "") != (model["name"], server):
        raise GrantNotGiven("the last grant is of another server than the token")
    bound_to = raw.get(TOKEN)
    if bound_to not in (None, digest(token)):
        raise GrantNotGiven("the last grant is of another start of this server: start it again")
    if bound_to is None and claims.expires_at < time.time():
        raise GrantNotGiven("the last grant has expired, and names no token: start the server again")
    return sign_grant(
        private_folders.read_file(key, KEY_BYTES_MAX),
        key.stem,
        user=claims.user,
        audience=list(audience) or raw["aud"],
        lifetime_s=lifetime_s,
        server=claims.server,
        groups=list(model.get("groups", ())),
        **{name: raw[name] for name in CARRIED_OVER if name in raw},
    )


def _verified(grant: str, key: Path) -> tuple[Claims, dict[str, Any]]:
    """Return the claims of a grant that this key signed, or one that lies beside it. Raises GrantNotGiven, OSError."""
    import jwt

    options: Any = {
        "require": ["sub", "aud", "iat", "exp"],
        **dict.fromkeys(("verify_exp", "verify_iat", "verify_aud"), False),
    }
    try:
        if len(grant) > GRANT_BYTES_MAX:
            raise ValueError("it is too long")
        name = jwt.get_unverified_header(grant)["kid"]
        raw: dict[str, Any] = jwt.decode(
            grant, _public_key(key, name), algorithms=[ALGORITHM], options=options
        )
        return parse_claims(raw, raw.get("uid"), b"", name), raw
    except (jwt.PyJWTError, GrantRefused, LookupError, ValueError, TypeError, RecursionError) as error:
        raise GrantNotGiven(f"the last grant is not valid: {error}") from None


def _public_key(key: Path, name: str) -> Any:
    """Return the public key of that name: this key's, or one beside it, as of a key that it has replaced. Raises
    OSError, ValueError and TypeError.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    if name == key.stem:
        return load_pem_private_key(private_folders.read_file(key, KEY_BYTES_MAX), None).public_key()
    beside = {path.stem: path for path in key.parent.glob("*.pem")}
    if name not in beside:
        raise ValueError("it is signed with a key that is not known here")
    return load_pem_public_key(private_folders.read_file(beside[name], KEY_BYTES_MAX))


def server_of(model: Mapping[str, Any]) -> str:
    """Return the name of the server that the token was made for; "" is the user's default one. Raises GrantNotGiven."""
    if model.get("kind") != "user":
        raise GrantNotGiven("grants are for users' servers")
    own = f"access:servers!server={model['name']}/"  # one that is shared with the user is another user's
    for scope in model.get("scopes", ()):
        if scope.startswith(own):
            return str(scope.removeprefix(own))
    raise GrantNotGiven("grants are for servers, by their own tokens")

"""Grants: short-lived signed statements of a process's user, for machines where a user id says nothing.

A grant is a JSON Web Token (RFC 7519) signed with Ed25519 (RFC 8037), made by
`jupyter_affinode.client.grant_signing` on the Hub's side. Here are only public keys, found by the token's `kid`
(RFC 7515): the file `<kid>.pem` or any key of a `*.json` file, a JSON Web Key Set (RFC 7517), in one folder. To
change keys, put the new one beside the old,
sign with the new, and remove the old when its last grant has expired; the folder is looked at again by itself. What
a removed key has signed is good no longer, for connections that are open, too.

Expiry says until when a grant lets new processes and requests in. It ends no connection, and a process that was let in
connects again with what it has: see `access.EveryUserAccess`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import private_folders

ALGORITHM = "EdDSA"
LEEWAY_S = 30.0  # two machines' clocks may differ by this
LOOK_AGAIN_S = 1.0
KEY_FILE_BYTES_MAX = 1 << 20
NAME_MAX = 255
PRIORITY_MAX = 1000
CAPS_MAX = 16
# an administrator's grant crosses a network, so it is made anew for each request
ADMINISTRATORS_S_MAX = 120.0
GROUPS_MAX = 256
TIME_MAX_S = 1 << 53  # a larger number is no exact one any more
CAP_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class GrantRefused(Exception):
    """A grant that is invalid, for another controller or out of date; the message says which."""


class GrantExpired(GrantRefused):
    """A grant that was valid and has expired; it has `claims`."""

    def __init__(self, claims: Claims):
        super().__init__("its grant has expired; shims and servers read a newer one from AFFINODE_GRANT_FILE")
        self.claims = claims


class GrantsUnavailable(Exception):
    """Grants cannot be checked here; the message says what to do."""


@dataclass(frozen=True)
class Claims:
    """The claims of a valid grant."""

    user: str
    server: str | None
    priority: int
    caps: Mapping[str, float]
    groups: tuple[str, ...]
    issued_at: float  # seconds since the epoch
    expires_at: float
    key: bytes  # the public one that it is signed with …
    kid: str  # … and its name
    is_administrator: bool = False
    account: str = ""  # of a batch system, as is …
    job: str = ""


class GrantVerifier:
    """Checks grants with the keys of one folder."""

    def __init__(self, folder: Path, audiences: Sequence[str]):
        """Read the keys. `audiences` are this controller's names; a grant must be for one. Raises GrantsUnavailable."""
        try:
            import jwt
        except ImportError:
            raise GrantsUnavailable("grants need PyJWT: pip install 'jupyter-affinode[grants]'") from None
        if not audiences:
            raise GrantsUnavailable("grants need a name of this controller that they are for")
        self._jwt = jwt
        self._folder = folder
        self._audiences = list(audiences)
        self._keys: dict[str, Any] = {}
        self._seen: object = None
        self._looked_at = -math.inf
        self._read_keys()
        if not self._keys:
            raise GrantsUnavailable(f"there is no public key in {folder}")

    def verify(self, grant: str, uid: int) -> Claims:
        """Return the claims of a grant presented by a process of user id `uid`. Raises GrantExpired and
        GrantRefused.
        """
        try:
            claims = self._verify(grant, uid, self._audiences)
        except self._jwt.ExpiredSignatureError:
            raise GrantExpired(self._verify(grant, uid, self._audiences, verify_exp=False)) from None
        if claims.is_administrator:
            raise GrantRefused("its grant is for an administrator's requests over the network alone")
        return claims

    def verify_administrator(self, grant: str, audience: str) -> Claims:
        """Return the claims of an administrator's grant that came with a request for `audience`. Raises
        GrantRefused.
        """
        try:
            claims = self._verify(grant, None, [audience], require_short=True)
        except self._jwt.ExpiredSignatureError:
            raise GrantRefused("its grant has expired") from None
        if not claims.is_administrator:
            raise GrantRefused("its grant is no administrator's")
        return claims

    def _verify(
        self,
        grant: str,
        uid: int | None,
        audiences: Sequence[str],
        *,
        require_short: bool = False,
        **options: bool,
    ) -> Claims:
        """Return the claims. Raises GrantRefused, and PyJWT's error for an expired grant."""
        jwt = self._jwt
        try:
            header = jwt.get_unverified_header(grant)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise GrantRefused("its grant is no signed token") from None
        if header.get("alg") != ALGORITHM:
            raise GrantRefused(f"its grant is not signed with {ALGORITHM}")
        key = self._key(header.get("kid"))
        try:
            claims = jwt.decode(
                grant,
                key,
                algorithms=[ALGORITHM],
                audience=audiences,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "aud", "sub"], **options},
            )
        except jwt.ExpiredSignatureError:
            raise
        except jwt.InvalidAudienceError:
            raise GrantRefused("its grant is for another controller") from None
        except jwt.ImmatureSignatureError:
            raise GrantRefused("its grant is not valid yet") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise GrantRefused(f"its grant is not valid: {error}") from None
        found = parse_claims(claims, uid, _bytes_of(key), header["kid"])
        if require_short and found.expires_at - found.issued_at > ADMINISTRATORS_S_MAX:
            raise GrantRefused(f"its grant is good for more than {ADMINISTRATORS_S_MAX:g} s")
        return found

    def still_has(self, kid: str, key: bytes) -> bool:
        """Return whether grants of that key are valid: removing a key ends all that it signed, at once."""
        self._look_again()
        known = self._keys.get(kid)
        return known is not None and _bytes_of(known) == key

    def _look_again(self) -> None:
        if time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
            self._read_keys()

    def _key(self, kid: object) -> Any:
        if not isinstance(kid, str):
            raise GrantRefused("its grant does not name its key")
        self._look_again()
        key = self._keys.get(kid)
        if key is None:
            raise GrantRefused(f"its grant is signed with a key that is not known here, {kid[:64]!r}")
        return key

    def _read_keys(self) -> None:
        """Read the folder again if anything in it changed."""
        self._looked_at = time.monotonic()
        try:
            files = sorted(path for path in self._folder.iterdir() if path.suffix in (".pem", ".json"))
            seen = [(path, *_identity(path)) for path in files]
            if seen == self._seen:
                return
            private_folders.verify_folder(self._folder, private_folders.KEYS)
            keys: dict[str, Any] = {}
            for path in files:
                keys.update(self._read(path))
        except Exception as error:  # the libraries raise anything over a file that is no key
            if self._seen is None:
                raise GrantsUnavailable(f"the keys in {self._folder} cannot be read: {error}") from None
            return  # half written, perhaps: the old ones are good until the folder can be read again
        self._keys, self._seen = keys, seen

    def _read(self, path: Path) -> dict[str, Any]:
        text = private_folders.read_file(path, KEY_FILE_BYTES_MAX)
        if path.suffix == ".json":
            keys = self._jwt.PyJWKSet.from_json(text.decode()).keys
            found = {key.key_id: key.key for key in keys if key.key_id}
        else:
            from cryptography.hazmat.primitives.serialization import load_pem_public_key

            found = {path.stem: load_pem_public_key(text)}
        return {kid: key for kid, key in found.items() if _is_public_ed25519(key)}


def parse_claims(claims: Mapping[str, Any], uid: int | None, key: bytes, kid: str) -> Claims:
    """Return the claims in our types. Raises GrantRefused if one is malformed: a signature says nothing of types."""
    user, server = claims["sub"], claims.get("server")
    priority, caps, groups = claims.get("priority", 0), claims.get("caps", {}), claims.get("groups", [])
    own_uid = claims.get("uid")
    if own_uid is not None and (isinstance(own_uid, bool) or own_uid != uid):
        raise GrantRefused(f"its grant is for a process of another user id than {uid}")
    account, job = claims.get("account") or "", claims.get("job") or ""
    for what, text in (("user", user), ("server", server or ""), ("account", account), ("job", job)):
        if text and not _is_name(text):
            raise GrantRefused(f"the {what} in its grant is no name")
    if not user:
        raise GrantRefused("its grant names no user")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise GrantRefused(f"the priority in its grant is no whole number up to {PRIORITY_MAX}")
    if not isinstance(caps, dict) or len(caps) > CAPS_MAX or not all(map(_is_cap, caps.items())):
        raise GrantRefused("the caps in its grant are no limits by name")
    if not isinstance(groups, list) or len(groups) > GROUPS_MAX or not all(map(_is_name, groups)):
        raise GrantRefused(f"the groups in its grant are no list of at most {GROUPS_MAX} names")
    if not all(map(_is_time, (claims["iat"], claims["exp"]))):
        raise GrantRefused("the times in its grant are no numbers")
    return Claims(
        user,
        server or None,
        priority,
        dict(caps),
        tuple(groups),
        float(claims["iat"]),
        float(claims["exp"]),
        key,
        kid,
        is_administrator=claims.get("admin") is True,
        account=account,
        job=job,
    )


def _is_name(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= NAME_MAX and text.isprintable()


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < TIME_MAX_S


def _is_cap(cap: tuple[str, object]) -> bool:
    name, value = cap
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return CAP_NAME.fullmatch(name) is not None and 0 <= value < 1 << 62


def _bytes_of(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw: bytes = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return raw


def _is_public_ed25519(key: object) -> bool:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return isinstance(key, Ed25519PublicKey)


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size

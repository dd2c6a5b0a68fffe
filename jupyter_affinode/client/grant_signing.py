"""Signs grants: short-lived statements of a process's user, for machines on which a user id says nothing.

Used on the Hub's side (`jupyter affinode grant`, a spawner's hook); the node's side, which checks them and has
only public keys, is `node/identity/grants.py`, where the claims are described. Needs the extra `grants`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ALGORITHM = "EdDSA"
LIFETIME_S = 3600.0
GRANT_BYTES_MAX = 4096  # as protocol.h says: AFFINODE_GRANT_SIZE


class CannotSign(Exception):
    """The key is missing or not valid; the message says what to do."""


def sign_grant(
    key: bytes,
    kid: str,
    *,
    user: str,
    audience: str | Sequence[str],
    lifetime_s: float = LIFETIME_S,
    server: str | None = None,
    priority: int = 0,
    caps: Mapping[str, float] | None = None,
    groups: Sequence[str] = (),
    uid: int | None = None,
    is_administrator: bool = False,
    token: str | None = None,
    account: str | None = None,
    job: str | None = None,
) -> str:
    """Return a grant that says: the process that shows this belongs to `user`.

    `key` is an Ed25519 private key (PEM), `kid` its name on the nodes. `audience` are the names of the controllers
    that it is for (`NodeController.grant_audiences`). `server` names one of the user's servers. Higher
    `priority` goes first in the queue; `caps` are limits by name, for the node's policy
    (`gpu_bytes`: GPU memory on all GPUs together). Rules know the `groups` as `hub:NAME`. With `uid` it is good for
    processes of that user id alone. With `is_administrator` it lets no process in: it is for one request over the
    network (`NodeController.api_port`) that sees or moves all users' kernels. `token` is the digest of the server's
    token, for the Hub's service that renews the grant; controllers ignore it. `account` and `job`
    are of a batch system: reports are by them, too. Any program that has a grant can use
    it until it expires, so let it live about as long as it takes to renew it. Raises CannotSign.
    """
    jwt = _jwt()
    now = int(time.time())
    claims: dict[str, Any] = {
        "sub": user,
        "aud": [audience] if isinstance(audience, str) else list(audience),
        "iat": now,
        "exp": now + int(lifetime_s),
        "priority": priority,
    }
    optional = {
        "server": server,
        "caps": dict(caps or {}) or None,
        "groups": list(groups) or None,
        "uid": uid,
        "admin": is_administrator or None,
        "token": token,
        "account": account,
        "job": job,
    }
    claims.update({name: value for name, value in optional.items() if value is not None})
    try:
        grant: str = jwt.encode(claims, key, algorithm=ALGORITHM, headers={"kid": kid})
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise CannotSign(f"that is no Ed25519 private key: {error}") from None
    if len(grant) > GRANT_BYTES_MAX:
        raise CannotSign(
            f"it would have {len(grant)} bytes, at most {GRANT_BYTES_MAX} pass: name fewer groups"
        )
    return grant


def make_keys() -> tuple[bytes, bytes]:
    """Return a new pair (PEM): the private key for the signer and the public key for the nodes."""
    _jwt()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    return (
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


def write_grant(path: Path, grant: str) -> None:
    """Write a grant to the file that AFFINODE_GRANT_FILE names, atomically: a reader sees the old grant or the new one.

    Only the owner may read the file; a file that replaces another keeps its owner. Links in the folder are not
    followed. Raises OSError, and leaves the old file as it was.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fresh = f".{path.name[:200]}.{secrets.token_hex(16)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600, dir_fd=folder), "w") as file:
            try:
                _keep_owner(file.fileno(), path.name, folder)
                file.write(grant + "\n")
                file.flush()
                os.fsync(file.fileno())
                os.rename(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(fresh, dir_fd=folder)
                raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _keep_owner(descriptor: int, replaces: str, folder: int) -> None:
    """Give a file to the owner of the regular file that it replaces."""
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(replaces, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(old.st_mode) and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, old.st_uid, old.st_gid)


def _jwt() -> Any:
    try:
        import jwt
    except ImportError:
        raise CannotSign("grants need PyJWT: pip install 'jupyter-affinode[grants]'") from None
    return jwt

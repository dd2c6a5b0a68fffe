"""The key that signs a user's images, and their signatures."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from .. import environment
from .disk import sync

KEY_NAME, KEY_BYTES = "image.key", 32


def signature_of(told: dict[str, Any]) -> str:
    """Return the signature of a manifest. Raises OSError if there is no key."""
    text = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(_key(), text, hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Return the user's key, which is made at its first use. Raises OSError."""
    folder = environment.key_folder()
    environment.make_folder(folder, "XDG_STATE_HOME")
    path = folder / KEY_NAME
    if not path.exists():
        _make(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        key = file.read(KEY_BYTES + 1)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077 or len(key) != KEY_BYTES:
        raise PermissionError(
            f"{path} is not a key that only you can read: images cannot be signed, or compared"
        )
    return key


def _make(path: Path) -> None:
    descriptor, partial = tempfile.mkstemp(
        prefix=f".{KEY_NAME}.", dir=path.parent
    )  # several may make it at once
    with open(descriptor, "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)  # the first one stays
    finally:
        os.unlink(partial)
    sync(path.parent.resolve())  # what is signed with it would be refused if it were lost

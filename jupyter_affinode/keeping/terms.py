"""A hibernated kernel's record, in a file of its image: what its server changes meanwhile, as its notebook's path.

The manifest is written once, with the image. These terms are written again at each change, and signed as it is: they
say what a server starts if it restarts the kernel.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from ..hibernation.image import Image, ImageRefused
from ..hibernation.signing import signature_of
from .records import Record, from_json, to_json

NAME = "terms.json"
BYTES_MAX = 64 << 20


def write_terms(folder: Path, record: Record) -> None:
    """Write a record into an image's folder, whole or not at all. Raises OSError."""
    told = {"record": to_json(record)}
    descriptor, partial = tempfile.mkstemp(dir=folder, prefix=f".{NAME}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({**told, "signature": signature_of(told)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, folder / NAME)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def terms_of(image: Image) -> Record:
    """Return the record that lies in an image. Raises ImageRefused.

    Images of the release before had it in their manifest.
    """
    try:
        told = _read(image.folder / NAME)
    except FileNotFoundError:
        told = {"record": image.manifest().record}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ImageRefused("its terms cannot be read") from None
    try:
        return from_json(told["record"])
    except (ValueError, LookupError):
        raise ImageRefused("its terms are of another release") from None


def _read(path: Path) -> dict[str, Any]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > BYTES_MAX:
            raise OSError(f"{path} is no file that this user's keeper wrote")
        told: dict[str, Any] = json.loads(file.read(BYTES_MAX))
    signature = told.pop("signature")
    if not hmac.compare_digest(signature, signature_of(told)):
        raise ImageRefused("its terms were changed, or another user made them")
    return told

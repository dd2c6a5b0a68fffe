"""What can go wrong between a program and the controller, and an answer's error in words."""

from __future__ import annotations

import contextlib
import json
import os


class ControllerUnavailable(Exception):
    """No controller answers; the message says what was tried."""


class ControllerRefused(Exception):
    """The controller answered and refused."""

    def __init__(self, status: int, slug: str, message: str):
        super().__init__(message)
        self.status = status  # of HTTP
        self.slug = slug  # for programs: "busy", "held", "no-host-memory", …
        self.message = message  # for users


def refusal_advice(slug: str) -> str:
    """Return what a user can do about a refusal, by its `slug`; "" where the refusal says that itself."""
    if slug in ("bad-grant", "grant-required"):
        return (
            "The Hub that started this server gives it its grant: stop the server there and start it again."
        )
    return ""


def refusal(status: int, raw: bytes) -> ControllerRefused:
    """Return what an answer of 400 and more says."""
    answer = None
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(raw)
    said = answer if isinstance(answer, dict) else {}
    return ControllerRefused(
        status, str(said.get("error", "failed")), str(said.get("message", f"status {status}"))
    )


def why(error: BaseException) -> str:
    """Return an error in words."""
    return (
        os.strerror(error.errno)
        if isinstance(error, OSError) and error.errno
        else (str(error) or "timed out")
    )

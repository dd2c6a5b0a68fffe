"""What a program that renews a grant reads of it, unverified: only controllers can verify one."""

from __future__ import annotations

import base64
import json
from typing import Any


def left_s(grant: str, now: float) -> tuple[float, float]:
    """Return for how many seconds more a grant is good, and for how many it was; zeros if it is not valid."""
    claims = _claims(grant)
    try:
        end, signed = (float(claims[name]) for name in ("exp", "iat")) if claims else (0.0, 0.0)
        return max(end - now, 0.0), end - signed
    except (KeyError, TypeError, ValueError):
        return 0.0, 0.0


def grant_in(answer: Any) -> str:
    """Return the grant in the answer of the Hub's service. Raises ValueError and KeyError."""
    grant = answer["grant"]
    if not isinstance(grant, str) or _claims(grant) is None:
        raise ValueError("the answer holds no grant")
    return grant


def _claims(grant: str) -> dict[str, Any] | None:
    parts = grant.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError):
        return None
    return claims if isinstance(claims, dict) else None

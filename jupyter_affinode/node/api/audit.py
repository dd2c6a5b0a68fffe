"""What administrators do to other users' kernels and to the settings, as rows of the ledger.

A program may act for a user, as a Hub's service does. It names the user in `X-Forwarded-User` and the user's
address in `X-Forwarded-For`. The row has both and, beside them, the program that said so.
"""

from __future__ import annotations

from tornado.httputil import HTTPServerRequest

from ...printable import fitting
from ..identity.identity import Identity
from ..ledger.store import AuditRow

DETAIL_MAX = 4096  # characters of a request's body that are kept


def audit_row(
    at: float,
    request: HTTPServerRequest,
    identity: Identity,
    pid: int,
    *,
    kernel_id: str,
    user: str,
    outcome: str,
) -> AuditRow:
    """Return the row for an administrator's request; `at` is the wall clock's, `pid` the program's."""
    program = f"{identity.name or identity.owner or ''} (pid {pid})"
    detail = (request.body or b"").decode("utf-8", "replace")[:DETAIL_MAX]
    return AuditRow(
        at,
        fitting(request.headers.get("X-Forwarded-User") or identity.name or ""),
        fitting(request.headers.get("X-Forwarded-For", "")),
        fitting(program),
        request.path.rpartition("/")[2],
        kernel_id,
        user,
        "" if detail == "{}" else detail,
        outcome,
    )

"""Requests that are refused, on several connections, each sent before the answer to the last: by a false grant, and as
more than one user may make. Says how many refusals came on each connection, and within how many seconds.
"""

from __future__ import annotations

import select
import time
from typing import Any

from attacking import API, connect, goes_on, under_way

CONNECTIONS = 10
AHEAD = 12  # requests
LASTS_S = 2.5
REQUEST = b"GET /api/v1/kernels/none HTTP/1.1\r\nHost: x\r\n%s\r\n"
FORGED = REQUEST % b"Authorization: Bearer bm90.YQ.Z3JhbnQ\r\n"
OFTEN = REQUEST % b""


def refusals(request: bytes, status: bytes) -> dict[str, Any]:
    """Ask again for each answer."""
    counts = dict.fromkeys((connect(API) for _ in range(CONNECTIONS)), 0)
    began = time.monotonic()
    for each in counts:
        each.sendall(request * AHEAD)
    while time.monotonic() - began < LASTS_S:
        for each in select.select(list(counts), [], [], 0.1)[0]:
            answers = each.recv(65536)
            counts[each] += answers.count(b"HTTP/1.1 " + status)
            each.sendall(request * answers.count(b"HTTP/1.1 "))
    for each in counts:
        each.close()
    return {"counts": list(counts.values()), "within_s": time.monotonic() - began}


def main() -> None:
    """Count, and go on."""
    under_way(forged=refusals(FORGED, b"401"), often=refusals(OFTEN, b"429"))
    while goes_on():
        refusals(FORGED, b"401")


if __name__ == "__main__":
    main()

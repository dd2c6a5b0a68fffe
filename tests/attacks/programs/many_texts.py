"""What the attacks on the API's answers share: many kernels with the longest texts."""

import json
from http.client import HTTPException

from attacking import API
from live_machine import UnixConnection

KERNELS = 120  # of 256, so that telling of them is within the requests that may come at once
TEXTS = ("name", "path", "language", "server")
CHARACTER = "\N{GRINNING FACE}"  # four bytes


def fill() -> list[int]:
    """Describe the kernels with the longest texts that the controller takes; the statuses of its answers."""
    connection = UnixConnection(API, 20)
    statuses = []
    length = 4096
    while len(statuses) < KERNELS:
        texts = dict.fromkeys(TEXTS, CHARACTER * length)
        body = json.dumps(texts, ensure_ascii=False).encode()
        try:
            connection.request("PUT", f"/api/v1/kernels/k{len(statuses)}", body)
            response = connection.getresponse()
            response.read()
            status = response.status
        except (OSError, HTTPException):  # its body is too long
            connection.close()
            status = 400
        if status == 400 and length > 1:
            length //= 2
        else:
            statuses.append(status)
    return statuses


ASK = b"GET /api/v1/kernels HTTP/1.1\r\nHost: localhost\r\n\r\n"

"""Asks on many connections as fast as answers come, long after it is refused; and shows grants that are none."""

import contextlib
import selectors

from attacking import API, connect, goes_on, under_way

AT_ONCE = 60
ASK = (
    b"GET /api/v1/node HTTP/1.1\r\nHost: localhost\r\n\r\n"
    b"GET /api/v1/node HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a.b.c\r\n\r\n"
)
asking = selectors.DefaultSelector()


def begin() -> None:
    """Ask on a new connection."""
    with contextlib.suppress(OSError):
        client = connect(API)
        client.sendall(ASK)
        asking.register(client, selectors.EVENT_READ)


under_way()
while goes_on():
    if len(asking.get_map()) < AT_ONCE:
        begin()
    for key, _ in asking.select(0.01):
        client = key.fileobj
        try:
            if not client.recv(65536):
                raise ConnectionError
            client.sendall(ASK)
        except OSError:
            asking.unregister(client)
            client.close()

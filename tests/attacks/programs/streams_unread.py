"""Opens as many streams of events as there may be, changes its kernels, whose texts are long, and reads nothing."""

import contextlib
import json

from attacking import API, connect, goes_on, under_way
from live_machine import UnixConnection
from many_texts import KERNELS, fill

statuses = fill()
streams = []
for _ in range(16):
    with contextlib.suppress(OSError):
        streams.append(connect(API))
        streams[-1].sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
under_way(statuses=statuses, streams=len(streams))
changing, number = UnixConnection(API, 20), 0
while goes_on(0.01):
    number += 1
    with contextlib.suppress(OSError):
        changing.request("PUT", f"/api/v1/kernels/k{number % KERNELS}", json.dumps({"name": str(number)}))
        changing.getresponse().read()

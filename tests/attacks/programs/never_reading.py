"""Asks for all kernels, whose texts are long, again and again on many connections, and reads no answer."""

import contextlib

from attacking import API, connect, goes_on, under_way
from many_texts import ASK, fill

AT_ONCE = 60
statuses, asking = fill(), []
with contextlib.suppress(OSError):
    for _ in range(AT_ONCE):
        asking.append(connect(API))
        asking[-1].sendall(ASK * 8)
under_way(statuses=statuses, connections=len(asking))
while goes_on(0.05):
    oldest = asking.pop(0)
    oldest.close()
    with contextlib.suppress(OSError):
        asking.append(connect(API))
        asking[-1].sendall(ASK * 8)

"""Asks for all kernels, whose texts are long, and hangs up before the answer."""

import contextlib

from attacking import API, connect, goes_on, under_way
from many_texts import ASK, fill

under_way(statuses=fill())
while goes_on():
    with contextlib.suppress(OSError), connect(API) as asking:
        asking.sendall(ASK)

"""One process with little on the GPU that would be lent all there is: `hoarding_lots.py FOLDER LINKS`.

Each of its links has a page of its own, which says that all its GPU memory is that link's. It keeps what it is lent,
and a second process has the descriptors, too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import attacking  # noqa: F401  # finds the next ones
from attacking import goes_on, under_way
from fake_shim import PARK
from taking_lots import GPU_BYTES, borrow, held, use_gpu


def main() -> None:
    """Take what there is, and keep it."""
    use_gpu()
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.setblocking(False)
        while goes_on(0.1):
            with contextlib.suppress(BlockingIOError):
                socket.recv_fds(ours, 1, 4)
        os._exit(0)
    shims, taken = [], []
    for number in range(int(sys.argv[2])):
        shims.append(borrow(f"link-{number}"))
        if not shims[-1].heard.of(PARK):  # it is not believed any more, and so is none that comes after it
            break
        if len(shims) % 2:
            shims[-1].hang_up()
        fresh = list(shims[-1].heard.lots.values())
        if fresh:
            socket.send_fds(theirs, [b"x"], fresh)
            taken += fresh
    pages = {os.fstat(descriptor).st_blksize for descriptor in taken}
    under_way(lots=len(taken), held=held(taken), gpu=GPU_BYTES, pages=sorted(pages))
    while goes_on(0.1):
        pass


if __name__ == "__main__":
    main()

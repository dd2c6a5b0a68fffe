"""Many links that ask for everything that a shim may, and for room on GPUs that do not exist, without end.

`asking_on_links.py FOLDER [KERNELS]`: the links are of so many kernels, by default each of one of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys

from attacking import LINK, goes_on, under_way
from fake_shim import HEARTBEAT, ROOM, STATE, WANT, FakePage, connect, hello, message, notify, request, send

LINKS = 200
MESSAGES = 8  # to each link, one after the other
HOLD, RELEASE = 3, 4  # kinds of requests


def main() -> None:
    """Connect; write to every link as fast as it takes it, with pages that always show something new."""
    kernels = int(sys.argv[2]) if len(sys.argv) > 2 else LINKS
    pages = [FakePage() for _ in range(LINKS)]
    links = []
    for number, page in enumerate(pages):
        link = connect(LINK)
        send(link, hello(f"asking-{number % kernels}"), page.descriptor)
        link.recv(4096)  # WELCOME
        link.setblocking(False)
        links.append(link)
    under_way()
    number = 0
    while goes_on(0.005):
        for link, page in zip(links, pages, strict=True):
            number += 1
            page.calls_in_flight = number % 7
            page.write()
            with contextlib.suppress(OSError):
                link.send(message(HEARTBEAT, b""))
                for _ in range(MESSAGES):
                    link.send(notify(ROOM, 1 << 20, number=number, gpu=os.urandom(16)))
                    link.send(request(HOLD, number))
                    link.send(request(RELEASE, number))
                    link.send(notify(WANT))
                    link.send(notify(STATE))
            with contextlib.suppress(OSError):
                while link.recv(4096):
                    pass


if __name__ == "__main__":
    main()

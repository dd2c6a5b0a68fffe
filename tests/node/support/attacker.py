"""A program that does what it can against another person's kernel, and prints what came of it as JSON.

`attacker.py FOLDER KERNEL_ID [ID …]`: the sockets' folder, the victim's kernel, and what else it might be known as. A
grant is taken from AFFINODE_GRANT, as a real shim and client do. It then floods until its standard input ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import select
import socket
import sys
import time
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent))

import fake_shim
from fake_shim import MIB, FakePage, grant_pieces, hello, notify, reply, request, send

FOLDER = Path(sys.argv[1])
GRANT = os.environ.get("AFFINODE_GRANT", "")
FLAGS = fake_shim.HAS_GRANT if GRANT else 0


class Api(http.client.HTTPConnection):
    """HTTP on the controller's socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(str(FOLDER / "node.sock"))


def ask(method: str, path: str, body: object = None) -> tuple[int, str]:
    """One request: status and text."""
    api = Api("localhost")
    headers = {"Content-Type": "application/json"}
    if GRANT:
        headers["Authorization"] = f"Bearer {GRANT}"
    try:
        api.request(method, path, None if body is None else json.dumps(body), headers)
        response = api.getresponse()
        return response.status, response.read().decode()
    finally:
        api.close()


def look() -> dict[str, object]:
    """Everything that can be read, as one text."""
    text = "".join(ask("GET", path)[1] for path in ("/api/v1/node", "/api/v1/kernels", "/metrics"))
    api = Api("localhost")
    api.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {GRANT}"} if GRANT else {})
    response = api.getresponse()
    text += response.readline().decode()
    api.close()
    return {"text": text}


def guess(ids: list[str]) -> dict[str, object]:
    """Every verb on every id that the kernel might have; the status of each."""
    statuses = {}
    for kernel_id in ids:
        for quoted in {quote(kernel_id, safe=""), quote(kernel_id), kernel_id}:
            path = f"/api/v1/kernels/{quoted}"
            for action in ("park", "resume", "hold", "release", "cancel", "dying", "focus"):
                statuses[f"{action} {quoted}"] = ask("POST", f"{path}/{action}", {})[0]
            statuses[f"get {quoted}"] = ask("GET", path)[0]
            statuses[f"delete {quoted}"] = ask("DELETE", path)[0]
    return {"statuses": statuses, "policy": ask("PATCH", "/api/v1/policy", {"park_when": "idle"})[0]}


def impersonate(kernel_id: str) -> dict[str, object]:
    """Be a process of the victim's kernel; ask for everything, and answer commands that others were given."""
    page = FakePage()
    page.memory[fake_shim.GPU][:2] = [900 * MIB, 0]
    page.write()
    with introduced(kernel_id, page) as link:
        for number in range(1, 40):
            for kind in (1, 2, 3, 4, 5):
                link.send(request(kind, number, 10**12))
            link.send(reply(fake_shim.PARK, number, fake_shim.FAILED, 0, "forged"))
            link.send(reply(fake_shim.RESUME, number, fake_shim.OK, 1 << 30, "forged"))
            link.send(notify(fake_shim.ROOM, 1 << 40, number=number))
            link.send(notify(fake_shim.WANT))
            link.send(notify(fake_shim.LOT_END, number=number))
        heard = []
        link.settimeout(0.5)
        with contextlib.suppress(OSError):
            while len(heard) < 400:
                heard.append(link.recv(4096))
        return {"heard": len(heard)}


def mutate(seed: int) -> dict[str, object]:
    """Frames with some bytes wrong."""
    chance = random.Random(seed)
    page = FakePage()
    valid = [
        notify(3, 1 << 30, number=2),
        reply(1, 1, 0, 5, "x"),
        request(3, 2, 9),
        *grant_pieces("a.b.c" * 90),
    ]
    for _ in range(60):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link, contextlib.suppress(OSError):
            link.connect(str(FOLDER / "link.sock"))
            greeting = bytearray(
                hello(f"fuzz-{chance.randrange(5)}", flags=chance.choice([FLAGS, 32, 0, 255]))
            )
            if chance.random() < 0.5:
                greeting[chance.randrange(len(greeting))] = chance.randrange(256)
            send(link, bytes(greeting), *[page.descriptor] * chance.choice([1, 1, 0, 5, 40]))
            for piece in [*grant_pieces(GRANT), *chance.choices(valid, k=6)]:
                data = bytearray(piece)
                if chance.random() < 0.3:
                    data[chance.randrange(len(data))] = chance.randrange(256)
                link.send(bytes(data))
    return {"seed": seed}


@contextlib.contextmanager
def introduced(kernel_id: str, page: FakePage):
    """A link that has named its user, as far as it can."""
    link = fake_shim.connect(FOLDER / "link.sock")
    try:
        send(link, hello(kernel_id, flags=FLAGS), page.descriptor)
        for piece in grant_pieces(GRANT):
            send(link, piece)
        yield link
    finally:
        link.close()


def flood() -> None:
    """Connections that say nothing, half requests, descriptors and messages without end, until told to stop."""
    page = FakePage()
    quiet: list[socket.socket] = []
    loud: list[socket.socket] = []
    print(json.dumps({"flooding": True}), flush=True)
    until = time.monotonic() + 120
    # The pause leaves the processor to others: to take that away is not the controller's to prevent.
    while time.monotonic() < until and not select.select([sys.stdin], [], [], 0.005)[0]:
        for name, kind in (("link.sock", socket.SOCK_SEQPACKET), ("node.sock", socket.SOCK_STREAM)):
            with contextlib.suppress(OSError):
                silent = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
                silent.connect(str(FOLDER / name))
                if kind == socket.SOCK_STREAM:
                    silent.send(b"POST /api/v1/kernels/x/park HTTP/1.1\r\nContent-Length: 60000\r\n")
                quiet.append(silent)
        if len(quiet) > 400:
            quiet.pop(0).close()
        with contextlib.suppress(OSError):
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            link.connect(str(FOLDER / "link.sock"))
            send(
                link,
                hello(f"flood-{len(loud)}", flags=FLAGS),
                *[page.descriptor] * (1 if len(loud) % 2 else 200),
            )
            for piece in grant_pieces(GRANT):
                send(link, piece)
            loud.append(link)
        if len(loud) > 300:
            loud.pop(0).close()
        for link in loud[-40:]:
            with contextlib.suppress(OSError):
                for _ in range(20):
                    link.send(request(5, 1))
                    link.send(notify(fake_shim.WANT))


if __name__ == "__main__":
    results = {
        "look": look(),
        "guess": guess(sys.argv[2:]),
        "impersonate": impersonate(sys.argv[2]),
        "mutate": mutate(random.SystemRandom().randrange(1 << 32)),
    }
    print(json.dumps(results), flush=True)
    flood()

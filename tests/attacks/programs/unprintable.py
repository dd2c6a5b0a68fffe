"""Texts that forge lines of the log, move a terminal's cursor or are no text, wherever the controller takes one."""

from __future__ import annotations

import contextlib
import socket
import struct

from attacking import API, FOLDER, connect, goes_on, under_way
from fake_shim import FAILED, HELLO, MIB, PARK, REPLY, Command, FakePage, FakeShim, message, send

TEXTS = (
    b"\n2026-01-01 00:00:00.000 W forged: every GPU is yours\n",
    b"\rforged",
    b"\x1b[2J\x1b[Hforged",
    "\x9b2Jforged".encode(),
    "\u202eforged\u2066".encode(),
    b"forged\xed\xa0\x80",  # a lone surrogate
    b"forged\x00",
)


def ask(line: bytes, headers: bytes = b"", body: bytes = b"") -> int:
    """Send a request as it is; the answer's status, 0 if there was none."""
    length = b"Content-Length: %d\r\n" % len(body)
    parts = (line, b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", length, headers, b"\r\n", body)
    with connect(API) as connected, contextlib.suppress(OSError):
        connected.sendall(b"".join(parts))
        connected.shutdown(socket.SHUT_WR)
        answer = connected.recv(4096)
        return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0
    return 0


def escaped(text: bytes) -> bytes:
    """A text in JSON, whatever its characters."""
    return b"".join(b"\\u%04x" % ord(character) for character in text.decode("utf-8", "surrogatepass"))


def say_to_api(text: bytes) -> list[int]:
    """Use a text as an id, a name, a header and as no request at all; the statuses of ids and names."""
    quoted, name = b"".join(b"%%%02x" % byte for byte in text), escaped(text)
    kernel, fields = b"/api/v1/kernels/k", (b"name", b"path", b"server")
    ask(b"PUT " + kernel, body=b"{}")
    statuses = [
        ask(b"PUT /api/v1/kernels/" + quoted, body=b"{}"),
        *(ask(b"PUT " + kernel, body=b'{"%s": "%s"}' % (field, name)) for field in fields),
        ask(b"POST " + kernel + b"/cell", body=b'{"open": true, "cell_id": "%s"}' % name),
        ask(b"PUT " + kernel, body=b'{"%s": 1}' % name),
    ]
    ask(b"PATCH /api/v1/policy", body=b'{"%s": 1}' % name)
    ask(b"POST /api/v1/room", body=b'{"bytes": 1, "user": "%s"}' % name)
    ask(b"GET " + kernel, b"Authorization: Bearer " + text + b"\r\n")
    ask(b"GET " + kernel, b"User-Agent: " + text + b"\r\nX-Forwarded-User: " + text + b"\r\n")
    ask(text + b" " + kernel)
    ask(b"GET /" + text)
    return statuses


def say_to_link(text: bytes) -> None:
    """Use a text as a kernel's id, as a program's name and as a version."""
    page = FakePage()
    fields = (f"forged-{TEXTS.index(text)}".encode(), b"fake", b"0.1.0")
    for place in range(len(fields)):
        given = [text if number == place else each for number, each in enumerate(fields)]
        body = struct.pack("=iI4xI64s64s32s", 1, 0, 0, *given)
        with connect(FOLDER / "link.sock") as link:
            send(link, message(HELLO, body), page.descriptor)
            with contextlib.suppress(OSError):
                link.recv(4096)  # it was taken


class Failing(FakeShim):
    """A process whose parks fail, for a reason that it says."""

    said = b""

    def _carry_out(self, command: Command) -> None:
        body = struct.pack("=IiQQ192s", command.kind, FAILED, 0, 0, self.said)
        self.send(message(REPLY, body, epoch=command.epoch))


def main() -> None:
    """Say them all."""
    refused = [say_to_api(text) for text in TEXTS]
    shims = []
    for number, text in enumerate(TEXTS):
        say_to_link(text)
        shims.append(Failing(FOLDER, f"failing-{number}", resident=MIB))
        shims[-1].said = text
        ask(b"POST /api/v1/kernels/failing-%d/park" % number, body=b'{"wait": false}')
    under_way(statuses=refused, parks=[len(shim.heard.of(PARK)) for shim in shims])
    while goes_on(0.1):
        pass


if __name__ == "__main__":
    main()

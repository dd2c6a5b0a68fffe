"""Which Unix socket is connected to which. Linux tells it over netlink alone, as `ss -x` shows it."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

# linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLMSG_DONE, NLMSG_ERROR = 4, 20, 3, 2
REQUEST_ALL = 0x001 | 0x300  # NLM_F_REQUEST | NLM_F_DUMP
SHOW_NAME_AND_PEER = 1 | 4
NAME, PEER = 0, 2
HEADER, REQUEST, MESSAGE, ATTRIBUTE = (
    struct.Struct(each) for each in ("=IHHII", "=BBHIIIII", "=BBBBIII", "=HH")
)
ANSWER_BYTES = 1 << 20
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Peer:
    """A Unix socket: the other end's inode, 0 where there is none, and its own name; "@…" in no file system."""

    peer: int = 0
    name: str = ""


def unix_peers() -> dict[int, Peer]:
    """Return all Unix sockets of this network namespace by inode; {} where Linux does not tell."""
    try:
        return dict(_ask())
    except (OSError, struct.error):
        return {}


def _ask() -> Iterator[tuple[int, Peer]]:
    body = REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_NAME_AND_PEER, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(PATIENCE_S)
        asked.send(HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, REQUEST_ALL, 1, 0) + body)
        while True:
            answer = asked.recv(ANSWER_BYTES)
            while answer:
                size, kind, *_ = HEADER.unpack_from(answer)
                if kind in (NLMSG_DONE, NLMSG_ERROR) or size < HEADER.size:
                    return
                yield _socket_in(answer[HEADER.size : size])
                answer = answer[_padded(size) :]


def _socket_in(message: bytes) -> tuple[int, Peer]:
    inode = MESSAGE.unpack_from(message)[4]
    attributes, peer, name = message[MESSAGE.size :], 0, ""
    while len(attributes) >= ATTRIBUTE.size:
        size, kind = ATTRIBUTE.unpack_from(attributes)
        content = attributes[ATTRIBUTE.size : size]
        if kind == PEER and len(content) >= 4:
            peer = int.from_bytes(content[:4], sys.byteorder)
        elif kind == NAME:
            text = content.decode(errors="replace")
            name = f"@{text[1:]}" if text.startswith("\0") else text.rstrip("\0")
        attributes = attributes[_padded(max(size, ATTRIBUTE.size)) :]
    return inode, Peer(peer, name)


def _padded(size: int) -> int:
    return (size + 3) & ~3

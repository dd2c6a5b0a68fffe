"""A process's page, mapped and read."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import time

from ..protocol.page import (
    HEARTBEAT,
    HEARTBEAT_OFFSET,
    PAGE_SIZE,
    SEQUENCE,
    SEQUENCE_OFFSET,
    STEADY,
    USED_BYTES,
    PageData,
    PageError,
    parse_page,
)
from ..protocol.peer_clock import PeerClock

REQUIRED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
READ_ATTEMPTS = 16


class Page:
    """A mapped page. Made from the descriptor that came with HELLO, which the caller closes."""

    def __init__(self, descriptor: int):
        """Verify and map. Raises PageError unless it is sealed, of the right size, and a page of our version."""
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            status = os.fstat(descriptor)  # of a memfd: other file systems may not answer
        except OSError as error:
            raise PageError(f"a page that is no memfd ({os.strerror(error.errno or 0)})") from None
        if not stat.S_ISREG(status.st_mode) or status.st_size != PAGE_SIZE:
            raise PageError(f"a page of {status.st_size} bytes, not {PAGE_SIZE}")
        if seals & REQUIRED_SEALS != REQUIRED_SEALS:
            raise PageError(f"a page that is not sealed (seals {seals:#x})")
        try:
            self._map = mmap.mmap(descriptor, PAGE_SIZE, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise PageError(f"a page that cannot be mapped: {error}") from None
        # A process has one page, with which it connects again. No other file has this while we map it.
        self.inode = status.st_dev, status.st_ino
        self.clock = PeerClock()
        self._steady: list[object] = []  # of the last look: most pages say the same most of the time
        try:
            self.last = self._first()
        except PageError:
            self.close()
            raise

    def read(self) -> PageData:
        """Return the page now, or the last good look if the shim writes all the time. Raises PageError if it is
        malformed.
        """
        raw = self._consistent()
        if raw is not None:
            self._see_clock(raw)
            steady: list[object] = [*(raw[part] for part in STEADY), self.clock.behind_ns]
            if steady != self._steady:
                self.last, self._steady = self._parsed(raw), steady
        return self.last

    def close(self) -> None:
        """Unmap."""
        self._map.close()

    def _first(self) -> PageData:
        raw = self._consistent()
        if raw is None:
            raise PageError("a page that is never consistent")
        self._see_clock(raw)
        return self._parsed(raw)

    def _see_clock(self, raw: bytes) -> None:
        self.clock.see(HEARTBEAT.unpack_from(raw, HEARTBEAT_OFFSET)[0], time.monotonic_ns())

    def _parsed(self, raw: bytes) -> PageData:
        return parse_page(raw, time.monotonic(), self.clock)

    def _consistent(self) -> bytes | None:
        for _ in range(READ_ATTEMPTS):
            (before,) = SEQUENCE.unpack_from(self._map, SEQUENCE_OFFSET)
            if before & 1:
                continue
            raw = self._map[:USED_BYTES]
            (after,) = SEQUENCE.unpack_from(self._map, SEQUENCE_OFFSET)
            if before == after:
                return raw
        return None

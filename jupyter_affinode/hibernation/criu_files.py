"""What is changed in CRIU's files before they are signed. Each entry is a protobuf message with its size before it.

CRIU looks at a file's size where a size is noted. That is left out of those that are only open (files.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from .files import Known

FILES = "files.img"
MAGIC_BYTES, SIZE_BYTES = 8, 4
# images/fdinfo.proto, images/regfile.proto, images/core.proto of CRIU
FILE_ENTRY_REG, REG_NAME, REG_SIZE = 3, 6, 8
THREAD, THREAD_DEATH_SIGNAL = 5, 8
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# Returns what replaces a field, of which it gets number, content and all.
Change = Callable[[int, bytes, bytes], bytes]


def relax(folder: Path, known: Known, renamed: Mapping[str, str]) -> None:
    """Have CRIU take the files that must only be there as they are, and find those of other names by their own.

    What is not in `known`, as the shim's file of GPU memory, keeps its size. Raises OSError, also if CRIU's list is
    strange.
    """

    def relaxed(number: int, content: bytes, whole: bytes) -> bytes:
        if number != FILE_ENTRY_REG:
            return whole
        name = next((os.fsdecode(value) for field, value, _ in _fields(content) if field == REG_NAME), "")
        own_name = renamed.get(name, name)
        if known.get(own_name) != []:
            return whole
        rest = _without(content, REG_NAME, REG_SIZE)
        return _bytes_field(number, rest + _bytes_field(REG_NAME, os.fsencode(own_name)))

    _rewrite(folder / FILES, relaxed)


def outlive_parent(folder: Path, threads: Iterable[int]) -> None:
    """Have these threads get no signal at the end of their parent (PR_SET_PDEATHSIG), which at a wake is CRIU's.

    Raises OSError.
    """

    def without_signal(number: int, content: bytes, whole: bytes) -> bytes:
        return _bytes_field(number, _without(content, THREAD_DEATH_SIGNAL)) if number == THREAD else whole

    for thread in threads:
        _rewrite(folder / f"core-{thread}.img", without_signal)


def _rewrite(path: Path, change: Change) -> None:
    raw = path.read_bytes()
    parts, at = [raw[:MAGIC_BYTES]], MAGIC_BYTES
    while at < len(raw):
        begin = at + SIZE_BYTES
        at = begin + int.from_bytes(raw[at:begin], "little")
        try:
            entry = b"".join(change(*field) for field in _fields(raw[begin:at]))
        except ValueError as error:
            raise OSError(f"what CRIU wrote is not understood: {error} in {path.name}") from None
        parts += [len(entry).to_bytes(SIZE_BYTES, "little"), entry]
    path.write_bytes(b"".join(parts))


def _without(message: bytes, *numbers: int) -> bytes:
    return b"".join(whole for number, _, whole in _fields(message) if number not in numbers)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield each field of a protobuf message: its number, its content (of bytes alone), and all of it."""
    at = 0
    while at < len(message):
        begin = at
        key, at = _read_varint(message, at)
        kind, size = key & 7, 0
        if kind == VARINT:
            _, at = _read_varint(message, at)
        elif kind == BYTES:
            size, at = _read_varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        content, at = message[at : at + size], at + size
        if at > len(message):
            raise ValueError("a short field")
        yield key >> 3, content, message[begin:at]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if not byte & 0x80:
            return value, at
    raise ValueError("a short number")


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))

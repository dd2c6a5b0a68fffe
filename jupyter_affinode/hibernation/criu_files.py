"""What is changed in CRIU's files before they are signed. Each entry is a protobuf message with its size before it.

CRIU looks at a file's size where a size is noted. That is left out of those that are only open (files.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from .files import Known, must_only_be_there
from .kernel_processes import STATUS_FLAGS, Outer

FILES, REMAPS = "files.img", "remap-fpath.img"
MAGIC_BYTES, SIZE_BYTES = 8, 4
# images/fdinfo.proto, images/regfile.proto, images/core.proto of CRIU
FDINFO_ID, FDINFO_TYPE, FDINFO_NUMBER = 1, 3, 4
FILES_ID, REMAP_ID = 2, 1
FILE_TYPE, FILE_ID, FILE_ENTRY_REG = 1, 2, 3
REG_ID, REG_FLAGS, REG_POSITION, REG_OWNER, REG_NAME, REG_SIZE = 1, 2, 3, 5, 6, 8
FOWN = range(1, 6)
REGULAR = 1
THREAD, THREAD_DEATH_SIGNAL = 5, 8
# images/core.proto, images/core-x86.proto of CRIU
MACHINE, X86_64, X86_THREAD, X86_REGISTERS, X86_MODE, NATIVE = 1, 1, 2, 2, 28, 1
AX, ORIG_AX, IP = 11, 16, 17
TASK, TASK_SIGNALS, THREAD_SIGNALS = 3, 10, 9
BLOCKED = {TASK: 5, THREAD: 6}
INTERRUPTED = 2**64 - errno.EINTR
SYSCALL_BYTES = 2  # of the instruction
# Calls of x86-64 in which a thread only waits: nothing was done when they were cut short.
WAITS = {
    7: "poll",
    35: "nanosleep",
    65: "semop",
    128: "rt_sigtimedwait",
    202: "futex",
    220: "semtimedop",
    230: "clock_nanosleep",
    232: "epoll_wait",
    281: "epoll_pwait",
    441: "epoll_pwait2",
}
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
        if not must_only_be_there(known, own_name):
            return whole
        rest = _without(content, REG_NAME, REG_SIZE)
        return _bytes_field(number, rest + _bytes_field(REG_NAME, os.fsencode(own_name)))

    _rewrite(folder / FILES, relaxed)


def mute(folder: Path, outer: Iterable[Outer]) -> None:
    """Have descriptors lead to /dev/null that lead to what another program gave the kernel. Raises OSError."""
    flags: dict[int, int] = {}  # of what is open, by CRIU's number of it
    with _understood(folder):
        for each in outer:
            if not (folder / f"ids-{each.pid}.img").exists():
                continue  # CRIU wrote nothing of it: it has ended
            (ids,) = _entries(folder / f"ids-{each.pid}.img")
            for told in map(_numbers, _entries(folder / f"fdinfo-{_numbers(ids)[FILES_ID]}.img")):
                if told[FDINFO_NUMBER] == each.number:
                    flags[told[FDINFO_ID]] = each.flags
    if not flags:
        return

    def is_regular(entry: bytes) -> bytes:
        if _numbers(entry)[FDINFO_ID] not in flags:
            return entry
        return _without(entry, FDINFO_TYPE) + _number_field(FDINFO_TYPE, REGULAR)

    def is_null(entry: bytes) -> bytes:
        number = _numbers(entry)[FILE_ID]
        return _null(number, flags[number]) if number in flags else entry

    def is_elsewhere(entry: bytes) -> bytes | None:  # of a file that was deleted: its contents are not wanted
        return None if _numbers(entry)[REMAP_ID] in flags else entry

    for path in folder.glob("fdinfo-*.img"):
        _rewrite_entries(path, is_regular)
    for path in folder.glob(REMAPS):
        _rewrite_entries(path, is_elsewhere)
    _rewrite_entries(folder / FILES, is_null)


def _null(number: int, flags: int) -> bytes:
    owner = b"".join(_number_field(field, 0) for field in FOWN)
    regular = b"".join(
        (
            _number_field(REG_ID, number),
            _number_field(REG_FLAGS, flags & STATUS_FLAGS),
            _number_field(REG_POSITION, 0),
            _bytes_field(REG_OWNER, owner),
            _bytes_field(REG_NAME, os.fsencode(os.devnull)),
        )
    )
    return b"".join(
        (
            _number_field(FILE_TYPE, REGULAR),
            _number_field(FILE_ID, number),
            _bytes_field(FILE_ENTRY_REG, regular),
        )
    )


def outlive_parent(folder: Path, threads: Iterable[int]) -> None:
    """Have these threads get no signal at the end of their parent (PR_SET_PDEATHSIG), which at a wake is CRIU's.

    Raises OSError.
    """

    def without_signal(number: int, content: bytes, whole: bytes) -> bytes:
        return _bytes_field(number, _without(content, THREAD_DEATH_SIGNAL)) if number == THREAD else whole

    for thread in threads:
        _rewrite(folder / f"core-{thread}.img", without_signal)


def call_again(folder: Path, threads: Iterable[int]) -> None:
    """Have these threads make a call of Linux again in which they wait, and which CRIU cut short. Raises OSError.

    CRIU gives a thread that waits in `poll` or sleeps the answer EINTR, which it would never get without a signal:
    after SIGSTOP and SIGCONT Linux goes on waiting by itself. Many a program in C++ ends of that. A wait for so many
    seconds begins again. A thread for which a signal is there is left alone: that answer may be the signal's.
    """
    for path in (folder / f"core-{thread}.img" for thread in threads):
        with _understood(path):
            cores = _entries(path)
            if any(_numbers(core)[MACHINE] != X86_64 or _waiting_signals(core) for core in cores):
                continue
        _rewrite(path, _registers_again)


def _registers_again(number: int, content: bytes, whole: bytes) -> bytes:
    if number != X86_THREAD:
        return whole
    changed = (
        _bytes_field(field, _again(value)) if field == X86_REGISTERS else part
        for field, value, part in _fields(content)
    )
    return _bytes_field(number, b"".join(changed))


def _again(registers: bytes) -> bytes:
    found = _numbers(registers)
    call, is_native = found[ORIG_AX], found.get(X86_MODE, NATIVE) == NATIVE
    if found[AX] != INTERRUPTED or call not in WAITS or not is_native:
        return registers
    rest = _without(registers, AX, IP)
    return rest + _number_field(AX, call) + _number_field(IP, found[IP] - SYSCALL_BYTES)


def _waiting_signals(core: bytes) -> bool:
    """Whether a signal is there that a thread has not blocked, its own or its process's."""
    for number, content, _ in _fields(core):
        for field, queue in ((THREAD, THREAD_SIGNALS), (TASK, TASK_SIGNALS)):
            if number != field:
                continue
            blocked = _numbers(content).get(BLOCKED[field], 0)
            for each in _parts(content, queue):
                for signal in _parts(each, 1):
                    for info in _parts(signal, 1):
                        if not blocked >> (int.from_bytes(info[:4], "little") - 1) & 1:
                            return True
    return False


def _parts(message: bytes, wanted: int) -> Iterator[bytes]:
    return (content for number, content, _ in _fields(message) if number == wanted)


def _rewrite(path: Path, change: Change) -> None:
    """Change each field of each entry."""
    _rewrite_entries(path, lambda entry: b"".join(change(*field) for field in _fields(entry)))


def _rewrite_entries(path: Path, change: Callable[[bytes], bytes | None]) -> None:
    """Change each entry; what is None is left out."""
    raw = path.read_bytes()
    parts = [raw[:MAGIC_BYTES]]
    with _understood(path):
        changed = (change(entry) for entry in _entries_in(raw))
        for entry in (each for each in changed if each is not None):
            parts += [len(entry).to_bytes(SIZE_BYTES, "little"), entry]
    path.write_bytes(b"".join(parts))


def _entries(path: Path) -> list[bytes]:
    return list(_entries_in(path.read_bytes()))


def _entries_in(raw: bytes) -> Iterator[bytes]:
    at = MAGIC_BYTES
    while at < len(raw):
        begin = at + SIZE_BYTES
        at = begin + int.from_bytes(raw[at:begin], "little")
        yield raw[begin:at]


@contextlib.contextmanager
def _understood(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError) as error:
        raise OSError(f"what CRIU wrote is not understood: {error} in {path.name}") from None


def _numbers(message: bytes) -> dict[int, int]:
    """Return the fields of a message that are numbers."""
    found = {}
    for number, _, whole in _fields(message):
        key, at = _read_varint(whole, 0)
        if key & 7 == VARINT:
            found[number], _ = _read_varint(whole, at)
    return found


def _without(message: bytes, *numbers: int) -> bytes:
    return b"".join(whole for number, _, whole in _fields(message) if number not in numbers)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _number_field(number: int, value: int) -> bytes:
    return _varint(number << 3 | VARINT) + _varint(value)


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

"""Whether a kernel that was started with the shim has it, whatever its command did to the environment.

The shim says nothing to the controller before the kernel uses CUDA, so the kernel's process itself is looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..environment import SHIM_NAME

PROC = Path("/proc")


def lacks_shim(pid: int, word: str) -> bool:
    """Return whether a kernel has started without the shim.

    `pid` is the process that was started, `word` a part of the kernel's own command: of the processes that have it in
    theirs, the innermost is the kernel, and those around it are what started it. False if it cannot be told.
    """
    kernels = [each for each in _with_descendants(pid) if word and word in _read(each, "cmdline")]
    innermost = [each for each in kernels if not any(other in kernels for other in _children(each))]
    maps = [_read(each, "maps") for each in innermost]
    return bool(maps) and all(maps) and not any(f"/{SHIM_NAME}" in text for text in maps)


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for child in _children(pid):
        yield from _with_descendants(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _read(pid: int, name: str) -> str:
    """Return a file of the process's; "" if there is none, or it is not ours to read."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / name).read_bytes().decode(errors="replace")
    return ""

"""The KERNEL argument: which of the controller's kernels a user means."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any

from .. import environment

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class NoSuchKernel(Exception):
    """The argument means no kernel, or several; the message names the kernels."""


def add_kernel_argument(parser: argparse.ArgumentParser) -> None:
    """Add the KERNEL argument to a command; inside a kernel it is optional."""
    parser.add_argument(
        "kernel",
        metavar="KERNEL",
        nargs="?",
        default=os.environ.get(environment.KERNEL_ID),
        help="a kernel's id or its beginning, or its notebook's path or name (default: the one this runs in)",
    )


def find_kernel(kernels: Sequence[dict[str, Any]], text: str | None) -> dict[str, Any]:
    """Return the one kernel that `text` means: an id goes before a path, a path before a name, a name before the
    beginning of one."""
    if not text:
        raise NoSuchKernel(f"Say which kernel. {_choices(kernels)}")
    ways = (
        lambda kernel: kernel["id"] == text,
        lambda kernel: kernel.get("path") == text,
        lambda kernel: os.path.basename(kernel.get("path") or "") == text,
        lambda kernel: kernel.get("name") == text,
        lambda kernel: kernel["id"].startswith(text),
        lambda kernel: own_id(kernel["id"]).startswith(text),  # of another user's kernel, for administrators
    )
    for way in ways:
        found = [kernel for kernel in kernels if way(kernel)]
        if len(found) == 1:
            return found[0]
        if found:
            raise NoSuchKernel(f"{text} could be any of {len(found)}. {_choices(found)}")
    raise NoSuchKernel(f"There is no kernel {text}. {_choices(kernels)}")


def short_id(kernel_id: str) -> str:
    """Return an id as users read and type it: the beginning of a UUID, after the user's prefix if there is one
    ("uid-1000/3f2a9c41"). Ids of processes without a Jupyter kernel are short already.
    """
    owner, slash, _ = kernel_id.rpartition("/")
    own = own_id(kernel_id)
    return f"{owner}{slash}{own[:8] if UUID.fullmatch(own) else own}"


def own_id(kernel_id: str) -> str:
    """Return an id without the user before it ("uid-1000/…"), which administrators see."""
    return kernel_id.rpartition("/")[2]


def _choices(kernels: Sequence[dict[str, Any]]) -> str:
    if not kernels:
        return "There are no kernels."
    return "Kernels: " + ", ".join(
        f"{short_id(kernel['id'])} ({kernel.get('path') or kernel.get('name') or 'unnamed'})"
        for kernel in kernels
    )

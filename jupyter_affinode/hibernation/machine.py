"""The machine that an image was made on, and what stands against waking it on this one."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import environment
from . import criu
from .seen import Seen, everything

DRIVER = Path("/proc/driver/nvidia/version")
GPUS = Path("/proc/driver/nvidia/gpus")
CPUS = Path("/proc/cpuinfo")
BETWEEN_MODELS = "; "


@dataclass(frozen=True)
class Origin:
    """Where an image was made."""

    machine: dict[str, str]  # what `this_machine` said there
    monotonic_s: float  # the clock that goes on by itself, as it was
    has_cuda: bool


def this_machine() -> dict[str, str]:
    """Return what an image needs to find again: Linux, the processor's features, the GPUs' driver and their models."""
    return {
        "architecture": os.uname().machine,
        "kernel": os.uname().release,
        "features": " ".join(_cpu_features()),
        "driver": next(iter(_lines(DRIVER)), ""),
        "gpus": BETWEEN_MODELS.join(_gpu_models()),
        "boot": environment.boot_id(),
    }


def _cpu_features() -> list[str]:
    lines = (line.partition(":") for line in _lines(CPUS))
    return next(
        (sorted(told.split()) for name, _, told in lines if name.strip() in ("flags", "Features")), []
    )


def _gpu_models() -> list[str]:
    lines = (line.partition(":") for path in GPUS.glob("*/information") for line in _lines(path))
    return sorted({told.strip() for name, _, told in lines if name == "Model"} - {""})


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text().splitlines()
    return []


def _processor(origin: Origin, here: dict[str, str]) -> str | None:
    there = origin.machine
    if here["architecture"] != there["architecture"]:
        return (
            f"it was made on a processor of another kind ({there['architecture']}): wake it on such a machine"
        )
    if lacks := set(there["features"].split()) - set(here["features"].split()):
        named = ", ".join(sorted(lacks)[:3])
        return f"this machine's processor lacks what the kernel may use ({named}): wake it on a newer one"
    return None


def _linux(origin: Origin, here: dict[str, str]) -> str | None:
    """Programs ask Linux for what it has once, and use it from then on: an older one may lack it."""
    if _release(here["kernel"]) < _release(origin.machine["kernel"]):
        return (
            f"Linux is older here ({here['kernel']}) than where it was made ({origin.machine['kernel']}):"
            " start this release or a newer one"
        )
    return None


def _release(text: str) -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else ()


def _driver(origin: Origin, here: dict[str, str]) -> str | None:
    there = origin.machine["driver"]
    if origin.has_cuda and here["driver"] != there:
        return (
            f"it was made with another GPU driver ({there or 'none'}); here is {here['driver'] or 'none'}: it can be"
            " woken with that driver alone"
        )
    return None


def _gpu_model(origin: Origin, here: dict[str, str]) -> str | None:
    there = set(filter(None, origin.machine.get("gpus", "").split(BETWEEN_MODELS)))
    if origin.has_cuda and there and not there & set(here["gpus"].split(BETWEEN_MODELS)):
        return (
            f"it was made with another GPU ({', '.join(sorted(there))}); here is {here['gpus'] or 'none'}: it can be"
            " woken with that model alone"
        )
    return None


def _clock(origin: Origin, here: dict[str, str]) -> str | None:
    """Root's CRIU has the clock go on in a time namespace; else all that waits would wait for as long again."""
    behind_s = origin.monotonic_s - time.clock_gettime(time.CLOCK_MONOTONIC)
    if behind_s > 0 and not criu.is_privileged():
        return (
            f"this machine's clock is {behind_s:.0f} s behind the kernel's: the machine was started again, or is"
            " another one. Only root can wake it so; else wait until the machine has run for as long"
        )
    return None


CHECKS: tuple[Callable[[Origin, dict[str, str]], str | None], ...] = (
    _processor,
    _linux,
    _driver,
    _gpu_model,
    _clock,
)


def objection_to_waking(origin: Origin) -> str | None:
    """Return why an image cannot be woken on this machine as it is now; None: nothing is in the way."""
    here = this_machine()
    return next((found for check in CHECKS if (found := check(origin, here))), None)


def objection_to_ports(connection: dict[str, Any]) -> str | None:
    """Return which port of a kernel's connection another program has taken, and what to do; None: it has none."""
    if connection.get("transport", "tcp") != "tcp":
        return None
    ports = (number for name, number in sorted(connection.items()) if name.endswith("_port") and number)
    return next(filter(None, (objection_to_port(connection["ip"], number) for number in ports)), None)


def objection_to_port(ip: str, port: int) -> str | None:
    """Return that another program listens at a port at which the kernel listened; None: the kernel can have it."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as CRIU does; a keeper holds it in that way
        try:
            tried.bind((ip, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return f"this machine has no address {ip}, at which the kernel listened (port {port})"
            if error.errno == errno.EADDRINUSE:
                return (
                    f"{_listener(port)} has port {port}, at which the kernel listened: end it, and try again"
                )
    return None


def _listener(port: int) -> str:
    inodes = {inode for inode, _, number in Seen(os.getpid()).listening if number == port}
    holder = next((each for each in everything() if inodes.intersection(each.sockets)), None)
    return "another program" if holder is None else f"`{holder.command}` (process {holder.pid})"

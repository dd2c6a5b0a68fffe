"""Kernels and machines as the policy sees them, in a line each."""

from __future__ import annotations

from dataclasses import replace

from jupyter_affinode.node.model.actions import Park
from jupyter_affinode.node.model.snapshot import Gpu, Host, Kernel, Node, Residency, RoomRequest
from jupyter_affinode.node.policy.resources.host_memory import MARGIN_PART
from jupyter_affinode.settings.policy import GIB, Settings

A, B = "GPU-a", "GPU-b"
NOW = 10_000.0
NEEDED = Settings(host_reserve_bytes=GIB * MARGIN_PART // (MARGIN_PART + 1) + 1)  # with its margin 1 GiB
IDLE = replace(NEEDED, park_when="idle")


def resident(name, size=4 * GIB, *, idle=1000.0, gpu=A, **fields):
    """A kernel on the GPU, idle for some seconds."""
    return Kernel(name, Residency.RESIDENT, {gpu: size}, last_activity=NOW - idle, **fields)


def busy(name, size=4 * GIB, **fields):
    """A kernel that computes."""
    return resident(name, size, idle=0, calls_in_flight=1, **fields)


def parked(name, size=4 * GIB, *, waits=None, gpu=A, **fields):
    """A parked kernel; `waits`: for how many seconds a call has waited."""
    state = Residency.PARKED if waits is None else Residency.QUEUED
    wants = None if waits is None else NOW - waits
    return Kernel(name, state, {gpu: 0}, {gpu: size}, wants_since=wants, last_activity=NOW - 5000, **fields)


def asks(kernel, size, *, waits, number=1, gpu=A):
    """A kernel with an allocation that waits for room."""
    room = RoomRequest((hash(kernel.id) % 1000, number), gpu, size, NOW - waits)
    return replace(kernel, rooms=(*kernel.rooms, room))


def node(*kernels, free=0, total=16 * GIB, host=None, **fields):
    """A machine of one GPU (and a second, empty one)."""
    gpus = {A: Gpu(A, free, total, NOW - 0.01), B: Gpu(B, total, total, NOW - 0.01)}
    fields.setdefault("gpus", gpus)
    return Node(kernels=kernels, host=host or Host(64 * GIB), **fields)


def parks(actions):
    return [action.kernel_id for action in actions if isinstance(action, Park)]


def of(kernel, user, *groups):
    """The same kernel, of that user."""
    return replace(kernel, user=user, groups=groups)

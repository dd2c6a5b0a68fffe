"""Visibility: a user sees their own kernels, and only sums of all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...settings.policy import SETTINGS
from ..identity.identity import Identity
from ..state.records.kernel import KernelRecord
from .serializers import STARTING

ANOTHER_USER = "another user"
ABOUT_USERS = [name for name, setting in SETTINGS.items() if setting.names_users]

Json = dict[str, Any]


def kernel_view(identity: Identity, kernel: Json, owner: str | None) -> Json:
    """Return a kernel that the user sees, with the id that they know it by."""
    shown = {**kernel, "id": identity.shown_id(kernel["id"], owner)}
    if kernel["wait"] is not None and identity.owner is not None:
        blockers = [
            {**each, "kernel_id": identity.shown_id(each["kernel_id"], owner)} if each["own"] else each
            for each in kernel["wait"]["blockers"]
        ]
        shown["wait"] = {**kernel["wait"], "blockers": blockers}
    return shown


def node_view(identity: Identity, node: Json, kernels: dict[str, KernelRecord]) -> Json:
    """Return the machine; in its queue the others have no names, and their memory is one sum."""
    if identity.owner is None:
        return node
    queue = [each if each == STARTING else _in_queue(identity, kernels.get(each)) for each in node["queue"]]
    gpus = node["gpus"]
    if not identity.is_admin:  # what is not ours is root's to name
        gpus = [
            {**gpu, "unmanaged": _nameless(gpu["unmanaged"])}
            for gpu in _not_made_up(identity, gpus, kernels.values())
        ]
    return {
        **node,
        "gpus": gpus,
        "queue": queue,
        "starting": node["starting"] if identity.is_admin else [],
        "settings": settings_view(identity, node["settings"]),
        "others": others(identity, kernels.values(), node),
    }


def settings_view(identity: Identity, settings: Json) -> Json:
    """Return the settings; rules that name users are for administrators."""
    if identity.is_admin:
        return settings
    return {**settings, **dict.fromkeys(ABOUT_USERS, "")}


def others(identity: Identity, kernels: Iterable[KernelRecord], node: Json) -> Json:
    """Return all other users' kernels as sums, which are no larger than what the machine's own figures leave room for:
    pages may claim anything.
    """
    theirs = [kernel for kernel in kernels if kernel.account.owner != identity.owner and kernel.processes]
    resident: dict[str, int] = {}
    parked = 0
    for kernel in theirs:
        for gpu in kernel.by_gpu().values():
            resident[gpu.uuid] = resident.get(gpu.uuid, 0) + gpu.on_gpu_bytes
            parked += gpu.parked_bytes
    used = {gpu["uuid"]: gpu["used_bytes"] for gpu in node["gpus"]}
    waiting = set(node["queue"])
    return {
        "kernels": len(theirs),
        "resident_bytes": sum(min(size, used.get(uuid, 0)) for uuid, size in resident.items()),
        "parked_bytes": min(parked, node["host"]["parked_bytes"]),
        "waiting": sum(kernel.id in waiting for kernel in theirs),
    }


def _not_made_up(identity: Identity, gpus: list[Json], kernels: Iterable[KernelRecord]) -> list[Json]:
    """Return the GPUs that NVML knows, and those that the user's own kernels name: others' pages may name any.

    Without NVML all of them are returned.
    """
    if all(gpu["total_bytes"] is None for gpu in gpus):
        return gpus
    own = {uuid for kernel in kernels if kernel.account.owner == identity.owner for uuid in kernel.by_gpu()}
    return [gpu for gpu in gpus if gpu["total_bytes"] is not None or gpu["uuid"] in own]


def _nameless(processes: list[Json] | None) -> list[Json] | None:
    if processes is None:
        return None
    return [{"pid": None, "command": None, "bytes": process["bytes"]} for process in processes]


def _in_queue(identity: Identity, kernel: KernelRecord | None) -> str:
    if kernel is None or not identity.sees(kernel.account.owner):
        return ANOTHER_USER
    return identity.shown_id(kernel.id, kernel.account.owner)

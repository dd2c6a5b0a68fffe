"""The user that a kernel belongs to, and what that entitles it to: its priority class, quotas and opt-out."""

from __future__ import annotations

import os
import pwd
from functools import lru_cache
from typing import NamedTuple

from ....settings.policy import Settings
from ....settings.rules import EVERYBODY, GRANTED, class_of, is_named, names, numbers, rule_for
from ...identity.identity import of_unix_user
from ...system.user_names import groups_of, name_of
from .kernel import Description, KernelRecord

GPU_BYTES = "gpu_bytes"  # a grant's cap: GPU memory of its user on all GPUs together


class Entitlements(NamedTuple):
    """The user of a kernel and that user's entitlements, as fields of the policy's `Kernel`."""

    user: str
    charged_user: str
    groups: tuple[str, ...]
    priority: int
    is_opted_out: bool
    limit_bytes: int | None


def entitlements_of(kernel: KernelRecord, settings: Settings) -> Entitlements:
    """Return a kernel's entitlements by the settings, its owner's grant and its server's description of the kernelspec.

    The settings go before a grant where they name the user. A kernelspec is its user's own to write: it may
    lower the class, and opt out of parking where `kernelspec_opt_out` allows that.
    """
    user = kernel.account.name if kernel.account.owner is not None else own_name()
    user = user or ""
    if user.isdigit() and kernel.account.owner is not None:
        user = name_of(int(user))  # the directory had not answered yet when it connected
    groups = kernel.account.groups  # of the grant: its user is none of this machine's
    if not user.startswith(GRANTED):
        groups = groups_of(user) if _asks_for_groups(settings) else ()
    told = kernel.server.description or Description()
    priority = _priority(kernel, user, groups, settings)
    if told.priority is not None:
        priority = min(priority, told.priority)
    is_opted_out = is_named(names(settings.opt_out), user, groups)
    is_opted_out = is_opted_out or (settings.kernelspec_opt_out and told.may_park is False)
    cap = kernel.account.caps.get(GPU_BYTES)
    return Entitlements(
        user=user,
        charged_user=kernel.account.charged_user or "",
        groups=groups,
        priority=class_of(priority),
        is_opted_out=is_opted_out,
        limit_bytes=None if cap is None else int(cap),
    )


def owner_of(kernel: KernelRecord) -> str:
    """Return the user that a kernel belongs to; on one user's own controller that user (identity.py)."""
    return kernel.account.owner or of_unix_user(os.getuid())


def own_or_other(kernel: KernelRecord, other: KernelRecord) -> str:
    """Return "own" if both are the same user's, else "other": all that a user is told of others."""
    return "own" if other.account.owner == kernel.account.owner else "other"


@lru_cache(maxsize=1)
def own_name() -> str:
    """Return the name of the user that runs this controller."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return str(os.getuid())


def _priority(kernel: KernelRecord, user: str, groups: tuple[str, ...], settings: Settings) -> int:
    rules = numbers(settings.priorities)
    if user in rules:
        return rules[user]
    if kernel.account.priority:
        return kernel.account.priority
    of_groups = [known for group in groups if (known := rule_for(rules, f"@{group}")) is not None]
    return max(of_groups) if of_groups else rules.get(EVERYBODY, 0)


def _asks_for_groups(settings: Settings) -> bool:
    """Return whether any rule names a group: looking groups up may take a directory server's time."""
    return "@" in settings.priorities + settings.quotas + settings.opt_out

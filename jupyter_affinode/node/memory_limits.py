"""Limits per user and group on GPU memory, as resources beside the GPUs; pure.

A limit is a resource of its own: who waits needs room in it as on a GPU, what is parked gives it back, and who
waits for it alone holds up nobody but those that share it. A kernel that has grown beyond a limit by
itself (allocations that meet no full GPU are not asked about) may still come back when it is the only one.
"""

from __future__ import annotations

from collections.abc import Mapping

from .rules import rule_for, sizes
from .settings import Settings
from .snapshot import Kernel, Node, Waiter

USER, GROUP = "user ", "group "  # before the name; no GPU is called so

Whose = tuple[str, tuple[str, ...], int | None]  # user, groups, what the user's grant allows


class Limits:
    """The limits that hold for a node's kernels; falsy where there are none."""

    def __init__(self, node: Node, settings: Settings):
        self.caps: dict[str, int] = {}
        self.room: dict[str, int] = {}
        self._keys: dict[str, tuple[str, ...]] = {}  # by kernel
        self._used: dict[str, int] = {}  # by kernel
        self._frees: dict[str, Mapping[str, int]] = {}  # by kernel, of those that were asked about
        users, groups = sizes(settings.user_limits), sizes(settings.group_limits)
        if users or groups or any(kernel.limit_bytes is not None for kernel in node.kernels):
            self._look(node, users, groups)

    def __bool__(self) -> bool:
        return bool(self.caps)

    def of(self, kernel_id: str) -> tuple[str, ...]:
        """The limits that a kernel counts in."""
        return self._keys.get(kernel_id, ())

    def needs(self, waiter: Waiter) -> Mapping[str, int]:
        """What serving a waiter takes, of the GPUs and of its limits."""
        keys = self._keys.get(waiter.kernel.id)
        if not keys:
            return waiter.needs
        size, needs = sum(waiter.needs.values()), dict(waiter.needs)
        for key in keys:
            needs[key] = size
            if waiter.room is None:  # who is larger than its limit comes back when it is the only one
                left = self.caps[key] - self._used[waiter.kernel.id]
                if left < size:
                    needs[key] = max(left, 0)
        return needs

    def frees(self, kernel: Kernel) -> Mapping[str, int]:
        """What parking a kernel gives back, of the GPUs and of its limits."""
        keys = self._keys.get(kernel.id)
        if not keys:
            return kernel.frees_bytes
        frees = self._frees.get(kernel.id)
        if frees is None:
            frees = {**kernel.frees_bytes, **dict.fromkeys(keys, kernel.movable_bytes)}
            self._frees[kernel.id] = frees
        return frees

    def exceeded(self, waiter: Waiter) -> tuple[str, int] | None:
        """The limit (its name and size) that an allocation can never have room in, whoever yields."""
        if waiter.room is not None:
            for key in self.of(waiter.kernel.id):
                if self._used[waiter.kernel.id] + waiter.room.bytes > self.caps[key]:
                    return key, self.caps[key]
        return None

    def _look(self, node: Node, users: Mapping[str, int], groups: Mapping[str, int]) -> None:
        """See who has how much; those of the same user, groups and grant count in the same limits."""
        keys_of: dict[Whose, tuple[str, ...]] = {}
        used_of: dict[tuple[str, ...], int] = {}  # by limits
        for kernel in node.kernels:
            whose = kernel.user, kernel.groups, kernel.limit_bytes
            keys = keys_of.get(whose)
            if keys is None:
                keys = keys_of[whose] = self._keys_of(whose, users, groups)
            if keys:
                size = sum(kernel.resident_bytes.values()) + sum(kernel.fixed_bytes.values())
                self._keys[kernel.id], self._used[kernel.id] = keys, size
                used_of[keys] = used_of.get(keys, 0) + size
        for reserved in node.reservations:
            keys = self.of(reserved.kernel_id)
            if keys and not reserved.is_taken:
                self._used[reserved.kernel_id] += reserved.bytes
                used_of[keys] += reserved.bytes
        self.room = dict(self.caps)
        for keys, size in used_of.items():
            for key in keys:
                self.room[key] -= size

    def _keys_of(self, whose: Whose, users: Mapping[str, int], groups: Mapping[str, int]) -> tuple[str, ...]:
        """The limits that kernels of somebody count in, noted with their sizes."""
        user, their_groups, granted = whose
        named = [(USER + user, rule_for(users, user)), (USER + user, granted)]
        named += [(GROUP + group, rule_for(groups, group)) for group in their_groups]
        known = [(key, cap) for key, cap in named if cap is not None]
        for key, cap in known:
            self.caps[key] = min(cap, self.caps.get(key, cap))
        return tuple(dict(known))

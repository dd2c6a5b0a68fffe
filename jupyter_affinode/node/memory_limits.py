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


class Limits:
    """The limits that hold for a node's kernels; falsy where there are none."""

    def __init__(self, node: Node, settings: Settings):
        self.caps: dict[str, int] = {}
        self.room: dict[str, int] = {}
        self._used_of: dict[str, int] = {}  # by limit
        self._keys: dict[str, tuple[str, ...]] = {}  # by kernel
        self._keys_of: dict[tuple[str, tuple[str, ...], int | None], tuple[str, ...]] = {}  # by whose
        self._used: dict[str, int] = {}  # by kernel
        users, groups = sizes(settings.user_limits), sizes(settings.group_limits)
        if users or groups or any(kernel.limit_bytes is not None for kernel in node.kernels):
            for kernel in node.kernels:
                self._add(kernel, users, groups)
            for reserved in node.reservations:
                if not reserved.is_taken:
                    self._use(reserved.kernel_id, reserved.bytes)
            self.room = {key: cap - self._used_of.get(key, 0) for key, cap in self.caps.items()}

    def __bool__(self) -> bool:
        return bool(self.caps)

    def of(self, kernel_id: str) -> tuple[str, ...]:
        """The limits that a kernel counts in."""
        return self._keys.get(kernel_id, ())

    def needs(self, waiter: Waiter) -> Mapping[str, int]:
        """What serving a waiter takes, of the GPUs and of its limits."""
        keys = self.of(waiter.kernel.id)
        if not keys:
            return waiter.needs
        return {**waiter.needs, **self.shares(waiter)}

    def shares(self, waiter: Waiter) -> dict[str, int]:
        """What serving a waiter takes of its limits."""
        size, has = sum(waiter.needs.values()), self._used.get(waiter.kernel.id, 0)
        return {key: self._least(waiter, size, self.caps[key] - has) for key in self.of(waiter.kernel.id)}

    def frees(self, kernel: Kernel) -> Mapping[str, int]:
        """What parking a kernel gives back, of the GPUs and of its limits."""
        keys = self.of(kernel.id)
        if not keys:
            return kernel.resident_bytes
        return {**kernel.resident_bytes, **dict.fromkeys(keys, kernel.movable_bytes)}

    def exceeded(self, waiter: Waiter) -> tuple[str, int] | None:
        """The limit (its name and size) that an allocation can never have room in, whoever yields."""
        if waiter.room is not None:
            for key in self.of(waiter.kernel.id):
                if self._used.get(waiter.kernel.id, 0) + waiter.room.bytes > self.caps[key]:
                    return key, self.caps[key]
        return None

    @staticmethod
    def _least(waiter: Waiter, size: int, most: int) -> int:
        """A kernel that is larger than its limit comes back when it is the only one."""
        return size if waiter.room is not None else max(min(size, most), 0)

    def _add(self, kernel: Kernel, users: Mapping[str, int], groups: Mapping[str, int]) -> None:
        whose = kernel.user, kernel.groups, kernel.limit_bytes
        keys = self._keys_of.get(whose)
        if keys is None:
            named = [
                (USER + kernel.user, rule_for(users, kernel.user)),
                (USER + kernel.user, kernel.limit_bytes),
            ]
            named += [(GROUP + group, rule_for(groups, group)) for group in kernel.groups]
            known = [(key, cap) for key, cap in named if cap is not None]
            for key, cap in known:
                self.caps[key] = min(cap, self.caps.get(key, cap))
            keys = self._keys_of[whose] = tuple(dict(known))
        if keys:
            self._keys[kernel.id] = keys
            self._use(kernel.id, kernel.movable_bytes + sum(kernel.fixed_bytes.values()))

    def _use(self, kernel_id: str, size: int) -> None:
        self._used[kernel_id] = self._used.get(kernel_id, 0) + size
        for key in self.of(kernel_id):
            self._used_of[key] = self._used_of.get(key, 0) + size

"""Quotas of GPU memory per user and group, as resources beside the GPUs; pure.

A quota is a resource of its own: a waiter needs room in it as on a GPU, a park frees it, and a waiter that lacks only
quota blocks only those that share it. Allocations that find room on the GPU are not checked, so a kernel may grow
beyond a quota by itself; it may still be resumed when it is the only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....settings.policy import Settings
from ....settings.rules import rule_for, sizes
from ...model.snapshot import Kernel, Node, Waiter

USER, GROUP = "user ", "group "  # before the name; no GPU is called so

NOTHING: Mapping[str, int] = {}

AccountKey = tuple[str, tuple[str, ...], int | None]  # user, groups, what the user's grant allows


@dataclass(slots=True)
class _Account:
    """Kernels of the same user, groups and grant: they count in the same quotas."""

    keys: tuple[str, ...]
    narrowest_bytes: int = 0  # the smallest of these limits
    used_bytes: int = 0


class Limits:
    """The quotas that hold for a node's kernels; falsy where there are none."""

    def __init__(self, node: Node, settings: Settings):
        self.caps: dict[str, int] = {}
        self.room: dict[str, int] = {}
        self._accounts: dict[str, _Account] = {}  # by kernel, of those that count in any
        self._used: dict[str, int] = {}  # by kernel, of the same
        self._frees: dict[tuple[str, int], Mapping[str, int]] = {}  # by kernel and size, if asked about
        rules = sizes(settings.quotas)
        if rules or any(kernel.limit_bytes is not None for kernel in node.kernels):
            self._count_used(node, rules)

    def __bool__(self) -> bool:
        return bool(self.caps)

    def of(self, kernel_id: str) -> tuple[str, ...]:
        """Return the quotas that a kernel counts in."""
        account = self._accounts.get(kernel_id)
        return () if account is None else account.keys

    def among(self, resources: Mapping[str, int]) -> dict[str, int]:
        """Return those of the resources that are quotas."""
        return {key: size for key, size in resources.items() if key in self.caps} if self.caps else {}

    def needs(self, waiter: Waiter) -> Mapping[str, int]:
        """Return what serving a waiter takes, of the GPUs and of its quotas."""
        return {**waiter.needs, **self.counts(waiter)} if self.caps else waiter.needs

    def counts(self, waiter: Waiter) -> Mapping[str, int]:
        """Return what serving a waiter takes of its quotas."""
        account = self._accounts.get(waiter.kernel.id)
        if account is None:
            return NOTHING
        size = sum(waiter.needs.values())
        if waiter.room is None:
            used = self._used[waiter.kernel.id]
            if used + size > account.narrowest_bytes:  # it is resumed when it is the only one
                return {key: min(size, max(self.caps[key] - used, 0)) for key in account.keys}
        return dict.fromkeys(account.keys, size)

    def reserve(self, waiter: Waiter, room: dict[str, int]) -> None:
        """Reserve what a waiter takes of the `room` in its quotas."""
        for key, size in self.counts(waiter).items():
            room[key] -= size

    def frees(self, kernel: Kernel) -> Mapping[str, int]:
        """Return what parking a kernel frees, of the GPUs and of its quotas."""
        account = self._accounts.get(kernel.id)
        if account is None:
            return kernel.frees_bytes
        size = kernel.movable_bytes
        frees = self._frees.get((kernel.id, size))
        if frees is None:
            frees = {**kernel.frees_bytes, **dict.fromkeys(account.keys, size)}
            self._frees[kernel.id, size] = frees
        return frees

    def exceeded(self, waiter: Waiter) -> tuple[str, int] | None:
        """Return the quota (name and size) in which an allocation can never have room, whatever is parked."""
        if waiter.room is not None:
            for key in self.of(waiter.kernel.id):
                if self._used[waiter.kernel.id] + waiter.room.bytes > self.caps[key]:
                    return key, self.caps[key]
        return None

    def _count_used(self, node: Node, rules: Mapping[str, int]) -> None:
        """Note how much each kernel has."""
        accounts: dict[AccountKey, _Account] = {}
        for kernel in node.kernels:
            account_key = kernel.user, kernel.groups, kernel.limit_bytes
            account = accounts.get(account_key)
            if account is None:
                account = accounts[account_key] = self._account_of(account_key, rules)
            if account.keys:
                used = sum(kernel.resident_bytes.values()) + sum(kernel.unmovable_bytes.values())
                account.used_bytes += used
                self._accounts[kernel.id], self._used[kernel.id] = account, used
        for reserved in node.reservations:
            account = self._accounts.get(reserved.kernel_id)
            if account is not None and not reserved.is_taken:
                self._used[reserved.kernel_id] += reserved.bytes
                account.used_bytes += reserved.bytes
        self.room = dict(self.caps)
        for account in accounts.values():
            account.narrowest_bytes = min((self.caps[key] for key in account.keys), default=0)
            for key in account.keys:
                self.room[key] -= account.used_bytes

    def _account_of(self, account_key: AccountKey, rules: Mapping[str, int]) -> _Account:
        """Return the account of a user's kernels, and note the sizes of its quotas."""
        user, their_groups, granted = account_key
        named = [(USER + user, rule_for(rules, user)), (USER + user, granted)]
        named += [(GROUP + group, rule_for(rules, f"@{group}")) for group in their_groups]
        caps: dict[str, int] = {}
        for key, cap in named:
            if cap is not None:
                caps[key] = self.caps[key] = min(cap, self.caps.get(key, cap))
        return _Account(tuple(caps))

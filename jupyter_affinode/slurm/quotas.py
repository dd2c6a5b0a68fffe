"""Quotas of GPU memory by Slurm's shares: each account has its part of all GPUs of a node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

ASK_S = 30.0
GROUP = "@hub:"  # before groups that grants name
ROOT = "root"


def ask_for_shares() -> str:
    """Return what sshare says of accounts. Raises OSError and subprocess.SubprocessError."""
    asked = subprocess.run(
        ["sshare", "--noheader", "--parsable2", "--all", "--format=Account,User,RawShares"],
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=True,
    )
    return asked.stdout


def shares_of(text: str) -> dict[str, float]:
    """Return each account's part of the cluster, from 0 to 1: its part among its parent's accounts, of the parent's.

    An account is indented by one more than its parent. NormShares would say the same, but not with priority/basic.
    """
    parents: list[str] = []
    found: list[tuple[str, str, float]] = []  # account, parent, raw shares
    for line in text.splitlines():
        account, user, raw = [*line.split("|"), "", ""][:3]
        name, depth = account.strip(), len(account) - len(account.lstrip())
        if user or not name:
            continue
        parent = parents[depth - 1] if 0 < depth <= len(parents) else ""
        parents[depth:] = [name]
        if name != ROOT:
            found.append((name, parent, float(raw) if raw.isdecimal() else 0.0))
    shares = {ROOT: 1.0}
    for name, parent, raw_shares in found:
        of_all = sum(raw for _, other, raw in found if other == parent)
        shares[name] = shares.get(parent, 1.0) * (raw_shares / of_all if of_all else 0.0)
    del shares[ROOT]
    return shares


def quotas(shares: Iterable[tuple[str, float]], node_gib: float) -> str:
    """Return the setting `quotas` of the controllers, for nodes with so much GPU memory each."""
    return ", ".join(
        f"{GROUP}{account}={max(round(share * node_gib), 1)}GiB" for account, share in sorted(shares)
    )

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
        ["sshare", "--noheader", "--parsable2", "--all", "--format=Account,User,NormShares"],
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=True,
    )
    return asked.stdout


def shares_of(text: str) -> dict[str, float]:
    """Return each account's part of the cluster, from 0 to 1; nested accounts are indented, and each has its own."""
    shares = {}
    for line in text.splitlines():
        account, user, share = [*line.split("|"), "", ""][:3]
        if user or not share or account.strip() == ROOT:
            continue
        try:
            shares[account.strip()] = float(share)
        except ValueError:
            continue
    return shares


def quotas(shares: Iterable[tuple[str, float]], node_gib: float) -> str:
    """Return the setting `quotas` of the controllers, for nodes with so much GPU memory each."""
    return ", ".join(
        f"{GROUP}{account}={max(round(share * node_gib), 1)}GiB" for account, share in sorted(shares)
    )

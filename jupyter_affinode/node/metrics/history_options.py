"""What an administrator may set about history and figures; made from the application's traits."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from ..ledger.recorder import History
from ..ledger.store import Retention
from ..ledger.writer import Ledger
from ..state.registry import NodeState
from .collectors import Metrics


@dataclass(frozen=True)
class HistoryOptions:
    """Defaults are those of a controller without history, as tests make it."""

    ledger: Path | None = None  # None: no history is written
    retention: Retention = field(default_factory=Retention)
    with_names: bool = False  # notebooks' names and paths are written too
    metrics_users: bool = False  # metrics by user
    metrics_ip: str = ""
    metrics_port: int = 0  # 0: no metrics over TCP


def make_history(state: NodeState, metrics: Metrics, options: HistoryOptions, log: logging.Logger) -> History:
    """The observer that keeps history."""
    ledger = None
    if options.ledger is not None:
        ledger = Ledger(options.ledger, log, retention=options.retention)
        metrics.collector.ledger = ledger
    return History(state, metrics, ledger, with_names=options.with_names)

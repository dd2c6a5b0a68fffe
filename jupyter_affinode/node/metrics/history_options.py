"""An administrator's options for history and metrics, made of the controller's settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from ... import environment
from ...settings.controller import ControllerSettings
from ..ledger.recorder import History
from ..ledger.store import Retention
from ..ledger.writer import Ledger
from ..state.registry import NodeState
from .collectors import Metrics

NO_LEDGER = "none"


@dataclass(frozen=True)
class HistoryOptions:
    """Defaults are those of a controller without history, as tests make it."""

    ledger: Path | None = None  # None: no history is written
    retention: Retention = field(default_factory=Retention)
    with_names: bool = False  # notebooks' names and paths are written too
    metrics_users: bool = False  # metrics by user

    @classmethod
    def of(cls, settings: ControllerSettings, socket: Path) -> HistoryOptions:
        """Return the options of the controller that serves `socket`."""
        path = Path(settings.ledger).absolute() if settings.ledger else environment.ledger_path(socket)
        return cls(
            ledger=None if settings.ledger == NO_LEDGER else path,
            retention=Retention(settings.ledger_days),
            with_names=settings.ledger_names,
            metrics_users=settings.metrics_users,
        )


def make_history(state: NodeState, metrics: Metrics, options: HistoryOptions, log: logging.Logger) -> History:
    """Return the observer that keeps history."""
    ledger = None
    if options.ledger is not None:
        ledger = Ledger(options.ledger, log, retention=options.retention)
        metrics.collector.ledger = ledger
    return History(state, metrics, ledger, with_names=options.with_names)

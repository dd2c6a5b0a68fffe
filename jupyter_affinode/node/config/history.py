"""The settings of the ledger and of the metrics as traits of the node controller."""

from __future__ import annotations

from pathlib import Path

from traitlets import Bool, Bunch, Float, HasTraits, Int, TraitError, Unicode, validate

from ... import environment
from ..ledger.store import Retention
from ..metrics.history_options import HistoryOptions

_RETENTION = Retention()
NO_LEDGER = "none"
DAYS_MAX = 36_500

HISTORY_ALIASES = {
    "ledger": "NodeController.ledger",
    "ledger-days": "NodeController.ledger_days",
    "ledger-bytes": "NodeController.ledger_bytes",
    "ledger-names": "NodeController.ledger_names",
    "metrics-ip": "NodeController.metrics_ip",
    "metrics-port": "NodeController.metrics_port",
    "metrics-users": "NodeController.metrics_users",
}


class HistoryTraits(HasTraits):
    """Mixed into `app.NodeController`."""

    ledger = Unicode(
        help="""Path of the file in which history is kept, for `jupyter affinode report`: parks, resumes, waits,
        refusals, and GPU memory held, used and given back by user and day. Its folder must belong to the
        controller's user and be closed to others' writing. "none" keeps no history. Default: in the user's
        state folder, in /var/lib/affinode for the machine's own controller, beside the socket where that was
        named or the GPU is simulated.""",
    ).tag(config=True)
    ledger_days = Float(
        _RETENTION.days,
        min=0,
        help="Days after which history is forgotten. Lower it where law or works council asks for that.",
    ).tag(config=True)
    ledger_bytes = Int(
        _RETENTION.bytes,
        min=1 << 20,
        max=1 << 50,
        help="Size of the ledger's file above which its oldest events are forgotten before their time.",
    ).tag(config=True)
    ledger_names = Bool(
        False,
        help="""Write notebooks' names, paths and servers to the ledger, too. Off by default: they can say what
        a person works on. Never written are code, outputs or anything else of a notebook's contents.""",
    ).tag(config=True)
    metrics_ip = Unicode(
        "127.0.0.1",
        help="""Address at which metrics are served over TCP if `metrics_port` is set. Whoever can reach it can
        read them; "" is every address of the machine.""",
    ).tag(config=True)
    metrics_port = Int(
        0,
        min=0,
        max=65535,
        help="""TCP port for Prometheus: /metrics alone, never the API. 0 serves them on the API's Unix socket
        only. Set it on machines that Prometheus scrapes.""",
    ).tag(config=True)
    metrics_users = Bool(
        False,
        help="""Give metrics of GPU memory by user. Off by default: names leave the machine then, and each user
        is a time series of their own.""",
    ).tag(config=True)

    @validate("ledger_days")
    def _valid_days(self, proposal: Bunch) -> float:
        days: float = proposal["value"]
        if not 0 <= days <= DAYS_MAX:  # NaN neither
            raise TraitError(f"ledger_days must be a number from 0 to {DAYS_MAX}, not {days!r}")
        return days

    def history_options(self, socket: Path) -> HistoryOptions:
        """The traits, for the controller that serves `socket`."""
        path = Path(self.ledger).absolute() if self.ledger else environment.ledger_path(socket)
        return HistoryOptions(
            ledger=None if self.ledger == NO_LEDGER else path,
            retention=Retention(self.ledger_days, self.ledger_bytes),
            with_names=self.ledger_names,
            metrics_users=self.metrics_users,
            metrics_ip=self.metrics_ip,
            metrics_port=self.metrics_port,
        )

"""The controller's settings that are fixed when it starts: which users may connect, history, metrics."""

from __future__ import annotations

from dataclasses import dataclass

from .declaration import setting


@dataclass(frozen=True)
class _Identity:
    """Users and administrators"""

    socket: str = setting("", "Path of the API socket.", shown_default="AFFINODE_SOCKET, or the usual places")
    system: bool = setting(
        False,
        """Be the one controller of all this machine's users, at /run/affinode/node.sock; users' own controllers end
        when it answers. Run it as root, by the unit that `jupyter affinode systemd-unit` prints. Each user sees and
        moves only their own kernels.""",
    )
    admin_group: str = setting(
        "",
        """Members of this group (a name or a number), and root, see and move all kernels on the machine's controller,
        and change its settings. Inside containers neither counts.""",
    )
    grant_keys: str = setting(
        "",
        """Folder with the public keys that signed grants are checked with: `<kid>.pem` (Ed25519) or JSON Web Key Sets,
        `*.json`. A grant says whose a process is. For machines whose containers share user ids. Keys may be added and
        removed while the controller runs.""",
    )
    grant_audiences: tuple[str, ...] = setting(
        (),
        """The names of this controller that grants may be for. Where the signer does not know the machine, give all
        machines of a site one more name in common.""",
        shown_default='"affinode:" and the host\'s name',
    )
    require_grants: bool = setting(
        False,
        """Refuse connections without a grant (but for administrators). Choose it where containers share user ids, so
        that a user id says nothing.""",
    )
    api_ip: str = setting(
        "127.0.0.1",
        """Address at which administrators' part of the API is served over TCP if `api_port` is set; "" is every address
        of the machine. It is not encrypted: let only the Hub's programs reach it.""",
    )
    api_port: int = setting(
        0,
        """TCP port of the API for a Hub on another machine, by grants that it signs for each request: its
        administrators' page, and room for servers (`gpu_room_at`). Needs `grant_keys`. 0: the API is at the Unix socket
        alone.""",
        most=65535,
    )
    machine_name: str = setting(
        "",
        "What the administrators' page calls this machine. Set it in containers, whose host names say nothing.",
        shown_default="the host's name",
    )


@dataclass(frozen=True)
class _History:
    """History and metrics"""

    ledger: str = setting(
        "",
        """Path of the file in which history is kept, for `jupyter affinode report`: parks, resumes, waits, refusals,
        and GPU memory held, used and given back by user and day. Its folder must belong to the controller's user and
        be closed to others' writing. "none" keeps no history.""",
        shown_default="in the user's state folder, in /var/lib/affinode for the machine's own controller, beside the "
        "socket where that was named or the GPU is simulated",
    )
    ledger_days: float = setting(
        400.0,
        "Days after which history is forgotten. Lower it where law or works council asks for that.",
        most=36_500,
    )
    ledger_names: bool = setting(
        False,
        """Write notebooks' names, paths and servers to the ledger, too. Off by default: they can say what a user works
        on. Never written are code, outputs or anything else of a notebook's contents.""",
    )
    metrics_ip: str = setting(
        "127.0.0.1",
        """Address at which metrics are served over TCP if `metrics_port` is set. Every client that can reach it can
        read them; "" is every address of the machine.""",
    )
    metrics_port: int = setting(
        0,
        """TCP port for Prometheus: /metrics alone, never the API. 0 serves them on the API's Unix socket only. Set it
        on machines that Prometheus scrapes.""",
        most=65535,
    )
    metrics_users: bool = setting(
        False,
        """Give metrics of GPU memory by user. Off by default: names leave the machine then, and each user is a time
        series of their own.""",
    )


@dataclass(frozen=True)
class ControllerSettings(_History, _Identity):
    """What is fixed when a controller starts."""

"""The application's settings of who may enter, which the policy does not need."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
from pathlib import Path
from typing import Any

from traitlets import Bool, HasTraits, List, Unicode, default

from ... import environment
from ..identity.access import Access, EveryUserAccess, OwnUserAccess
from ..identity.grants import GrantsUnavailable, GrantVerifier

ACCESS_ALIASES = {
    "admin-group": "NodeController.admin_group",
    "grant-keys": "NodeController.grant_keys",
}
ACCESS_FLAGS: dict[str, Any] = {
    "system": ({"NodeController": {"system": True}}, "Serve all users of this machine."),
    "require-grants": ({"NodeController": {"require_grants": True}}, "Refuse whoever shows no grant."),
    "debug": ({"Application": {"log_level": logging.DEBUG}}, "Log more."),
}


class AccessTraits(HasTraits):
    """Who may enter; a part of `app.NodeController`."""

    system = Bool(
        False,
        help="""Be the one controller of all this machine's users, at /run/affinode/node.sock; users' own
        controllers give way to it. Run it as root, by the unit that `jupyter affinode systemd-unit` prints.
        Each user sees and moves only their own kernels.""",
    ).tag(config=True)
    admin_group = Unicode(
        help="""Members of this group (a name or a number), and root, see and move everyone's kernels on the
        machine's controller, and change its settings. Inside containers neither counts.""",
    ).tag(config=True)
    grant_keys = Unicode(
        help="""Folder with the public keys of who may say whose a process is, by signed grants: `<kid>.pem` (Ed25519)
        or JSON Web Key Sets, `*.json`. For machines whose containers share user ids. Keys may be added and
        removed while the controller runs.""",
    ).tag(config=True)
    grant_audiences = List(
        Unicode(),
        help="""The names of this controller that grants may be for. Default: "affinode:" and the host's name. Where
        the signer does not know the machine, give all machines of a site one more name in common.""",
    ).tag(config=True)
    require_grants = Bool(
        False,
        help="""Refuse whoever shows no grant (but for admins). Choose it where containers share user ids, so
        that a user id says nothing.""",
    ).tag(config=True)

    @default("grant_audiences")
    def _default_audiences(self) -> list[str]:
        return [f"affinode:{socket.gethostname()}"]

    def access(self) -> Access:
        """Who may enter. Raises GrantsUnavailable and NoSuchGroup."""
        if not self.system:
            return OwnUserAccess()
        grants = GrantVerifier(Path(self.grant_keys), self.grant_audiences) if self.grant_keys else None
        if self.require_grants and grants is None:
            raise GrantsUnavailable("require_grants needs grant_keys, the folder with the keys to check them")
        return EveryUserAccess(
            admin_group=self.admin_group, grants=grants, require_grants=self.require_grants
        )


def prepare_for_everyone(socket: Path) -> None:
    """A folder that everyone may enter and only we may change, and as many descriptors as we may have."""
    os.umask(0o077)  # of what lies in it, only the sockets are everyone's
    with contextlib.suppress(FileExistsError):
        socket.parent.mkdir(mode=0o755, parents=True)
        socket.parent.chmod(0o755)
    environment.verify_owned(socket.parent)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

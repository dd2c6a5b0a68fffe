"""Gives each server that the Hub spawns a grant, so that its machine's controller knows which user it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_affinode.client.grant_signing import sign_grant
from jupyter_affinode.environment import GRANT

DAY_S = 86400.0


def hub_groups(spawner: Any) -> list[str]:
    """Return the names of the groups that the Hub has for the server's user."""
    return [group.name for group in spawner.user.groups]


def sign(
    key: Path,
    audience: str | Sequence[str],
    *,
    user: str,
    server: str = "",
    groups: Sequence[str] = (),
    priority: int = 0,
    caps: Mapping[str, float] | None = None,
    lifetime_s: float = DAY_S,
    is_administrator: bool = False,
) -> str:
    """Return a grant for a server of the Hub's user, or for one request of an administrator's.

    Raises CannotSign and OSError.

    `key` is the file of the private key, read each time, so that it can be changed; its name without `.key` is the
    key's name on the nodes. `audience` is the site's name for its controllers.
    """
    return sign_grant(
        key.read_bytes(),
        key.stem,
        user=user,
        audience=audience,
        lifetime_s=lifetime_s,
        server=server or None,
        priority=priority,
        caps=dict(caps or {}),
        groups=groups,
        is_administrator=is_administrator,
    )


def grant_hook(
    key: Path,
    audience: str | Sequence[str],
    *,
    lifetime_s: float = DAY_S,
    priority: Callable[[Any], int] = lambda spawner: 0,
    caps: Callable[[Any], Mapping[str, float]] = lambda spawner: {},
    groups: Callable[[Any], Sequence[str]] = hub_groups,
) -> Callable[[Any], None]:
    """A `pre_spawn_hook` that puts a grant into the server's environment.

    `key` is the file of the private key, read at each spawn, so that it can be changed; its name without `.key` is
    the key's name on the nodes. `audience` is the site's name for its controllers. `priority`, `caps` and
    `groups` (the Hub's, if nothing else is said) are asked of the spawner; rules on the nodes name user and groups
    `hub:NAME`. A grant in the environment cannot be renewed: after `lifetime_s` the processes that it let in are
    managed as before, but the server's new kernels are not; choose it longer than servers live, or renew a file
    (AFFINODE_GRANT_FILE).

    Where no grant can be made, a missing key say, the Hub's log has the error and the server starts without: its GPU is
    its own then. A hook that raised would keep all servers from starting.

    In jupyterhub_config.py:

        from hub_spawner.grants import grant_hook
        c.Spawner.pre_spawn_hook = grant_hook(Path("/etc/affinode/hub-1.key"), "affinode:cluster")
    """

    def signed(spawner: Any) -> str:
        return sign(
            key,
            audience,
            user=spawner.user.name,
            server=spawner.name,
            groups=groups(spawner),
            priority=priority(spawner),
            caps=caps(spawner),
            lifetime_s=lifetime_s,
        )

    def hook(spawner: Any) -> None:
        environment = {name: value for name, value in spawner.environment.items() if name != GRANT}
        try:
            environment[GRANT] = signed(spawner)
        except Exception:  # whatever the site's own functions raise, too
            spawner.log.exception("%s gets no grant, and starts without GPU management", spawner.user.name)
        spawner.environment = environment

    return hook

"""Gives each server that the Hub spawns a grant, so that its machine's controller knows whose it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_affinode.environment import GRANT
from jupyter_affinode.grants import sign_grant

DAY_S = 86400.0


def grant_hook(
    key: Path,
    audience: str | Sequence[str],
    *,
    lifetime_s: float = DAY_S,
    priority: Callable[[Any], int] = lambda spawner: 0,
    caps: Callable[[Any], Mapping[str, float]] = lambda spawner: {},
) -> Callable[[Any], None]:
    """A `pre_spawn_hook` that puts a grant into the server's environment.

    `key` is the file of the private key, read at each spawn, so that it can be changed; its name without `.key` is
    the key's name on the nodes. `audience` is the site's name for its controllers. `priority` and `caps` are asked
    of the spawner. A grant in the environment cannot be renewed: it lasts as long as `lifetime_s`, after which the
    server's kernels are not managed any more; choose it longer than servers live, or renew a file
    (AFFINODE_GRANT_FILE).

    In jupyterhub_config.py:

        from hub_spawner.grants import grant_hook
        c.Spawner.pre_spawn_hook = grant_hook(Path("/etc/affinode/hub-1.key"), "affinode:cluster")
    """

    def hook(spawner: Any) -> None:
        spawner.environment = {
            **spawner.environment,
            GRANT: sign_grant(
                key.read_bytes(),
                key.stem,
                user=spawner.user.name,
                audience=audience,
                lifetime_s=lifetime_s,
                server=spawner.name or None,
                priority=priority(spawner),
                caps=caps(spawner),
            ),
        }

    return hook

"""Where a spawner starts servers: on the Hub's own machine, or perhaps on another one.

The Hub asks its own machine's controller for room only for servers that will be there. Any other class may be of a
batch system or of other machines, and what is freed here would help none of its servers.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

# The first of these names among a class and those that it derives from says where it starts servers.
HERE = {
    "LocalProcessSpawner": True,
    "SystemdSpawner": True,
    "DockerSpawner": True,  # and where its daemon is, see `docker_is_here`
    "SwarmSpawner": False,
    "PodmanSpawner": True,
    "PodmanCLISpawner": True,
    "SingularitySpawner": True,
}


def starts_here(spawner: type) -> bool:
    """Return whether servers of this class certainly start on the Hub's machine."""
    return next((HERE[each.__name__] for each in spawner.__mro__ if each.__name__ in HERE), False)


def kernels_may_stay(spawner: type) -> bool:
    """Return whether programs that a server started can be left alone at its end: containers and pods end whole."""
    return any(each.__name__ == "LocalProcessSpawner" for each in spawner.__mro__) or makes_units(spawner)


def makes_units(spawner: type) -> bool:
    """Return whether servers of this class are systemd's units, as those of SystemdSpawner."""
    return hasattr(spawner, "unit_extra_properties")


def docker_is_here(client_arguments: dict[str, Any]) -> bool:
    """Return whether the Docker daemon that DockerSpawner's client asks is on the Hub's machine."""
    address = str(client_arguments.get("base_url") or os.environ.get("DOCKER_HOST") or "unix://")
    url = urlsplit(address if "://" in address else f"tcp://{address}")
    is_socket = url.scheme in ("unix", "http+unix", "npipe")
    return is_socket or url.hostname in ("localhost", "::1") or (url.hostname or "").startswith("127.")

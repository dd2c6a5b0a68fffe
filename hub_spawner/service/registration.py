"""Adds the service to a Hub's configuration."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from traitlets.config import LazyConfigValue

from ..enabling import is_configured
from ..room import controller_socket

NAME = "affinode"
URL = "http://127.0.0.1:10109"


def add_service(
    c: Any,
    *,
    url: str = URL,
    nodes: Mapping[str, str] | None = None,
    grant_key: str = "",
    grant_audience: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> None:
    """Add the page about GPUs at `/services/affinode/` to the configuration `c`, once.

    `url` is where the service listens for the Hub's proxy. `nodes` are the machines' controllers by name (default:
    this machine's): a socket's path, or `http://HOST:PORT` for all that HOST stands for. `grant_key` and
    `grant_audience` are the spawner's. The key signs requests over the network; with it servers' grants are renewed
    here, and servers are told where, unless a `grant_url` is configured. `arguments` are for the service's command
    line. The service needs no scope: each request shows a token of its user.
    """
    services = c.JupyterHub.services
    is_lazy = isinstance(services, LazyConfigValue)
    known = services.to_dict().get("extend", []) if is_lazy else services
    if any(service.get("name") == NAME for service in known):
        return
    command = [sys.executable, "-m", "hub_spawner.service"]
    # The Hub hands its environment on to no service: where a machine is simulated, the socket is in that.
    machines = nodes or {socket.gethostname(): str(controller_socket(""))}
    command += [f"--node={name}={path}" for name, path in machines.items()]
    if grant_key:
        command.append(f"--grant-key={grant_key}")
        command += [f"--grant-audience={audience}" for audience in grant_audience]
    service = {
        "name": NAME,
        "url": url,
        "command": [*command, *arguments],
        "oauth_no_confirm": True,  # the page reads nothing of its user but the name
        "display": True,
    }
    if grant_key and not is_configured(c, "grant_url"):
        base = c.JupyterHub.base_url if isinstance(c.JupyterHub.base_url, str) else "/"
        c.GpuPolicy.grant_url = f"{url}{base.rstrip('/')}/services/{NAME}/grant"
    if is_lazy:
        services.append(service)
    else:
        c.JupyterHub.services = [*services, service]

"""Pods of a real KubeSpawner without a cluster, and the schemas of Kubernetes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from namespaces import NAMESPACES, needs_namespaces
from traitlets.config import Config

sys.path.insert(0, str(Path(__file__).parent.parent / "hub"))  # live_hub

# The oldest that Zero to JupyterHub takes, the first with the DRA API's v1, the newest whose schemas are here.
KUBERNETES = ("1.32", "1.34", "1.37")


class PodIsMade(Exception):
    """The pod that would be sent to the cluster."""


@pytest.fixture
def pod_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """`pod_of(config, profile="gpu")`: the pod that KubeSpawner would send to the cluster for ana, as JSON.

    `plain`: of KubeSpawner itself.
    """
    # Here: the client of Kubernetes takes a second, which other processes of pytest need not take.
    from jupyterhub.objects import Hub, Server
    from kubernetes_asyncio.client import ApiClient
    from kubespawner import KubeSpawner

    from hub_spawner.enabling import derived

    async def send(self: KubeSpawner, pod: Any, *_: Any) -> None:
        raise PodIsMade(pod)

    # The first would read credentials for a cluster, the others ask one.
    monkeypatch.setattr("kubespawner.spawner.load_config", lambda **_: None)
    monkeypatch.setattr(KubeSpawner, "_make_create_pod_request", send)

    async def watch(self: KubeSpawner, *_: Any, **__: Any) -> None:
        """Watch no cluster."""

    for name in ("_start_watching_pods", "_start_watching_events"):
        monkeypatch.setattr(KubeSpawner, name, watch)

    async def made(config: Config, profile: str | None, spawner_class: type[Any]) -> dict[str, Any]:
        user = SimpleNamespace(
            name="ana", escaped_name="ana", id=1, url="/user/ana/", groups=[], settings={}, server=Server()
        )
        hub = Hub(ip="hub", port=8081, connect_ip="hub")
        spawner = spawner_class(
            hub=hub, user=user, config=config, _mock=True, api_token="token", oauth_client_id="ana"
        )
        spawner.user_options = {"profile": profile} if profile else {}
        with pytest.raises(PodIsMade) as sent:
            await spawner._start()
        async with ApiClient() as client:
            plain: dict[str, Any] = client.sanitize_for_serialization(sent.value.args[0])
        return plain

    def pod_of(config: Config, profile: str | None = None, plain: bool = False) -> dict[str, Any]:
        return asyncio.run(made(config, profile, KubeSpawner if plain else derived(KubeSpawner)))

    return pod_of


class Accepted:
    """Shows that the schema of a resource in one release of Kubernetes allows it, and knows every name in it."""

    def __init__(self, release: str):
        self.release = release

    def __call__(self, resource: dict[str, Any]) -> None:
        import kubernetes_validate

        kubernetes_validate.validate(resource, self.release, strict=True)


@pytest.fixture(params=KUBERNETES)
def accepted(request: pytest.FixtureRequest) -> Accepted:
    """`accepted(resource)`, for each of the releases."""
    return Accepted(request.param)


@pytest.fixture
def namespaces() -> Sequence[str]:
    """A command line that begins mount and pid namespaces; skips where there are none."""
    needs_namespaces(*NAMESPACES, "true")
    return NAMESPACES

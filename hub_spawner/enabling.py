"""`enable(c)`: give the site's spawner class the GPU policy, whatever class that is."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from traitlets.config import Config

from .spawner_mixin import GpuPolicy, has_spawn_exception

OLDEST = (5, 0)
DEFAULT = "jupyterhub.spawner.LocalProcessSpawner"


class NotEnabled(ValueError):
    """The configuration cannot work with the GPU policy; the message says what to change."""


def enable(c: Any) -> None:
    """Have servers spawned with the GPU policy: the last line of jupyterhub_config.py.

    The configured spawner class is taken as it is (a name, a path, a class) and one is derived from it; its
    configuration (`c.KubeSpawner…`) and the site's hooks hold as before. Traits of the spawner configure the
    policy, `c.Spawner.gpu_memory = "20GiB"` first of all: see `GpuPolicy`. Calling it again changes nothing.
    Raises NotEnabled.

        import hub_spawner
        hub_spawner.enable(c)
    """
    _check_version()
    spawner = _spawner_class(c.JupyterHub.get("spawner_class") or DEFAULT)
    _check_configuration(c, spawner)
    c.JupyterHub.spawner_class = derived(spawner)


def derived(spawner: type) -> type:
    """Return a class of the spawner's with the GPU policy; the spawner itself if it has that."""
    if issubclass(spawner, GpuPolicy):
        return spawner
    mixin = GpuPolicy
    if hasattr(spawner, "get_pod_manifest"):
        from .kubernetes import KubernetesGpuPolicy

        mixin = KubernetesGpuPolicy
    name = f"Gpu{spawner.__name__}"
    return type(name, (mixin, spawner), {"__module__": __name__, "__doc__": spawner.__doc__})


def _spawner_class(configured: Any) -> type:
    """Return the class that the Hub would take."""
    if isinstance(configured, type):
        return configured
    named = [
        point
        for point in entry_points(group="jupyterhub.spawners")
        if point.name.lower() == configured.lower()
    ]
    if named:
        loaded: type = named[0].load()
        return loaded
    module, _, name = configured.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise NotEnabled(
            f"JupyterHub.spawner_class is {configured!r}, which cannot be imported: {error}"
        ) from None
    if not isinstance(found, type):
        raise NotEnabled(f"JupyterHub.spawner_class is {configured!r}, which is no class")
    return found


def _check_version() -> None:
    try:
        import jupyterhub
    except ImportError:
        raise NotEnabled("JupyterHub is not installed here: pip install 'jupyter-affinode[hub]'") from None
    if tuple(jupyterhub.version_info[:2]) < OLDEST:
        raise NotEnabled(
            f"JupyterHub {jupyterhub.__version__} is too old for the GPU policy, which needs"
            f" {OLDEST[0]}.{OLDEST[1]} or later"
        )


def _check_configuration(c: Any, spawner: type) -> None:
    """Raise or warn about what would not work, before the Hub starts."""
    if _configured(c, spawner, "isolate_devices"):
        raise NotEnabled(
            "isolate_devices hides the GPU from servers: remove it, or allow the GPU's devices by"
            " unit_extra_properties = {'DevicePolicy': 'closed', 'DeviceAllow': 'char-nvidia* rw'}"
        )
    refuses = _configured(c, spawner, "on_gpu_full") == "refuse"
    if refuses and hasattr(spawner, "get_pod_manifest"):
        raise NotEnabled(
            "on_gpu_full = 'refuse' is not possible for pods: their node is not known before they start, and the"
            " init container that asks it for room refuses nothing. Remove it; the first GPU cell waits"
        )
    limit = _configured(c, spawner, "consecutive_failure_limit")
    if limit and refuses and not has_spawn_exception():
        raise NotEnabled(
            f"on_gpu_full = 'refuse' with consecutive_failure_limit = {limit} would end the Hub after {limit} refusals:"
            " this JupyterHub counts them as failures (6.0 does not). Set on_gpu_full = 'start', or the limit to 0"
        )


def is_configured(c: Any, trait: str) -> bool:
    """Return whether a site has set a trait of the policy's, for whichever class.

    What is said of `GpuPolicy` goes before what is said of the site's spawner class, as it stands before it.
    """
    return any(isinstance(section, Config) and trait in section for section in c.values())


def _configured(c: Any, spawner: type, trait: str) -> Any:
    """Return what the configuration says of a trait, for the class or one that it derives from; None for nothing."""
    for each in (spawner.__mro__[0], *spawner.__mro__[1:], GpuPolicy):
        section = c.get(each.__name__)
        if section is not None and trait in section:
            return section[trait]
    return None

"""`enable(c)`: give the site's spawner class the GPU policy, whatever class that is."""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from typing import Any

from traitlets.config import Application, Config
from traitlets.log import get_logger

from jupyter_affinode.keeping.surroundings import why_children_end

from .places import kernels_may_stay, makes_units, starts_here
from .spawner_mixin import GpuPolicy, has_spawn_exception

OLDEST = (5, 0)
DEFAULT = "jupyterhub.spawner.LocalProcessSpawner"
SETTINGS = "tornado_settings"  # the Hub's trait in which it puts the class of its spawners at its start


class NotEnabled(ValueError):
    """The configuration cannot work with the GPU policy; the message says what to change."""


def enable(c: Any) -> None:
    """Have servers spawned with the GPU policy.

    The site's spawner class is taken as it is (a name, a path, a class) and one is derived from it; its
    configuration (`c.KubeSpawner…`) and the site's hooks hold as before. A Hub that reads its configuration derives the
    class at its start, so that what other files and the command line say after this line counts, too. Traits of the
    spawner configure the policy, `c.Spawner.gpu_memory = "20GiB"` first of all: see `GpuPolicy`. Calling it again
    changes nothing. Raises NotEnabled, as does the start of the Hub.

        import hub_spawner
        hub_spawner.enable(c)
    """
    _check_version()
    # Not JupyterHub.instance(): `python -m jupyterhub.app` has another class of that name.
    hub = Application.instance() if Application.initialized() else None
    if hub is not None and hub.has_trait(SETTINGS) and "spawner_class" not in getattr(hub, SETTINGS):
        hub.observe(_complete, SETTINGS)
    else:  # `c` is for a Hub that is made later, or elsewhere
        c.JupyterHub.spawner_class = _enabled(c, _spawner_class(c.JupyterHub.get("spawner_class") or DEFAULT))


def _complete(change: Any) -> None:
    """Derive the class of a Hub's spawners: its settings are made, and its configuration is whole."""
    settings = change.new
    if "spawner_class" in settings:
        made = _enabled(change.owner.config, settings["spawner_class"])
        change.owner.spawner_class = settings["spawner_class"] = made


def _enabled(c: Any, spawner: type) -> type[GpuPolicy]:
    """Return the class to spawn with, of a configuration that is checked."""
    made = derived(spawner)
    _check_configuration(c, made)
    _warn(c, made)
    return made


@functools.cache
def derived(spawner: type) -> type[GpuPolicy]:
    """Return a class of the spawner's with the GPU policy; the spawner itself if it has that.

    It has the spawner's name, by which the Hub's pages and logs and the site's configuration know it.
    """
    if issubclass(spawner, GpuPolicy):
        return spawner
    own = {"__module__": spawner.__module__, "__qualname__": spawner.__qualname__, "__doc__": spawner.__doc__}
    return type(spawner.__name__, (*_mixins(spawner), spawner), own)


def _mixins(spawner: type) -> list[type]:
    """Return what goes before a class of spawners, by what that class can do."""
    from .wrapping import WrappingGpuPolicy, child_names

    mixins: list[type] = []
    if child_names(spawner):
        mixins.append(WrappingGpuPolicy)
    if hasattr(spawner, "get_pod_manifest"):
        from .kubernetes import KubernetesGpuPolicy

        mixins.append(KubernetesGpuPolicy)
    if hasattr(spawner, "volume_binds"):
        from .docker import DockerGpuPolicy

        mixins.append(DockerGpuPolicy)
    if hasattr(spawner, "state_gethost"):
        from .batch import BatchGpuPolicy

        mixins.append(BatchGpuPolicy)
    if makes_units(spawner):
        from .systemd import SystemdGpuPolicy

        mixins.append(SystemdGpuPolicy)
    return mixins or [GpuPolicy]


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


def _warn(c: Any, spawner: type[GpuPolicy]) -> None:
    """Say what works otherwise than a site may expect."""
    if "cleanup_servers" not in c.JupyterHub:
        get_logger().warning(
            "the Hub's end will end all servers, and what their kernels have on the GPU. To restart the Hub without"
            " that, set c.JupyterHub.cleanup_servers = False"
        )
    if _configured(c, spawner, "keep_kernels") in ("parked", "all"):
        _warn_of_kernels_that_end(c, spawner)
    asks = spawner.gpu_asks_from_hub and _configured(c, spawner, "gpu_memory")
    asks = asks and not _configured(c, spawner, "gpu_controllers")
    if asks and not _configured(c, spawner, "gpu_room_at") and not starts_here(spawner):
        get_logger().warning(
            "no GPU room is asked for before servers of %s start: they may start on another machine than the Hub's."
            " c.Spawner.gpu_room_at says where to ask",
            spawner.__name__,
        )


def _warn_of_kernels_that_end(c: Any, spawner: type[GpuPolicy]) -> None:
    """Say where kernels end although they are to be kept."""
    if not spawner.gpu_starts_servers:
        return  # that is for the child to say
    if not kernels_may_stay(spawner):
        get_logger().warning(
            "keep_kernels has no effect: what %s starts ends whole, kernels included, when a server is stopped",
            spawner.__name__,
        )
    elif makes_units(spawner):
        from .systemd import ASKED, why_kernels_end

        why = why_kernels_end({name: _configured(c, spawner, name) for name in ASKED})
        if why is not None:
            get_logger().warning("keep_kernels has no effect: %s", why)
    elif (why := why_children_end()) is not None:
        get_logger().warning("kernels that are kept end with the Hub: when it ends, %s", why)


def is_configured(c: Any, trait: str) -> bool:
    """Return whether a site has set a trait of the policy's, for whichever class."""
    return any(isinstance(section, Config) and trait in section for section in c.values())


def _configured(c: Any, spawner: type, trait: str) -> Any:
    """Return what the configuration says of a trait, for the class or one that it derives from; None for nothing."""
    for each in (spawner.__mro__[0], *spawner.__mro__[1:], GpuPolicy):
        section = c.get(each.__name__)
        if section is not None and trait in section:
            return section[trait]
    return None

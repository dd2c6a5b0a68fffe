"""The GPU policy of spawners that have another spawner start the server, as wrapspawner's do."""

from __future__ import annotations

from typing import Any

from traitlets import Type
from traitlets.utils.importstring import import_item

from .places import kernels_may_stay
from .spawner_mixin import GpuPolicy

CHILD_CLASS = "child_class"  # as wrapspawner calls it; other classes may have it as a plain attribute


class WrappingGpuPolicy(GpuPolicy):
    """`GpuPolicy` for a class that makes child spawners: they have the policy, this one has its traits and its story.

    What the child does depends on its class and its own configuration, which a user may have chosen. So the child asks
    for room.
    """

    gpu_asks_from_hub = False
    gpu_starts_servers = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for name in child_names(type(self)):
            self._derive_child(name)
            if self.has_trait(name):
                self.observe(lambda change: self._derive_child(change.name), name)

    def gpu_keeps_kernels(self) -> bool:
        """Return whether kernels of the server may outlive it: that is for the child to say."""
        children = [getattr(self, name) for name in child_names(type(self))]
        if self.keep_kernels == "hibernated":
            return True
        return self.keep_kernels != "never" and any(
            isinstance(child, type) and kernels_may_stay(child) for child in children
        )

    def _derive_child(self, name: str) -> None:
        """Have the class of child spawners that `name` holds be one with the policy."""
        from .enabling import derived

        child = getattr(self, name)
        if isinstance(child, type):
            setattr(self, name, derived(child))


def child_names(spawner: type) -> list[str]:
    """Return the names under which a class of spawners keeps the classes of its child spawners."""
    traits: dict[str, Any] = getattr(spawner, "class_traits", dict)()
    names = [name for name, trait in traits.items() if isinstance(trait, Type) and _is_spawner(trait.klass)]
    if CHILD_CLASS not in traits and _is_spawner(getattr(spawner, CHILD_CLASS, None)):
        names.append(CHILD_CLASS)
    return names


def _is_spawner(named: Any) -> bool:
    """Return whether a class, or the path of one, is of spawners."""
    from jupyterhub.spawner import Spawner

    found = import_item(named) if isinstance(named, str) else named
    return isinstance(found, type) and issubclass(found, Spawner)

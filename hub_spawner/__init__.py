"""JupyterHub's side of jupyter-affinode, for the Hub's machine.

The last line of jupyterhub_config.py:

    import hub_spawner
    hub_spawner.enable(c)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .enabling import NotEnabled as NotEnabled
    from .enabling import enable as enable
    from .spawner_mixin import GpuPolicy as GpuPolicy

_WHERE = {"enable": ".enabling", "NotEnabled": ".enabling", "GpuPolicy": ".spawner_mixin"}


def __getattr__(name: str) -> Any:
    """Import a name on its first use, so that grants can be signed without JupyterHub."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_WHERE[name], __name__), name)
    return value

"""Give an idle notebook's GPU back, and get it again with every tensor where it was.

This package is imported by Jupyter Server, by the node controller, by the command line and, through
`%load_ext jupyter_affinode`, inside kernels: it imports nothing else until one of them asks.
"""

from __future__ import annotations

import typing

from ._version import __version__

if typing.TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["__version__", "load_ipython_extension"]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where the built JupyterLab extension lies; called by JupyterLab's developer commands."""
    return [{"src": "labextension", "dest": "jupyter-affinode"}]


def _jupyter_server_extension_points() -> list[dict[str, typing.Any]]:
    """The server extension; called by Jupyter Server when it looks for extensions."""
    from .server.extension import AffinodeExtension

    return [{"module": "jupyter_affinode", "app": AffinodeExtension}]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the `%gpu_…` magics; called by `%load_ext jupyter_affinode`."""
    from .kernel.magics import load_ipython_extension as load

    load(shell)

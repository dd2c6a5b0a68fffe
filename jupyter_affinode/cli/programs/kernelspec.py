"""`jupyter affinode kernelspec wrap NAME`: a kernelspec whose kernels are managed whatever front end starts
them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

MARK = "jupyter_affinode"
DESCRIPTION = """Write a kernelspec that starts the kernel of kernelspec NAME through `jupyter affinode run`,
for front ends that do not use our Jupyter server extension. With it, NAME is managed without any of this."""

# What front ends noted about the wrapped kernelspec's own command. VS Code starts `interpreter` in place of argv[0],
# and shows one kernelspec only for all that name the same original.
NOTES_ON_COMMAND = frozenset({"interpreter", "vscode", "originalSpecFile", "originalDisplayName"})

# The kernelspec outlives this installation: where script or Python is gone, the kernel starts unmanaged. Python looks
# for modules beside the script and never in the current folder.
START = """
for part in "$0" "$1"; do
    if [ ! -e "$part" ]; then
        echo "affinode: not managed: there is no $part any more" >&2
        shift 2
        exec "$@"
    fi
done
python=$1
shift
exec "$python" "$0" run "$@"
""".strip()


class CannotWrap(Exception):
    """The kernelspec cannot be wrapped or removed; the message says why."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("kernelspec", help="make kernelspecs whose kernels are managed")
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)
    wrap_parser = parsers.add_parser("wrap", help="wrap a kernelspec", description=DESCRIPTION)
    wrap_parser.add_argument(
        "original", metavar="NAME", help="the kernelspec to wrap (jupyter kernelspec list)"
    )
    wrap_parser.add_argument("--name", help="the new kernelspec's name (default: NAME-affinode)")
    where = wrap_parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="install for yourself (default)")
    where.add_argument("--prefix", help="install into an environment, e.g. --prefix=$CONDA_PREFIX")
    wrap_parser.add_argument("--remove", action="store_true", help="remove the wrapped kernelspec again")
    wrap_parser.set_defaults(command=kernelspec)


def kernelspec(arguments: argparse.Namespace) -> int:
    """Wrap a kernelspec, or remove a wrapped one; return 1, with the reason on standard error, if that is
    impossible."""
    name = arguments.name or f"{arguments.original}-affinode"
    manager = KernelSpecManager()
    try:
        if arguments.remove:
            print(f"Removed {remove(manager, name)}")
        else:
            print(f"Installed {name} in {wrap(manager, arguments.original, name, prefix=arguments.prefix)}")
    except (CannotWrap, NoSuchKernel, OSError) as error:
        print(f"jupyter affinode kernelspec: {error}", file=sys.stderr)
        return 1
    return 0


def wrap(manager: KernelSpecManager, original: str, name: str, *, prefix: str | None = None) -> str:
    """Install the wrapped kernelspec and return its folder. Resources (logos, scripts) are copied."""
    spec = manager.get_kernel_spec(original)
    model = json.loads((Path(spec.resource_dir) / "kernel.json").read_text(encoding="utf-8"))
    said = model.get("metadata") or {}
    if MARK in said:
        raise CannotWrap(f"{original} is wrapped already")
    provisioner = (said.get("kernel_provisioner") or {}).get("provisioner_name", "local-provisioner")
    if provisioner not in ("local-provisioner", "affinode-provisioner"):
        raise CannotWrap(
            f"{original} is started by {provisioner}; only kernels of this machine can be wrapped"
        )
    if name == original or (name in manager.find_kernel_specs() and not _is_ours(manager, name)):
        raise CannotWrap(f"there is a kernelspec {name} already; choose another --name")
    model["argv"] = ["/bin/sh", "-c", START, str(_script()), sys.executable, "--", *_command(model["argv"])]
    model["display_name"] = f"{model.get('display_name') or original} (GPU shared)"
    model["metadata"] = {
        **{name: value for name, value in said.items() if name not in NOTES_ON_COMMAND},
        # A Jupyter server with our extension must not preload a second time.
        "kernel_provisioner": {"provisioner_name": "local-provisioner", "config": {}},
        MARK: {"wraps": original},
    }
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / name
        shutil.copytree(spec.resource_dir, fresh)
        (fresh / "kernel.json").write_text(json.dumps(model, indent=1), encoding="utf-8")
        return manager.install_kernel_spec(str(fresh), kernel_name=name, user=prefix is None, prefix=prefix)


def _command(argv: list[str]) -> list[str]:
    """Return a kernelspec's command with the interpreter that jupyter_client uses for a bare "python"."""
    if argv[0] in {"python", f"python{sys.version_info[0]}", "python{}.{}".format(*sys.version_info)}:
        return [sys.executable, *argv[1:]]
    return argv


def _script() -> Path:
    """Return the path of the script `jupyter-affinode`, which goes when this package is uninstalled."""
    for file in metadata.files("jupyter-affinode") or []:
        if file.name == "jupyter-affinode" and file.parent.name == "bin":
            return Path(os.path.normpath(file.locate()))
    raise CannotWrap("this installation has no script jupyter-affinode")


def remove(manager: KernelSpecManager, name: str) -> str:
    """Remove a kernelspec that `wrap` wrote; return its folder."""
    if not _is_ours(manager, name):
        raise CannotWrap(f"{name} was not made by `kernelspec wrap`; use jupyter kernelspec remove")
    return manager.remove_kernel_spec(name)


def _is_ours(manager: KernelSpecManager, name: str) -> bool:
    return MARK in (manager.get_kernel_spec(name).metadata or {})

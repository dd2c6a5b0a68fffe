"""`jupyter affinode warm add | list | remove`: kernelspecs whose kernels are ready before a notebook wants one."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from ... import environment
from ...keeping.client import KeeperRefused, KeeperUnavailable, connected, is_there
from ...keeping.warm_spec import COUNT_MAX, SECTION, WARM, read_spec, warm_section
from ...provisioning.default import LOCAL, OURS
from ...provisioning.provisioner import warm_want
from ...time_of_day import clock_in_words
from ...units import bytes_in_words
from ..output import failed
from ..programs.kernelspec import MARK as WRAPPED

PRELUDE = "prelude.py"
ADD = """Install a kernelspec NAME whose kernels are kept ready: started, and the prelude run. Any program that
starts kernels by kernelspec then takes one of them. With --from, install all kernelspecs of a folder: each has a folder
of its own with kernel.json and prelude.py."""


class CannotAdd(Exception):
    """The kernelspec cannot be made warm; the message says why."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("warm", help="keep kernels ready, with their models loaded")
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)
    adding = parsers.add_parser("add", help="install a warm kernelspec", description=ADD)
    adding.add_argument("name", metavar="NAME", nargs="?", help="the new kernelspec's name")
    adding.add_argument(
        "--kernelspec", metavar="NAME", default="python3", help="what its kernels are (default: python3)"
    )
    adding.add_argument("--prelude", metavar="FILE", help="a Python file that each kernel runs first")
    adding.add_argument("--count", type=_count, default=1, help="how many are kept ready (default: 1)")
    adding.add_argument(
        "--file",
        metavar="FILE",
        action="append",
        default=[],
        help="also make them anew when this file changes",
    )
    adding.add_argument("--display-name", metavar="WORDS", help="what notebooks show (default: NAME)")
    adding.add_argument("--from", metavar="FOLDER", dest="folder", help="install the kernelspecs of a folder")
    where = adding.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="install for yourself (default)")
    where.add_argument(
        "--sys-prefix", action="store_true", help="install into this environment, for all users"
    )
    where.add_argument("--prefix", metavar="FOLDER", help="install into another environment")
    listing = parsers.add_parser("list", help="list warm kernels")
    listing.add_argument("--json", action="store_true", help="print JSON")
    removing = parsers.add_parser("remove", help="end a kernelspec's warm kernels, and remove the kernelspec")
    removing.add_argument("name", metavar="NAME")
    for each, command in ((adding, _add), (listing, _list), (removing, _remove)):
        each.set_defaults(command=command)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= COUNT_MAX:
        raise argparse.ArgumentTypeError(f"must be 1 to {COUNT_MAX}")
    return int(text)


def _add(arguments: argparse.Namespace) -> int:
    manager = KernelSpecManager()
    prefix = sys.prefix if arguments.sys_prefix else arguments.prefix
    try:
        if arguments.folder:
            made = _install_folder(manager, Path(arguments.folder), prefix)
        elif arguments.name:
            made = [_install_one(manager, arguments, prefix)]
        else:
            raise CannotAdd("say a NAME, or a folder with --from")
        for folder in made:
            print(f"Installed {os.path.basename(folder)} in {folder}")
        if (
            prefix is None
        ):  # what is installed for all users is made by their servers, not for an administrator
            asyncio.run(_want([os.path.realpath(folder) for folder in made]))
    except (CannotAdd, NoSuchKernel, ValueError, OSError) as error:
        print(f"jupyter affinode warm: {error}", file=sys.stderr)
        return 1
    except KeeperRefused as refused:
        print(f"jupyter affinode warm: its kernels are made when one is wanted: {refused}", file=sys.stderr)
    return 0


def _install_one(manager: KernelSpecManager, arguments: argparse.Namespace, prefix: str | None) -> str:
    spec = manager.get_kernel_spec(arguments.kernelspec)
    if arguments.name == arguments.kernelspec:
        raise CannotAdd("its name must be another than that of the kernelspec that it is made of")
    model = json.loads((Path(spec.resource_dir) / "kernel.json").read_text(encoding="utf-8"))
    warm: dict[str, Any] = {"count": arguments.count}
    if arguments.prelude:
        warm["prelude"] = PRELUDE
    if arguments.file:
        warm["files"] = [str(Path(each).resolve()) for each in arguments.file]
    model["display_name"] = arguments.display_name or arguments.name
    return _install(manager, Path(spec.resource_dir), model, warm, arguments.name, prefix, arguments.prelude)


def _install_folder(manager: KernelSpecManager, folder: Path, prefix: str | None) -> list[str]:
    found = sorted(path.parent for path in folder.glob("*/kernel.json"))
    if not found:
        raise CannotAdd(f"{folder} has no folders with a kernel.json")
    made = []
    for each in found:
        model = json.loads((each / "kernel.json").read_text(encoding="utf-8"))
        warm = warm_section(model.get("metadata")) or {}
        if (each / PRELUDE).exists():
            warm = {"prelude": PRELUDE, **warm}
        made.append(_install(manager, each, model, {"count": 1, **warm}, each.name, prefix))
    return made


def _install(
    manager: KernelSpecManager,
    resources: Path,
    model: dict[str, Any],
    warm: dict[str, Any],
    name: str,
    prefix: str | None,
    prelude: str | None = None,
) -> str:
    """Install a kernelspec and return its folder."""
    there = manager.find_kernel_specs().get(name)
    if there is not None and read_spec(there) is None:
        raise CannotAdd(
            f"there is a kernelspec {name} already, which is none of `warm add`'s: choose another name"
        )
    metadata = model.get("metadata") or {}
    started_by = (metadata.get("kernel_provisioner") or {}).get("provisioner_name", LOCAL)
    if started_by not in (LOCAL, OURS) or WRAPPED in metadata:
        how = "jupyter affinode kernelspec wrap" if WRAPPED in metadata else started_by
        raise CannotAdd(
            f"{name} would be made of kernels that are started by {how}; name another --kernelspec"
        )
    section = metadata.get(SECTION)
    others = section if isinstance(section, dict) else {}
    model["metadata"] = {
        **metadata,
        "kernel_provisioner": {
            "provisioner_name": OURS,
            "config": {},
        },  # also in programs that know nothing of us
        SECTION: {**others, WARM: warm},
    }
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / name
        shutil.copytree(resources, fresh)
        if prelude is not None:
            shutil.copyfile(prelude, fresh / PRELUDE)
        (fresh / "kernel.json").write_text(json.dumps(model, indent=1), encoding="utf-8")
        read_spec(str(fresh))
        return manager.install_kernel_spec(str(fresh), kernel_name=name, user=prefix is None, prefix=prefix)


async def _want(folders: list[str]) -> None:
    try:
        async with await connected() as keeper:
            for folder in folders:
                spec = read_spec(folder)
                if spec is not None:
                    settings = settings_without_server()
                    await keeper.want_warm(warm_want(spec, os.environ, settings), again=True)
    except KeeperUnavailable as error:
        raise OSError(f"its kernels are made when one is wanted: {error}") from None


def settings_without_server() -> dict[str, Any]:
    """Return how warm kernels are made where no server says so."""
    images = os.environ.get(environment.HIBERNATE_DIR, "")
    return (
        {"hibernate_dir": images, "hibernate_after_s": 0.0, "depth": "context" if images else None}
        if images
        else {}
    )


def _list(arguments: argparse.Namespace) -> int:
    try:
        pools = asyncio.run(_asked()) if is_there() else []
    except (KeeperUnavailable, KeeperRefused) as error:
        return failed(arguments, "refused", str(error))
    if arguments.json:
        print(json.dumps(pools, indent=2))
    else:
        print("\n".join(map(in_words, pools)) or "No warm kernels.")
    return 0


async def _asked() -> list[dict[str, Any]]:
    async with await connected() as keeper:
        return await keeper.list_warm()


def in_words(pool: dict[str, Any]) -> str:
    """Return what there is of one kernelspec's warm kernels, in lines."""
    words = f"{pool['name']}: {pool['ready']} of {pool['count']} ready"
    if pool["making"]:
        words += f", {pool['making']} being made"
    if pool["note"] or pool["problem"]:
        words += f" ({pool['note'] or pool['problem']})"
    if not pool["is_wanted"]:
        words += " (made when one is wanted)"
    lines = [words]
    for kernel in pool["kernels"]:
        where = "on disk" if kernel["place"] == "image" else "in RAM"
        made = clock_in_words(kernel["made_at"] - time.time())
        size = bytes_in_words(kernel["bytes"])
        lines.append(f"  {kernel['id'][:8]}  made at {made} in {kernel['took_s']:.1f} s, {size} {where}")
    if pool["failed"]:
        lines += ["  " + line for line in pool["failed"].rstrip().splitlines()]
        lines.append("  It is tried again when the prelude, the kernelspec or a package changes.")
    return "\n".join(lines)


def _remove(arguments: argparse.Namespace) -> int:
    manager = KernelSpecManager()
    try:
        folder = manager.get_kernel_spec(arguments.name).resource_dir
        if read_spec(folder) is None:
            raise CannotAdd(f"{arguments.name} is no warm kernelspec; use jupyter kernelspec remove")
        asyncio.run(_drop(os.path.realpath(folder)))
        print(f"Removed {manager.remove_kernel_spec(arguments.name)}")
    except (CannotAdd, NoSuchKernel, KeeperUnavailable, KeeperRefused, ValueError, OSError) as error:
        print(f"jupyter affinode warm: {error}", file=sys.stderr)
        return 1
    return 0


async def _drop(folder: str) -> None:
    if is_there():
        async with await connected() as keeper:
            await keeper.drop_warm(folder)

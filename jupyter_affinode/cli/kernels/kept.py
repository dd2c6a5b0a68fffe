"""`jupyter affinode kept | hibernate | wake`: the user's kernels that no server has; kernels to disk and back."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from dataclasses import asdict
from typing import Any

from ... import environment
from ...keeping.client import Keeper, KeeperRefused, KeeperUnavailable, Kept, connected
from ...time_of_day import clock_in_words
from ...units import bytes_in_words
from ..kernel_argument import NoSuchKernel, add_kernel_argument, find_kernel, short_id
from ..output import failed

HELP = {
    "kept": "list the kernels that no server has",
    "hibernate": "put an idle kernel on disk, with its GPU memory, and end its processes",
    "wake": "start a hibernated kernel again, where it was",
}


def add(commands: Any) -> None:
    """Add the commands."""
    for action, words in HELP.items():
        parser = commands.add_parser(action, help=words, description=words[0].upper() + words[1:] + ".")
        if action != "kept":
            add_kernel_argument(parser)
        parser.add_argument(
            "--images",
            metavar="FOLDER",
            default=os.environ.get(environment.HIBERNATE_DIR, ""),
            help="where images are, if no server has told the keeper",
        )
        parser.add_argument("--json", action="store_true", help="print what was done, or the error, as JSON")
        parser.set_defaults(command=act, action=action)


def act(arguments: argparse.Namespace) -> int:
    """Carry out the command; return 1, with the reason on standard error, if it was refused."""
    try:
        kept = asyncio.run(_act(arguments))
    except NoSuchKernel as error:
        return failed(arguments, "unknown-kernel", str(error))
    except (KeeperUnavailable, KeeperRefused) as error:
        return failed(arguments, "refused", str(error))
    if arguments.json:
        print(json.dumps([_as_json(each) for each in kept], indent=2))
    else:
        print("\n".join(map(_in_words, kept)) or "No kernel is kept: servers have all that run.")
    return 0


async def _act(arguments: argparse.Namespace) -> list[Kept]:
    keeper = await connected()
    try:
        kept = await keeper.list_kept(arguments.images, all=arguments.action != "kept")
        if arguments.action == "kept":
            return kept
        kernel_id = find_kernel([_as_kernel(each) for each in kept], arguments.kernel)["id"]
        return [await _moved(keeper, arguments, kernel_id)]
    finally:
        await keeper.close()


async def _moved(keeper: Keeper, arguments: argparse.Namespace, kernel_id: str) -> Kept:
    if arguments.action == "hibernate":
        return await keeper.hibernate(kernel_id)
    return await keeper.wake(kernel_id, arguments.images)


def _in_words(kept: Kept) -> str:
    kernel = _as_kernel(kept)
    since = clock_in_words(kept.kept_since - time.time())
    where = f"hibernated at {since}, {bytes_in_words(kept.bytes)} on disk"
    where = "; ".join([where, *image_notes(kept)])
    if not kept.is_out and kept.has_server:
        where = "a server has it"
    elif not kept.is_out:
        where = f"kept since {since}, {'a cell runs' if kept.state == 'busy' else 'idle'}"
    return f"{short_id(kernel['id'])}  {kernel['path'] or kernel['name']}: {where}"


def image_notes(kept: Kept) -> list[str]:
    """Return what a user must know of an image: when it is deleted, and why it could not be woken now."""
    notes = []
    if kept.deleted_at is not None:
        notes.append(f"deleted at {clock_in_words(kept.deleted_at - time.time())} unless it is woken before")
    if kept.objection is not None:
        notes.append(f"cannot be woken now: {kept.objection}")
    return notes


def _as_kernel(kept: Kept) -> dict[str, Any]:
    paths = [session["path"] for session in kept.record.sessions if session.get("path")]
    return {"id": kept.record.kernel_id, "path": paths[0] if paths else None, "name": kept.record.kernel_name}


def _as_json(kept: Kept) -> dict[str, Any]:
    told = asdict(kept)
    del told["record"]
    return {
        **_as_kernel(kept),
        **told,
        "life": kept.life.value,
        "place": "image" if kept.is_out else "process",
    }

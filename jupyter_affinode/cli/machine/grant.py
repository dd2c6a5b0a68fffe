"""`jupyter affinode grant`: make keys for grants, and sign grants; on the Hub's side."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ...client.grant_signing import LIFETIME_S, CannotSign, make_keys, sign_grant, write_grant
from ...node.identity.grants import PRIORITY_MAX
from ...settings.rules import LARGEST
from ...units import number, whole

UID_MAX = (1 << 32) - 2  # the last one means "no user" to the kernel
LIFETIME_MAX_S = 10 * 365 * 86400.0
DESCRIPTION = """Grants tell a machine's controller whose a process is, where containers share user ids. `grant
keys FOLDER NAME` makes FOLDER/NAME.key, which stays with the signer, and FOLDER/NAME.pem, which goes to the nodes
(NodeController.grant_keys). `grant sign` prints a grant, for AFFINODE_GRANT, or puts it into a file, for
AFFINODE_GRANT_FILE, which can be renewed while the user works."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "grant", help="sign which user a server belongs to, for containers", description=DESCRIPTION
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    keys = verbs.add_parser("keys", help="make a pair of keys")
    keys.add_argument("folder", type=Path)
    keys.add_argument("name", help="the key's name; a new one for each new pair")
    keys.set_defaults(command=print_keys)
    sign = verbs.add_parser("sign", help="sign a grant")
    sign.add_argument("--key", type=Path, required=True, help="the private key, NAME.key")
    sign.add_argument("--user", required=True)
    sign.add_argument(
        "--audience",
        action="append",
        required=True,
        help="a controller's name, affinode:HOST; may be repeated",
    )
    sign.add_argument("--server", help="which of the user's servers")
    sign.add_argument(
        "--priority",
        type=whole(-PRIORITY_MAX, PRIORITY_MAX),
        default=0,
        help="higher goes first (default: 0)",
    )
    sign.add_argument("--cap", action="append", default=[], metavar="NAME=NUMBER", help="a limit: gpu_bytes")
    sign.add_argument("--group", action="append", default=[], help="a group of the user's; may be repeated")
    sign.add_argument("--uid", type=whole(0, UID_MAX), help="good for processes of this user id alone")
    sign.add_argument("--lifetime", type=number(1, LIFETIME_MAX_S), default=LIFETIME_S, metavar="SECONDS")
    sign.add_argument("--output", type=Path, help="the file to write it to, instead of printing it")
    sign.set_defaults(command=print_grant)


def print_keys(arguments: argparse.Namespace) -> int:
    """Write a new pair of keys; return 1 if a pair of that name exists, since grants may be signed with it."""
    private, public = arguments.folder / f"{arguments.name}.key", arguments.folder / f"{arguments.name}.pem"
    try:
        secret, known = make_keys()
        for path, text, mode in ((private, secret, 0o600), (public, known, 0o644)):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
    except (OSError, CannotSign) as error:
        print(f"jupyter affinode grant: {error}", file=sys.stderr)
        return 1
    print(f"{private} signs; {public} goes to the nodes' folder of keys")
    return 0


def print_grant(arguments: argparse.Namespace) -> int:
    """Print or write a grant."""
    try:
        grant = sign_grant(
            arguments.key.read_bytes(),
            arguments.key.stem,
            user=arguments.user,
            audience=arguments.audience,
            lifetime_s=arguments.lifetime,
            server=arguments.server,
            priority=arguments.priority,
            caps=_caps(arguments.cap),
            groups=arguments.group,
            uid=arguments.uid,
        )
        if arguments.output is None:
            print(grant)
        else:
            write_grant(arguments.output, grant)
    except (OSError, CannotSign, ValueError, OverflowError) as error:
        print(f"jupyter affinode grant: {error}", file=sys.stderr)
        return 1
    return 0


def _caps(words: list[str]) -> dict[str, float]:
    caps = {}
    for word in words:
        name, equals, figure = word.partition("=")
        if not name or not equals:
            raise ValueError(f"a limit is written NAME=NUMBER, not {word!r}")
        try:
            caps[name] = number(0, LARGEST)(figure)
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"--cap {name} {error}") from None
    return caps

"""`jupyter affinode slurm`: a site's files for Slurm, and its quotas."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...client.grant_signing import CannotSign
from ...slurm.files import SCRIPTS, Nodes, write_all
from ...slurm.quotas import ask_for_shares, quotas, shares_of
from ...slurm.site import FOLDER, NOTEBOOKS, Site, SiteRefused
from ...units import number, size_in_bytes, whole

GPUS_MAX, SHARDS_MAX, GIB_MAX = 64, 1000, 1e6
DESCRIPTION = f"""Let notebooks that are jobs of Slurm share GPUs. `files FOLDER` writes what a site's Slurm needs:
lines for gres.conf and slurm.conf, {", ".join(SCRIPTS)}, settings of the nodes' controllers, and a pair of keys. The
folder goes to {FOLDER} of every node, as root's. How many shards a GPU has follows from GPU and host memory, by the
planner. `quotas` prints quotas of GPU memory by Slurm's shares."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("slurm", help="let Slurm's jobs share GPUs", description=DESCRIPTION)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    files = verbs.add_parser("files", help="write a site's files")
    files.add_argument("folder", type=Path)
    files.add_argument("--nodes", required=True, help="the nodes with GPUs, as Slurm names them: gpu[01-04]")
    files.add_argument("--type", default="", help="the type of GPU, as Slurm names it: a100")
    files.add_argument("--devices", default="", help="the GPUs' devices, if they are not /dev/nvidia[0-…]")
    files.add_argument("--place", type=Path, default=FOLDER, help=f"the folder on the nodes ({FOLDER})")
    files.add_argument("--python", default=sys.executable, help="Python with this package, on the nodes")
    files.add_argument(
        "--shards", type=whole(1, SHARDS_MAX), help="jobs that share a GPU, instead of what the planner says"
    )
    files.add_argument(
        "--wait",
        type=number(0, 86400),
        default=60.0,
        metavar="S",
        help="for the planner: 95%% of all cells wait no longer (60)",
    )
    files.add_argument(
        "--qos",
        action="append",
        default=[],
        metavar="NAME=CLASS",
        help="the priority class of a QOS, -5 to 5",
    )
    files.add_argument(
        "--memory-per-shard", default="", metavar="SIZE", help="GPU memory that a job may have for each"
    )
    files.add_argument(
        "--images", default="", help="folder for images of hibernated kernels: ~/…, /scratch/{user}/…"
    )
    files.add_argument("--criu", default="", help="how CRIU is called on the nodes")
    files.add_argument(
        "--notebooks",
        action="append",
        metavar="PATTERN",
        help=f"names of jobs that are notebooks ({', '.join(NOTEBOOKS)})",
    )
    files.set_defaults(command=write_files, parser=files)
    shares = verbs.add_parser("quotas", help="print quotas by Slurm's shares")
    shares.set_defaults(command=print_quotas, parser=shares)
    for each in (files, shares):
        each.add_argument("--gpus", type=whole(1, GPUS_MAX), required=True, help="GPUs of a node")
        each.add_argument(
            "--gpu-memory", type=number(0, GIB_MAX, above=True), metavar="GIB", help="of each GPU"
        )
    files.add_argument("--host-memory", type=number(0, GIB_MAX, above=True), metavar="GIB", help="of a node")


def write_files(arguments: argparse.Namespace) -> int:
    """Write a site's files; return 1, with the reason, where that cannot be done."""
    try:
        site = Site(
            qos=dict(map(_class_of, arguments.qos)),
            bytes_per_shard=size_in_bytes(arguments.memory_per_shard or "0"),
            images=arguments.images,
            criu=arguments.criu,
            notebooks=tuple(arguments.notebooks or NOTEBOOKS),
        )
        nodes = Nodes(arguments.nodes, arguments.gpus, _shards(arguments), arguments.type, arguments.devices)
        for path in write_all(arguments.folder, arguments.place, site, nodes, arguments.python):
            print(path)
    except (OSError, CannotSign, SiteRefused, ValueError) as error:
        print(f"jupyter affinode slurm: {error}", file=sys.stderr)
        return 1
    return 0


def print_quotas(arguments: argparse.Namespace) -> int:
    """Print the setting; return 1, with the reason, where Slurm does not say its shares."""
    if arguments.gpu_memory is None:
        arguments.parser.error("say --gpu-memory")
    try:
        shares = shares_of(ask_for_shares())
    except (OSError, subprocess.SubprocessError) as error:
        print(f"jupyter affinode slurm: sshare does not say the shares: {error}", file=sys.stderr)
        return 1
    print(f"c.NodeController.quotas = {quotas(shares.items(), arguments.gpus * arguments.gpu_memory)!r}")
    return 0


def _shards(arguments: argparse.Namespace) -> int:
    """Return the shards of each GPU, by the planner unless they are named."""
    if arguments.shards is not None:
        return int(arguments.shards)
    if arguments.gpu_memory is None or arguments.host_memory is None:
        arguments.parser.error("say --gpu-memory and --host-memory, or --shards")
    from ...slurm.shards import shards_per_gpu

    return shards_per_gpu(
        arguments.gpus, arguments.gpu_memory, arguments.host_memory, arguments.wait, lambda text: None
    )


def _class_of(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    try:
        if not name or not equals:
            raise ValueError
        return name, int(value)
    except ValueError:
        raise ValueError(f"a QOS is written NAME=CLASS, not {text!r}") from None

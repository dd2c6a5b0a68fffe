"""What a site has chosen: the file `site.json` in the folder of its scripts, the same on all nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .. import private_folders
from ..settings.rules import PRIORITY_MAX, PRIORITY_MIN

FOLDER = Path("/etc/affinode/slurm")
FILE_NAME = "site.json"
KEY_NAME = "slurm"  # of the key that signs jobs' grants
AUDIENCE = "affinode:slurm"  # what these grants are for: the controllers of all nodes
FILE_BYTES_MAX = 1 << 20
NOTEBOOKS = ("*jupyter*", "*notebook*")


class SiteRefused(ValueError):
    """The site's file cannot be used; the message says why."""


@dataclass(frozen=True)
class Site:
    """A site's choices."""

    qos: Mapping[str, int] = field(default_factory=dict)  # priority classes by QOS
    bytes_per_shard: int = 0  # GPU memory that a job may have for each of its shards; 0: any
    images: str = ""  # the folder for images of hibernated kernels, with ~ or {user}; "": none
    criu: str = ""  # how CRIU is called; "": `criu`
    notebooks: tuple[str, ...] = NOTEBOOKS  # names of jobs that are notebooks, as patterns of shells
    shim: str = ""  # the library that is preloaded; "": that of this installation

    def __post_init__(self) -> None:
        """Raise SiteRefused for a choice that makes no sense."""
        for name, priority in self.qos.items():
            if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
                raise SiteRefused(
                    f"QOS {name} has the class {priority}: there are classes from {PRIORITY_MIN} to {PRIORITY_MAX}"
                )

    def as_text(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_site(folder: Path) -> Site:
    """Return what the site's file says. Raises SiteRefused."""
    path = folder / FILE_NAME
    try:
        told: dict[str, Any] = json.loads(private_folders.read_file(path, FILE_BYTES_MAX))
        unknown = told.keys() - {each.name for each in fields(Site)}
        if unknown:
            raise SiteRefused(f"{path} has {min(unknown)!r}, which is not known")
        return Site(**{**told, "notebooks": tuple(told.get("notebooks", NOTEBOOKS))})
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, SiteRefused):
            raise
        raise SiteRefused(f"{path} cannot be read: {error}") from None


def private_key(folder: Path) -> Path:
    """Return the file of the key that signs grants, which root alone reads."""
    return folder / f"{KEY_NAME}.key"


def public_keys(folder: Path) -> Path:
    """Return the folder of the keys that controllers verify grants with."""
    return folder / "keys"

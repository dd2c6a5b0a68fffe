"""The files of a site: lines for Slurm's configuration, scripts for its daemons, the controllers' keys."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..client.grant_signing import make_keys
from .site import AUDIENCE, FILE_NAME, KEY_NAME, Site, private_key, public_keys

SCRIPTS = {
    "prolog": "Prolog, as root: sees to the machine's controller, and makes the job's grant.",
    "epilog": "Epilog, as root: leaves nothing of the job.",
    "task-prolog": "TaskProlog, as the job's user: prints what the environment of a notebook's job gets.",
    "health-check": "HealthCheckProgram, as root: sees to the machine's controller.",
}
SYSTEM_PATH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class Nodes:
    """The nodes with GPUs: their names, as Slurm writes them, and each one's GPUs."""

    names: str
    gpus: int
    shards: int  # of each GPU
    kind: str = ""  # of GPU, as Slurm names it: "a100"; "": none
    devices: str = ""  # as gres.conf names them; "": as NVIDIA's driver does

    @property
    def files(self) -> str:
        """Return the devices of the GPUs."""
        last = f"[0-{self.gpus - 1}]" if self.gpus > 1 else "0"
        return self.devices or f"/dev/nvidia{last}"


def gres_conf(nodes: Nodes) -> str:
    """Return the lines of gres.conf. Slurm spreads a count without devices evenly over a node's GPUs."""
    kind = f"Type={nodes.kind} " if nodes.kind else ""
    return (
        f"NodeName={nodes.names} Name=gpu {kind}File={nodes.files}\n"
        f"NodeName={nodes.names} Name=shard Count={nodes.gpus * nodes.shards}\n"
    )


def slurm_conf(nodes: Nodes, folder: Path) -> str:
    """Return the lines of slurm.conf that shared GPUs need, beside the site's own."""
    kind = f"{nodes.kind}:" if nodes.kind else ""
    return f"""\
GresTypes=gpu,shard
SelectType=select/cons_tres
PrologFlags=Alloc,Contain
Prolog={folder}/prolog
Epilog={folder}/epilog
TaskProlog={folder}/task-prolog
HealthCheckProgram={folder}/health-check
HealthCheckInterval=60
# In the node's own line:
# NodeName={nodes.names} … Gres=gpu:{kind}{nodes.gpus},shard:{nodes.gpus * nodes.shards}
"""


def controller_settings(folder: Path) -> str:
    """Return the settings of the machine's controller, for /etc/affinode/jupyter_affinode_config.py."""
    return f"""\
c.NodeController.grant_keys = {str(public_keys(folder))!r}
c.NodeController.grant_audiences = [{AUDIENCE!r}]
"""


def script(verb: str, python: str, folder: Path) -> str:
    """Return a script of Slurm's. It always succeeds: Slurm drains a node on which one fails."""
    return f"""\
#!/bin/sh
# {SCRIPTS[verb]}
PATH={shlex.quote(_path())}
export PATH
{shlex.quote(python)} -I -m jupyter_affinode.slurm {verb} {shlex.quote(str(folder))}
exit 0
"""


def write_all(folder: Path, place: Path, site: Site, nodes: Nodes, python: str) -> Iterator[Path]:
    """Write a site's files into a folder, and yield each; `place`: the folder's path on the nodes.

    Keys that are there stay. Raises OSError and CannotSign.
    """
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    texts = {
        FILE_NAME: site.as_text(),
        "gres.conf": gres_conf(nodes),
        "slurm.conf": slurm_conf(nodes, place),
        "jupyter_affinode_config.py": controller_settings(place),
    }
    for name, text in texts.items():
        yield _written(folder / name, text.encode(), 0o644)
    for verb in SCRIPTS:
        yield _written(folder / verb, script(verb, python, place).encode(), 0o755)
    if not private_key(folder).exists():
        private, public = make_keys()
        public_keys(folder).mkdir(mode=0o755, exist_ok=True)
        yield _written(public_keys(folder) / f"{KEY_NAME}.pem", public, 0o644)
        yield _written(private_key(folder), private, 0o600)


def _written(path: Path, text: bytes, mode: int) -> Path:
    """Write a file whole, or leave the old one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    fresh.replace(path)
    return path


def _path() -> str:
    """Return where scripts find programs: slurmd gives them no PATH, and Slurm may be in a folder of its own."""
    slurm = shutil.which("squeue")
    folders = [os.path.dirname(slurm)] if slurm else []
    return ":".join(dict.fromkeys([*folders, *SYSTEM_PATH]))

"""A job, as Slurm's daemons tell it. What only its user says, as its comment, decides nothing about other users."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

ASK_S = 10.0  # for slurmctld's answer
GPU = re.compile(r"\bgres/(?:gpu|shard)\b")
SHARDS = re.compile(r"\bgres/shard=(\d+)")
NAME_MAX = 64
WORD, OPT_IN = "affinode", ("SLURM_JOB_COMMENT", "SLURM_JOB_CONSTRAINTS")
COLUMNS = {"QOS": NAME_MAX, "EndTime": 32, "NumNodes": 16, "tres-alloc": 512}


class NoJob(ValueError):
    """Slurm's variables name no job; the message says which is missing."""


@dataclass(frozen=True)
class Job:
    """What slurmd sets for Prolog and Epilog."""

    id: int
    uid: int
    gid: int
    user: str
    account: str
    opts_in: bool = False  # by its comment or constraint: its programs are managed, though it is no notebook

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Job:
        """Return the job that a script of slurmd's is about. Raises NoJob."""
        numbers = {}
        for name in ("SLURM_JOB_ID", "SLURM_JOB_UID"):
            text = environ.get(name, "")
            if not text.isdecimal():
                raise NoJob(f"{name} is {text!r}: this is called by Slurm's Prolog and Epilog")
            numbers[name] = int(text)
        uid = numbers["SLURM_JOB_UID"]
        gid = environ.get("SLURM_JOB_GID", "")
        return cls(
            numbers["SLURM_JOB_ID"],
            uid,
            int(gid) if gid.isdecimal() else uid,
            _name(environ.get("SLURM_JOB_USER", "")) or str(uid),
            _name(environ.get("SLURM_JOB_ACCOUNT", "")),
            any(WORD in re.findall(r"[\w-]+", environ.get(name, "")) for name in OPT_IN),
        )


@dataclass(frozen=True)
class Details:
    """What slurmctld knows beside that."""

    qos: str = ""
    uses_gpus: bool = True
    shards: int = 0
    ends_at: float | None = None  # by the time of day; None: without a limit, or not known


def details_of(job: Job) -> Details:
    """Ask slurmctld about a job. Raises OSError and subprocess.SubprocessError."""
    asked = subprocess.run(
        [
            *("squeue", "--noheader", "--states=all", f"--jobs={job.id}"),
            "--Format=" + ",".join(f"{name}:{width}" for name, width in COLUMNS.items()),
        ],
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=True,
    )
    return parse_details(asked.stdout)


def parse_details(line: str) -> Details:
    """Return the details in a line of `squeue`. It has columns of a fixed width, none of which is text of a user's."""
    found, at = {}, 0
    for name, width in COLUMNS.items():
        found[name] = line[at : at + width].strip()
        at += width
    shards = SHARDS.search(found["tres-alloc"])
    nodes = int(found["NumNodes"]) if found["NumNodes"].isdecimal() else 1
    return Details(
        _name(found["QOS"]),
        GPU.search(found["tres-alloc"]) is not None,
        int(shards[1]) // max(nodes, 1) if shards else 0,
        _moment(found["EndTime"]),
    )


def _moment(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _name(text: str) -> str:
    """Return a name that a grant can carry; "" for what is none."""
    return text if text.isprintable() and len(text) <= NAME_MAX and text not in ("(null)", "N/A") else ""

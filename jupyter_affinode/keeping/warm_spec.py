"""What a kernelspec says of warm kernels: `"metadata": {"affinode": {"warm": {"count": 2, "prelude": "prelude.py"}}}`.

`count`: how many are kept ready. `prelude`: a Python file that each runs first, from the kernelspec's folder unless its
path is absolute; none: a kernel is ready once it has started. `files`: others that, once changed, make it stale.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import environment

SECTION, WARM = "affinode", "warm"
COUNT_MAX = 100
# Variables that are read once, when a process or a library starts: to change them later has no effect. A warm kernel
# fits a notebook whose kernel would have the same values.
READ_AT_START = (
    *(
        "LD_",
        "PYTHON",
        "CUDA_",
        "NVIDIA_",
        "NCCL_",
        "OMP_",
        "MKL_",
        "OPENBLAS_",
        "NUMEXPR_",
        "KMP_",
        "MALLOC_",
    ),
    *("GLIBC_", "PYTORCH_", "TORCH_", "TF_", "XLA_", "JAX_", "HF_", "TRANSFORMERS_", "LC_", "AFFINODE_SIM"),
)
READ_AT_START_NAMES = (
    *("HOME", "LANG", "LANGUAGE", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX", "IPYTHONDIR", "MPLBACKEND"),
    *("AFFINODE_DEPTH", "AFFINODE_LIBRARY", "AFFINODE_DISABLE", "AFFINODE_STARTUP_CHAIN"),
)
OF_OUR_START = ("PYTHONSTARTUP",)
# What a Hub or a spawner gives one server, secret most of it. kernel/taking.py has them, too.
OF_ONE_SERVER = ("JUPYTERHUB_", "JPY_")
SECRETS = (environment.GRANT, "JUPYTER_TOKEN", "CONFIGPROXY_AUTH_TOKEN")


@dataclass(frozen=True)
class WarmSpec:
    """A kernelspec that has warm kernels."""

    folder: str
    display_name: str
    language: str
    count: int
    prelude: str  # its path; "": none
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kernelspec's name."""
        return os.path.basename(self.folder)

    def digest(self) -> str:
        """Return what changes with the kernelspec, the prelude and the files that it names."""
        made = hashlib.sha256(Path(self.folder, "kernel.json").read_bytes())
        if self.prelude:
            made.update(_bytes_or_nothing(self.prelude))
        for path in self.files:
            made.update(f"{path} {stamp(path)}".encode())
        return made.hexdigest()


def warm_section(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what a kernelspec's metadata say of warm kernels; None: nothing."""
    section = (metadata or {}).get(SECTION)
    warm = section.get(WARM) if isinstance(section, dict) else None
    return warm if isinstance(warm, dict) else None


def read_spec(folder: str) -> WarmSpec | None:
    """Return a kernelspec from its folder; None if it is gone or has no warm kernels. Raises ValueError in words."""
    try:
        model = json.loads(Path(folder, "kernel.json").read_text(encoding="utf-8"))
        warm = warm_section(model.get("metadata"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{folder}/kernel.json cannot be read: {error}") from None
    if warm is None:
        return None
    count, prelude, files = warm.get("count", 1), warm.get("prelude") or "", warm.get("files") or []
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= COUNT_MAX:
        raise ValueError(f"{folder}/kernel.json: the count of warm kernels must be 0 to {COUNT_MAX}")
    if (
        not isinstance(prelude, str)
        or not isinstance(files, list)
        or not all(isinstance(each, str) for each in files)
    ):
        raise ValueError(f"{folder}/kernel.json: prelude must be a path, and files a list of paths")
    return WarmSpec(
        folder,
        str(model.get("display_name") or os.path.basename(folder)),
        str(model.get("language") or ""),
        count,
        os.path.join(folder, prelude) if prelude else "",
        tuple(os.path.join(folder, each) for each in files),
    )


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a Hub or a spawner gives one server: files of a pool outlive that."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(OF_ONE_SERVER) and name not in SECRETS
    }


def read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that are of no effect later."""
    return {
        name: value
        for name, value in environ.items()
        if (name.startswith(READ_AT_START) or name in READ_AT_START_NAMES) and name not in OF_OUR_START
    }


def why_unfit(made: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """Return why a kernel that was made with an environment cannot be one with another, in words; None: it can."""
    differing = sorted(
        name
        for name in read_at_start(made).keys() | read_at_start(wanted).keys()
        if made.get(name) != wanted.get(name)
    )
    return f"made with another {' and '.join(differing[:3])}" if differing else None


def stamp(path: str) -> list[int] | None:
    """Return when a file was changed last, and its size, as kernel/warming.py does; None: it is gone."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_mtime_ns, status.st_size]


def first_changed(stamps: Mapping[str, list[int] | None]) -> str | None:
    """Return a file that is not as it was; None: all are."""
    return next((path for path, before in stamps.items() if stamp(path) != before), None)


def command_of(command: Iterable[str], connection_file: str) -> list[str]:
    """Return a kernel's command without its connection file, to compare it with another's.

    A kernelspec's `python` becomes the interpreter of the program that starts the kernel: by whichever of its names in
    its folder, `python` or `python3`, that was called. What a link in another folder leads to is another environment's.
    """
    first, *others = (
        word.replace(os.path.realpath(connection_file), "{connection_file}") for word in command
    )
    folder, name = os.path.split(first)
    return [os.path.join(folder, os.path.basename(os.path.realpath(first))) if folder else name, *others]


def _bytes_or_nothing(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""

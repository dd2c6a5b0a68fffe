"""A wheel built as a person without Node.js builds it, and an environment it is installed in.

The environment costs no download: it has the packages of the one that runs the tests, all but ours, by links.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installation import Installation

REPOSITORY = Path(__file__).parents[2]
OURS = ("jupyter_affinode", "hub_spawner", "_jupyter_affinode", "_editable_impl_jupyter_affinode")
NOT_SOURCES = shutil.ignore_patterns(
    ".git", ".venv", ".yarn", ".*_cache", "__pycache__", "node_modules", "build", "dist"
)


def _build(what: str, source: Path, to: Path, environment: dict[str, str]) -> Path:
    """Build an sdist or a wheel of `source` without installing anything; its path."""
    to.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{what}", "--outdir", str(to), str(source)]
    built = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    (archive,) = to.iterdir()
    return archive


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what builds archives as long: each takes as long as an installation."""
    for item in items:
        if {"sdist", "wheel", "installation"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built"
    folder.mkdir(exist_ok=True)
    return folder


def _once(folder: Path, what: str, source: Callable[[], Path], environment: dict[str, str]) -> Path:
    """The archive that is there, or the one that is built now; one worker at a time."""
    with (folder / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = list((folder / what).glob("jupyter_affinode-*"))
        return found[0] if found else _build(what, source(), folder / what, environment)


@pytest.fixture(scope="session")
def sdist(built: Path) -> Path:
    """The sdist, with the JupyterLab extension that was built last; `make test` builds it."""
    if not (REPOSITORY / "jupyter_affinode/labextension/package.json").exists():
        pytest.fail("the JupyterLab extension is not built: run jlpm build:prod", pytrace=False)

    def source() -> Path:
        return Path(shutil.copytree(REPOSITORY, built / "source", ignore=NOT_SOURCES, dirs_exist_ok=True))

    return _once(built, "sdist", source, {**os.environ, "HATCH_JUPYTER_BUILDER_SKIP_NPM": "1"})


@pytest.fixture(scope="session")
def wheel(sdist: Path, built: Path) -> Path:
    """The wheel, built from the sdist where no Node.js works."""

    def source() -> Path:
        for name in ("node", "nodejs", "npm"):
            broken = built / "path" / name
            broken.parent.mkdir(exist_ok=True)
            broken.write_text("#!/bin/sh\nexit 1\n")
            broken.chmod(0o755)
        subprocess.run(["tar", "-xf", sdist, "-C", built], check=True)
        (unpacked,) = (path for path in built.glob("jupyter_affinode-*") if path.is_dir())
        return unpacked

    path = f"{built / 'path'}:{os.environ['PATH']}"
    return _once(built, "wheel", source, {**os.environ, "PATH": path, "CFLAGS": "-O0"})  # quick to compile


@pytest.fixture(scope="session")
def bare_installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An environment with everything that the tests' own has, but not with us."""
    made = Installation(tmp_path_factory.mktemp("installed") / "prefix")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made.prefix], check=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(OURS) and entry.name != "__pycache__":
            (made.packages / entry.name).symlink_to(entry)
    kernels = Path("share/jupyter/kernels")
    shutil.copytree(Path(sys.prefix) / kernels / "python3", made.prefix / kernels / "python3")
    return made


@pytest.fixture(scope="module")
def installation(bare_installation: Installation, wheel: Path) -> Iterator[Installation]:
    """The environment with the wheel installed."""
    installed = bare_installation.pip("install", "--no-index", "--no-deps", wheel)
    assert installed.returncode == 0, installed.stderr
    yield bare_installation
    bare_installation.pip("uninstall", "--yes", "jupyter-affinode")

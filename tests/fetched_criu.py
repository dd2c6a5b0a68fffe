"""CRIU for tests: fetched once, of the release that starts on today's Linux."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from jupyter_affinode.hibernation.criu import CAPABILITIES

ROOT = Path(__file__).resolve().parents[1]


def fetched_criu() -> str:
    """How CRIU is called; skips, with the reason, where it cannot be had or does not work."""
    fetched = subprocess.run(
        [ROOT / "binder" / "criu.sh", ROOT / "build" / "criu"], capture_output=True, text=True
    )
    if fetched.returncode:
        pytest.skip(f"CRIU cannot be had: {fetched.stderr.strip()}")
    command = fetched.stdout.strip()
    checked = subprocess.run([*command.split(), "check"], capture_output=True, text=True)
    if checked.returncode:
        pytest.skip(f"CRIU does not work here: {checked.stderr.strip()}")
    return command


def criu_for_users(folder: Path, capabilities: str = CAPABILITIES) -> Path:
    """A copy that any user may run, with capabilities of its own; skips where they cannot be given.

    A file with capabilities finds its libraries by its own words alone, so `patchelf` writes them into it.
    """
    called = fetched_criu().split()
    library = Path(called[0]).parent
    patchelf = _fetched_patchelf(library.parent)
    shutil.copytree(library, folder, symlinks=True)
    criu = folder / "criu"
    words = ["--set-interpreter", folder / Path(called[0]).name, "--force-rpath", "--set-rpath", folder]
    subprocess.run([patchelf, *words, criu], check=True)
    given = subprocess.run(["setcap", capabilities, criu], capture_output=True, text=True)
    if given.returncode:
        pytest.skip(f"capabilities cannot be given here: {given.stderr.strip()}")
    return criu


def _fetched_patchelf(folder: Path) -> str:
    found = shutil.which("patchelf")
    program = folder / "patchelf" / "usr" / "bin" / "patchelf"
    if found is not None or program.exists():
        return found or str(program)
    (folder / "patchelf").mkdir(exist_ok=True)
    steps = (
        ["apt-get", "download", "--quiet=2", "-o", "APT::Sandbox::User=root", "patchelf"],
        ["sh", "-c", "dpkg-deb --extract patchelf_*.deb ."],
    )
    for step in steps:
        done = subprocess.run(step, cwd=folder / "patchelf", capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"patchelf cannot be had: {done.stderr.strip()}")
    return str(program)

"""What lies in a folder of another user is not used: that user could exchange it after any look at it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from people import command_of, needs_root
from scene import ATTACKER, HONEST, PROGRAMS, Told


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of root's that all may enter, as /scratch."""
    needs_root()
    with tempfile.TemporaryDirectory(prefix="affinode-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def make(path: Path, uid: int, mode: int = 0o755) -> Path:
    """Make a folder of a user's."""
    path.mkdir()
    path.chmod(mode)
    os.chown(path, uid, uid)
    return path


@contextlib.contextmanager
def program(uid: int, name: str, *arguments: object, **environ: object) -> Iterator[Told]:
    """Run one of the programs as a user."""
    words = [sys.executable, str(PROGRAMS / f"{name}.py"), "/", *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    given = os.environ | {key: str(value) for key, value in environ.items()}
    with subprocess.Popen(command_of(uid, *words), text=True, cwd="/", env=given, **pipes) as process:
        told = Told(process)
        try:
            yield told
        finally:
            told.end()


# How the folder above the honest user's own becomes another user's to change, and what is said of it.
ABOVE = {
    "owned": (ATTACKER, ATTACKER, 0o755, "belongs to user"),
    "for-all": (HONEST, HONEST, 0o777, "chmod go-w"),
    "for-a-group": (0, ATTACKER, 0o775, "chmod go-w"),
}


def open_up(path: Path, above: str) -> str:
    """Let the attacker change a folder; return what is to be said of it."""
    uid, gid, mode, words = ABOVE[above]
    os.chown(path, uid, gid)
    path.chmod(mode)
    return words


@pytest.mark.parametrize("above", ABOVE)
def test_no_image_is_woken_whose_folder_another_user_can_exchange(shared: Path, above: str) -> None:
    project, home = make(shared / "project", 0), make(shared / "home", HONEST, 0o700)
    store = make(project / "images", HONEST, 0o700)
    with program(HONEST, "using_image", store, XDG_STATE_HOME=home, HOME=home) as keeper:
        assert keeper.hear() == {"whole": True}
        words = open_up(project, above)
        with program(ATTACKER, "exchanging_image", store) as attacker:
            assert attacker.hear() == {}
            told = keeper.ask("list")
            assert told.get("refused") == "ImageRefused", told
            assert str(project) in told["why"] and words in told["why"]
            told = keeper.ask("wake")
            assert told == {"step": "check"}
            assert attacker.ask("exchange") == {}  # between the look at the list and the wake
            told = keeper.ask("go on")
            assert told.get("refused") == "CannotWake", told
            assert str(project) in told["why"] and words in told["why"]

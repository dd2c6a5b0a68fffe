"""What lies in a folder of another user is not used: that user could exchange it after any look at it."""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from people import command_of, make_hub_keys, needs_root
from scene import ATTACKER, HONEST, PROGRAMS, Told

from hub_spawner.grants import sign
from jupyter_affinode import environment
from jupyter_affinode.hibernation.claims import Claims
from jupyter_affinode.hibernation.image import ImageRefused
from jupyter_affinode.hibernation.store import image_of, images_in
from jupyter_affinode.node.identity.grants import GrantsUnavailable, GrantVerifier
from jupyter_affinode.node.state.host.disk import Disk
from jupyter_affinode.node.state.host.shared_memory import remove_left
from jupyter_affinode.settings.policy import Settings
from jupyter_affinode.slurm.site import Site, SiteRefused, read_site

ROOT = Path(__file__).resolve().parents[2]


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


def spill_problem(folder: Path) -> str:
    """What the controller says of a folder for spilled memory."""
    disk = Disk()
    disk.measure(Settings(spill_dir=str(folder)), 0, 10.0, logging.getLogger())
    return disk.problem or ""


def grants_problem(folder: Path) -> str:
    """What the controller says of a folder of keys for grants."""
    make_hub_keys(folder)
    return refusal(GrantsUnavailable, lambda: GrantVerifier(folder / "keys", ["here"]))


def signing_problem(folder: Path) -> str:
    """What the Hub says of the file of its private key."""
    key, _ = make_hub_keys(folder)
    return refusal(OSError, lambda: sign(key, "here", user="ana"))


def site_problem(folder: Path) -> str:
    """What Slurm's scripts say of a site's file."""
    (folder / "site.json").write_text(Site().as_text())
    return refusal(SiteRefused, lambda: read_site(folder))


def refusal(kind: type[Exception], work: Callable[[], object]) -> str:
    """Do it; how it is refused, or nothing."""
    try:
        work()
    except kind as refused:
        return str(refused)
    return ""


# Each setting, and each folder of ours, whose files decide what a program does: how a foreign one is refused.
USES = {
    "spill_dir": spill_problem,
    "grant_keys": grants_problem,
    "grant_key": signing_problem,
    "site.json": site_problem,
    "hibernate_dir": lambda folder: refusal(ImageRefused, lambda: images_in(folder)),
    "hibernate_dir, to be made": lambda folder: refusal(
        ImageRefused, lambda: images_in(folder / "more" / "images")
    ),
    "an image's claim": lambda folder: refusal(OSError, lambda: Claims().take(image_of(folder, "one"))),
    "sockets and state": lambda folder: refusal(OSError, lambda: environment.make_folder(folder / "own")),
}


@pytest.mark.parametrize("above", [*ABOVE, "a-link"])
@pytest.mark.parametrize("use", USES)
def test_a_folder_that_another_user_can_exchange_is_used_for_nothing(
    shared: Path, use: str, above: str
) -> None:
    """Root's own programs, and with the folder closed again they use it."""
    project = make(shared / "project", 0)
    folder, asked = make(project / "own", 0, 0o700), project / "own"
    if above == "a-link":
        way = make(shared / "links", 0, 0o1777) / "link"
        way.symlink_to(project)
        os.lchown(way, ATTACKER, ATTACKER)
        asked, named = way / "own", way
    else:
        open_up(project, above)
        if above == "for-all":
            os.chown(project, 0, 0)
        named = project
    assert f"{named}" in USES[use](asked), "it is used"
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    os.chown(project, 0, 0)
    project.chmod(0o755)
    assert USES[use](folder) == ""


def test_nothing_is_removed_below_a_folder_for_shared_memory_that_another_user_can_exchange(
    shared: Path,
) -> None:
    project = make(shared / "project", ATTACKER)
    share = make(project / "share", 0, 0o1777)
    left = make(make(share / f"affinode-{HONEST}-0123456789abcdef", HONEST, 0o700) / "left", HONEST, 0o700)
    (left / "pack").touch()
    remove_left(str(share))
    assert (left / "pack").exists()
    os.chown(project, 0, 0)
    remove_left(str(share))
    assert not left.exists()


# Where code looks at whose a file or folder is, or who may write to it, by itself, and why that is enough.
LOOKS_ITSELF = {
    "private_folders.py": "the one rule",
    "environment.py": "the words about a socket's folder, before the rule; a socket that others cannot make",
    "client/controller_socket.py": "a socket, whose listener is asked for its user",
    "client/grant_signing.py": "the owner that a file keeps",
    "client/starting.py": "root's folder, in which a user makes nothing",
    "hibernation/image.py": "files in a folder that is held",
    "hibernation/pages.py": "files in a folder that is held",
    "hibernation/signing.py": "a file in a folder that make_folder has verified, by its descriptor",
    "keeping/terms.py": "a signed file, by its descriptor",
    "hibernation/files.py": "files that a kernel has open, wherever they are",
    "node/app.py": "root's folder, in which a user makes nothing",
    "node/leadership/handover.py": "users' locks, which are only looked at",
    "node/state/persistence.py": "a file beside the socket, by its descriptor",
    "node/state/host/shared_memory.py": "users' folders in a folder that was opened by the rule",
    "node/state/gpus/gpu_processes.py": "processes",
    "node/execution/cleanup.py": "processes",
    "node/system/lot_memory.py": "memory of processes",
    "slurm/hooks.py": "processes, and folders in root's",
    "provisioning/command.py": "whether a program changes its user",
}
NAMES = {"st_uid", "S_IWOTH", "S_IWGRP"}


def test_one_function_says_which_folders_may_be_used() -> None:
    """Whoever adds another look at owners or modes uses that function, or says here why not."""
    found = set()
    for package in ("jupyter_affinode", "hub_spawner"):
        for path in (ROOT / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if any(isinstance(node, ast.Attribute) and node.attr in NAMES for node in nodes):
                found.add(str(path.relative_to(ROOT / package)))
    assert found == LOOKS_ITSELF.keys()

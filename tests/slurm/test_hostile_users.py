"""A job's user against Prolog and Epilog, which run as root: without Slurm itself, by programs of another user."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_affinode import others_environ
from jupyter_affinode.slurm import hooks, user_folders
from jupyter_affinode.slurm.job import Job

UID = 1_300_000 + os.getpid()
JOB = Job(7, UID, UID, "ana", "physics")
DEEP, MIB = 1500, 1 << 20
PATIENCE_S = 60.0
# What a user's program does with the folder of jobs that it is told.
LOCKING = """
import fcntl, os, sys
held = []
for above, folders, files in os.walk(os.path.dirname(sys.argv[1])):
    for path in (above, *(os.path.join(above, name) for name in files)):
        try:
            held.append(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
print(len(held), flush=True)
sys.stdin.read()
"""
FILLING = """
import contextlib, json, os, sys
jobs, most, written, made = sys.argv[1], int(sys.argv[2]), 0, 0
grant = jobs + "/7/grant"
os.chmod(grant, 0o600)
for path in (grant, jobs + "/7/own/large", f"{jobs}/user-{os.getuid()}/large"):
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        while written < most:
            written += file.write(bytes(1 << 20))
for folder in (jobs + "/7/own", f"{jobs}/user-{os.getuid()}"):
    with contextlib.suppress(OSError):
        while made < 10_000:
            os.symlink("/", f"{folder}/{made}")
            made += 1
print(json.dumps([written, made]))
"""
NESTING = """
import os, sys
os.chdir(sys.argv[1])
for number in range(int(sys.argv[2])):
    os.mkdir("d")
    os.symlink(sys.argv[3], "link")
    open("file", "w").close()
    os.chdir("d")
print("made", flush=True)
here = os.open(".", os.O_RDONLY)
while len(sys.argv) > 4:  # goes on, in a folder that it has open
    try:
        os.mkdir("more", dir_fd=here)
    except FileExistsError:
        pass
    except OSError:
        break
sys.stdin.read()
"""


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a node's jobs, in one that all may enter."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("Prolog and Epilog run as root, and the tests become another user by setpriv")
    with tempfile.TemporaryDirectory(prefix="affinode-", dir="/dev/shm") as above:  # a tmpfs, as /run
        Path(above).chmod(0o755)
        monkeypatch.setattr(hooks, "JOBS", Path(above) / "jobs")
        monkeypatch.setattr(user_folders, "REMOVES_WITHIN_S", PATIENCE_S)
        try:
            yield hooks.JOBS
        finally:
            for path in hooks.JOBS.glob("*"):
                user_folders.remove(path)


@contextlib.contextmanager
def user(code: str, *arguments: object) -> Iterator[str]:
    """Run a program as the job's user; its first line. It ends with the context."""
    words = [
        "setpriv",
        "--reuid",
        str(UID),
        "--regid",
        str(UID),
        "--clear-groups",
        sys.executable,
        "-c",
        code,
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*words, *map(str, arguments)], text=True, cwd="/", **pipes) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.kill()


def begin() -> None:
    """Do what the Prolog does for the job."""
    hooks.make_job_folder(hooks.JOBS / "7", JOB, "grant", opts_in=False)


def end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the Epilog does."""
    for name, value in (("ID", "7"), ("UID", UID), ("GID", UID), ("USER", "ana")):
        monkeypatch.setenv(f"SLURM_JOB_{name}", str(value))
    hooks.epilog()


def test_what_a_user_can_lock_keeps_no_prolog_and_no_epilog_waiting(
    jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin()
    end(monkeypatch)  # the files of before are there
    with user(LOCKING, jobs) as held:
        assert int(held) >= 2
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                begin()
                end(monkeypatch)
                os._exit(0)
            os._exit(1)
        deadline, status = time.monotonic() + PATIENCE_S, (0, 0)
        while not status[0] and time.monotonic() < deadline:
            status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not status[0]:
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert status == (child, 0), "they wait for a lock that a user holds"
    assert list(jobs.iterdir()) == []


def test_what_a_user_puts_on_run_has_a_bound(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin()
    if not os.path.ismount(jobs / "7"):
        pytest.skip("nothing can be mounted here")
    with user(FILLING, jobs, 300 * MIB) as said:
        written, made = json.loads(said)
    assert written <= hooks.JOBS_ROOM.size_bytes + hooks.LINKS_ROOM.size_bytes
    assert made <= hooks.JOBS_ROOM.files + hooks.LINKS_ROOM.files
    end(monkeypatch)
    assert list(jobs.iterdir()) == []


def test_folders_as_deep_as_a_user_likes_go_and_the_grant_before_them(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begin()
    own = jobs / "7" / "own"
    with user(NESTING, own, 1300, tmp_path) as said:  # in each there are three files
        assert said == "made\n"
        end(monkeypatch)
    assert list(jobs.iterdir()) == []


@pytest.mark.parametrize("goes_on", [(), ("goes on",)])
def test_without_a_file_system_of_its_own_a_folder_goes_file_by_file(
    jobs: Path, tmp_path: Path, goes_on: tuple[str, ...]
) -> None:
    """Nothing is touched that its links lead to."""
    folder = jobs / "7"
    (folder / "own").mkdir(parents=True)
    os.chown(folder / "own", UID, UID)
    (tmp_path / "others").touch()
    with user(NESTING, folder / "own", DEEP, tmp_path, *goes_on) as said:
        assert said == "made\n"
        hooks.remove_job_folder(folder)
    assert list(jobs.iterdir()) == []
    assert (tmp_path / "others").exists()


def test_what_cannot_be_removed_now_keeps_no_grant_and_goes_with_the_next_epilog(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin()
    user_folders._unmount(jobs / "7")
    (jobs / "7" / "own").mkdir()
    (jobs / "7" / "grant").touch()
    monkeypatch.setattr(user_folders, "REMOVES_WITHIN_S", -1.0)
    end(monkeypatch)
    assert "the next Epilog goes on" in capsys.readouterr().err
    assert not (jobs / "7").exists() and not list(jobs.rglob("grant"))
    monkeypatch.setattr(user_folders, "REMOVES_WITHIN_S", 60.0)
    begin()
    end(monkeypatch)
    assert list(jobs.iterdir()) == []


def test_environments_are_read_in_time_or_not_at_all() -> None:
    assert others_environ.environs_of([]) == {}
    found = others_environ.environs_of([os.getpid(), 2**22 - 1], 60.0)
    assert list(found) == [os.getpid()] and any(each.startswith(b"PATH=") for each in found[os.getpid()])
    began = time.monotonic()
    assert others_environ.environs_of([os.getpid()], 0.0) == {} and time.monotonic() - began < 30

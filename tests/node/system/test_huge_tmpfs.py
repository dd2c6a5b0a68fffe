"""Lots in a tmpfs of huge pages: root's own, other users' in a user namespace, and neither."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from open_files import open_files

from jupyter_affinode.node.system import huge_tmpfs, lot_memory
from jupyter_affinode.node.system.lot_memory import LotFailed, make_lot
from jupyter_affinode.settings.policy import MIB

pytestmark = pytest.mark.usefixtures("ordinary_pages")
ORDINARY_USER = 1000
SIZE = 64 * MIB

USE = """
import json, mmap, re, sys
descriptor = int(sys.argv[1])
view = mmap.mmap(descriptor, 0)
found = view[:8].decode()
view[:8] = b"answered"
for at in range(0, len(view), 4096):
    view[at]
part = open("/proc/self/smaps").read().split("affinode-lot")[1]
print(json.dumps([found, int(re.search(r"ShmemPmdMapped: +(\\d+) kB", part)[1])]))
"""
AS_USER = """
import importlib.util, json, os, subprocess, sys
script, use = sys.argv[1:]
spec = importlib.util.spec_from_file_location("huge_tmpfs", script)
huge_tmpfs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(huge_tmpfs)
MIB = 1 << 20
try:
    first, limit = huge_tmpfs.open_huge_file(64 * MIB)
    second, _ = huge_tmpfs.open_huge_file(64 * MIB)
except huge_tmpfs.NoHugeTmpfs as refused:
    print(json.dumps({"refused": str(refused)}))
    sys.exit()
assert limit is None
os.pwrite(first, b"contents", 0)
for at in range(MIB, 64 * MIB, MIB):
    os.pwrite(first, bytes(MIB), at)
command = [sys.executable, "-c", use, str(first)]
found, huge_kib = json.loads(subprocess.check_output(command, pass_fds=[first]))
assert os.pread(first, 8, 0) == b"answered"
os.pwrite(second, b"more", 64 * MIB)
again = os.pread(second, 4, 64 * MIB).decode()
os.ftruncate(first, 0)
status = os.fstat(first)
with open(f"/proc/self/task/{os.getpid()}/children") as children:
    answer = {"found": [found, again], "huge_kib": huge_kib, "children": children.read().split()}
print(json.dumps({**answer, "left": [status.st_size, status.st_blocks]}))
"""
HAS_HUGE_PAGES = "[deny]" not in (
    huge_tmpfs.SHMEM_ENABLED.read_text() if huge_tmpfs.SHMEM_ENABLED.exists() else "[deny]"
)


@pytest.fixture
def said(monkeypatch, caplog):
    """What is logged by a process that is not root and has not looked for a tmpfs yet."""
    monkeypatch.setattr(os, "geteuid", lambda: ORDINARY_USER)
    huge_tmpfs._own_mount.cache_clear()
    lot_memory._say_once.cache_clear()
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(logging.getLogger("affinode.node"), "propagate", True)
    yield caplog
    huge_tmpfs._own_mount.cache_clear()
    lot_memory._say_once.cache_clear()


@pytest.fixture
def roots_lot():
    lot = make_lot(SIZE, lambda size: True)
    if lot.limit is None:
        lot.revoke()
        pytest.skip("no right to mount a tmpfs of huge pages here")
    copy = os.dup(lot.descriptor)  # as the process has that it was lent to
    yield lot, copy
    os.close(copy)


def use(descriptor):
    """What another process finds in the lot, and how many KiB of it that process maps in huge pages."""
    command = [sys.executable, "-c", USE, str(descriptor)]
    done = subprocess.run(
        command, pass_fds=[descriptor], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def refuses(descriptor, at):
    """Whether nothing can be written there, though the file can be made longer."""
    os.ftruncate(descriptor, at + MIB)
    with pytest.raises(OSError) as refused:
        os.pwrite(descriptor, bytes(MIB), at)
    return refused.value.errno == errno.ENOSPC


def test_roots_lot_is_of_huge_pages_that_another_process_maps(roots_lot):
    lot, copy = roots_lot
    assert (lot.pages, lot.is_huge, os.fstat(copy).st_blocks * 512) == ("2 MiB", False, SIZE)
    os.pwrite(lot.descriptor, b"contents", 0)
    found, huge_kib = use(copy)
    assert (found, os.pread(lot.descriptor, 8, 0)) == ("contents", b"answered")
    lot.revoke()
    if not HAS_HUGE_PAGES:
        pytest.skip("this machine has no huge pages for shared memory: how many there are is not shown")
    assert huge_kib > 0


def test_a_process_gets_no_more_memory_out_of_roots_lot_than_it_was_lent(roots_lot):
    lot, copy = roots_lot
    assert refuses(copy, SIZE)
    with pytest.raises(OSError):
        os.setxattr(copy, "user.more", bytes(60000))
    lot.revoke()


def test_a_process_gets_no_more_than_a_page_back_into_roots_lot_after_it_is_revoked(roots_lot):
    lot, copy = roots_lot
    lot.revoke()
    assert (os.fstat(copy).st_size, os.fstat(copy).st_blocks) == (0, 0)
    os.ftruncate(copy, SIZE)
    assert os.pwrite(copy, bytes(MIB), 0) == 4096  # the least that limits a tmpfs
    assert refuses(copy, MIB)


def test_roots_lot_stays_with_its_process_when_it_is_let_go(roots_lot):
    lot, copy = roots_lot
    os.pwrite(copy, b"contents", 0)
    lot.let_go()
    assert os.pread(copy, 8, 0) == b"contents"
    assert refuses(copy, SIZE)


def test_a_shortage_leaves_nothing_of_roots_lot(roots_lot):
    roots_lot[0].revoke()
    kinds = ("/affinode-lot", "/memfd:affinode-lot", "anon_inode:[fscontext]")
    before = open_files(*kinds)
    with pytest.raises(LotFailed, match="short"):
        make_lot(SIZE, lambda size: False)
    assert open_files(*kinds) == before


def python_of(user):
    """A Python that the user may run."""
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([str(python), "-c", ""], cwd="/", check=True, timeout=60, **user)
            return python
    pytest.skip("no Python here that another user may run")


@pytest.fixture
def script():
    """The module where any user may read it."""
    with tempfile.TemporaryDirectory(prefix="affinode-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        copy = Path(folder, "huge_tmpfs.py")
        copy.write_text(Path(huge_tmpfs.__file__).read_text())
        copy.chmod(0o644)
        yield copy


def test_a_user_has_huge_pages_by_a_user_namespace_or_hears_why_not(script):
    """What it opens after the process that made the namespace has ended is shared, and freed by a cut."""
    is_root = os.geteuid() == 0
    user = {"user": ORDINARY_USER, "group": ORDINARY_USER, "extra_groups": []} if is_root else {}
    program = [python_of(user), "-c", AS_USER, str(script), USE]
    done = subprocess.run(
        program, cwd="/", stdout=subprocess.PIPE, text=True, check=True, timeout=120, **user
    )
    answer = json.loads(done.stdout)
    if "refused" in answer:
        assert answer["refused"]
        pytest.skip(f"no tmpfs in a user namespace here: {answer['refused']}")
    assert answer["found"] == ["contents", "more"]
    assert answer["left"] == [0, 0]
    assert answer["children"] == []
    if HAS_HUGE_PAGES:
        assert answer["huge_kib"] > 0


def lots_are_memory_files(said):
    """Make two; the reason is said once."""
    for _ in range(2):
        lot = make_lot(32 * MIB, lambda size: True)
        assert os.readlink(f"/proc/self/fd/{lot.descriptor}").startswith("/memfd:affinode-lot")
        assert os.fstat(lot.descriptor).st_blocks * 512 == 32 * MIB
        lot.revoke()
    (line,) = said.messages
    return line


def test_lots_are_memory_files_where_no_user_namespace_can_be_made(said, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert lots_are_memory_files(said).endswith("/nonexistent/python: No such file or directory")


def test_a_process_that_makes_no_namespace_in_time_is_ended(said, monkeypatch, tmp_path):
    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(huge_tmpfs, "HELPER_TIMEOUT_S", 1.0)
    assert lots_are_memory_files(said).endswith("timed out")
    if (tmp_path / "pid").exists():  # it came so far
        assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_machine_that_denies_shared_memory_huge_pages_is_obeyed(said, monkeypatch, tmp_path):
    (tmp_path / "shmem_enabled").write_text("always within_size advise never [deny] force\n")
    monkeypatch.setattr(huge_tmpfs, "SHMEM_ENABLED", tmp_path / "shmem_enabled")
    assert lots_are_memory_files(said).endswith("shmem_enabled is deny")


@pytest.mark.parametrize(
    "setting, pages", [("[never] deny", "4 KiB"), ("[advise] never", "2 MiB"), (None, "4 KiB")]
)
def test_memory_files_have_the_pages_that_the_machine_gives_them(tmp_path, setting, pages):
    if setting is not None:
        (tmp_path / "setting").write_text(setting)
    assert lot_memory._pages_of_memory_files(tmp_path / "setting") == pages

"""What stands against writing processes to disk: each on a real process, and each says what to do."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jupyter_affinode.hibernation import checks, criu, files, store
from jupyter_affinode.hibernation.checks import objection_to_rights, objection_to_writing
from jupyter_affinode.hibernation.image import ImageRefused
from jupyter_affinode.hibernation.store import Bounds, deletion_at, image_of, objection_to_size

ON_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="another user's process takes root")

IO_URING = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
print("none" if ring < 0 else "up", flush=True)
"""
USERFAULTFD = """
import ctypes
print("none" if ctypes.CDLL(None).syscall(323, 1) < 0 else "up", flush=True)
"""
SECCOMP = """
import ctypes, struct
libc = ctypes.CDLL(None)
allow = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
program = struct.pack("@HP", 1, ctypes.addressof(allow))
ready = libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.create_string_buffer(program)) == 0
print("up" if ready else "none", flush=True)
"""
SYSV = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
number = libc.shmget(0, 4096, 0o1600)
address = libc.shmat(number, None, 0)
libc.shmctl(number, 0, None)
print("up", flush=True)
"""
DELETED = """
import os, tempfile
file = tempfile.TemporaryFile(dir={folder!r})
os.truncate(file.fileno(), {size})
print("up", flush=True)
"""
MAPPED = """
import mmap, os, tempfile
file = tempfile.TemporaryFile(dir={folder!r})
os.truncate(file.fileno(), {size})
mapped = mmap.mmap(file.fileno(), {size})
file.close()
print("up", flush=True)
"""
OWN_TERMINAL = """
import os, pty, subprocess, sys
master, slave = pty.openpty()
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=slave)
child.wait()
"""
OWN_SOCKETS = """
import socket
pair = socket.socketpair()
listening = socket.socket(socket.AF_UNIX); listening.bind("\\0affinode-checks-%d"); listening.listen()
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
print("up", flush=True)
"""


@contextmanager
def process(code: str, *prefix: str, **options: object) -> Iterator[int]:
    """A process that has run this code; skips where it says that there is no such thing here."""
    whole = f"{code}\nimport time\ntime.sleep(600)\n"
    started = subprocess.Popen(
        [*prefix, sys.executable, "-c", whole], stdout=subprocess.PIPE, text=True, **options
    )
    try:
        assert started.stdout is not None
        said = started.stdout.readline().strip()
        if said == "none":
            pytest.skip("Linux does not offer it here")
        assert said == "up"
        yield started.pid
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


def objection(code: str, *prefix: str, **options: object) -> str | None:
    """What is said against a process that has run this code."""
    with process(code, *prefix, **options) as pid:
        return objection_to_writing([pid])


UP = "print('up', flush=True)"


@pytest.mark.parametrize("code", [UP, OWN_SOCKETS % os.getpid()])
def test_nothing_is_said_against_an_ordinary_process(code):
    assert objection(code) is None


@ON_X86
@pytest.mark.parametrize(("code", "words"), [(IO_URING, "UV_USE_IO_URING=0"), (USERFAULTFD, "userfaultfd")])
def test_what_linux_cannot_have_written_is_named(code, words):
    assert words in (objection(code) or "")


@ON_X86
def test_a_seccomp_filter_is_only_roots_to_write(monkeypatch):
    monkeypatch.setattr(criu, "is_privileged", lambda: False)
    monkeypatch.setattr(checks, "YAMA", Path("/nothing"))
    assert "seccomp=unconfined" in (objection(SECCOMP) or "")
    monkeypatch.setattr(criu, "is_privileged", lambda: True)
    assert objection(SECCOMP) is None


def test_system_v_shared_memory_is_named():
    assert "System V shared memory" in (objection(SYSV) or "")


@pytest.mark.parametrize("code", [DELETED, MAPPED])
@pytest.mark.parametrize(("size", "is_refused"), [(criu.GHOST_BYTES + 4096, True), (4096, False)])
def test_a_deleted_file_must_be_small(tmp_path, code, size, is_refused):
    said = objection(code.format(folder=str(tmp_path), size=size))
    assert said is None if not is_refused else "that was deleted" in (said or "")


def test_a_unix_socket_to_another_program_is_named_and_the_controllers_is_not(tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert "by a Unix socket" in (objection(UP, pass_fds=[theirs.fileno()]) or "")
    for name, is_refused in (("other.sock", True), ("link.sock", False)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(tmp_path / name))
            listening.listen()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
                connected.connect(str(tmp_path / name))
                accepted, _ = listening.accept()
                with accepted:
                    said = objection(UP, pass_fds=[connected.fileno()])
        assert bool(said) is is_refused
        assert not is_refused or name in said


def test_a_terminal_that_another_program_has_is_named_and_one_of_its_own_is_not():
    master, slave = os.openpty()
    try:
        said = objection(UP, stdin=slave)
        assert said is not None and os.ttyname(slave) in said and "close it first" in said
    finally:
        os.close(master)
        os.close(slave)
    with process(OWN_TERMINAL) as pid:
        child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        assert objection_to_writing([pid, child]) is None
        assert "has a terminal open" in (objection_to_writing([child]) or "")


def test_a_debugger_is_named():
    libc = ctypes.CDLL(None, use_errno=True)
    with process(UP) as pid:
        if libc.ptrace(0x4206, pid, None, None):  # PTRACE_SEIZE
            pytest.skip("nothing may be traced here")
        said = objection_to_writing([pid])
    assert f"a debugger (process {os.getpid()})" in (said or "")


@pytest.mark.parametrize("scope", ["0", "1"])
def test_where_no_program_may_attach_the_command_that_allows_it_is_said(monkeypatch, tmp_path, scope):
    (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(checks, "YAMA", tmp_path / "scope")
    monkeypatch.setattr(criu, "is_privileged", lambda: False)
    said = objection(UP)
    assert said is None if scope == "0" else "sysctl -w kernel.yama.ptrace_scope=0" in (said or "")


@AS_ROOT
def test_another_users_process_is_named_and_may_not_be_woken():
    sleeper = subprocess.Popen(
        ["setpriv", "--reuid", "54321", "--clear-groups", "sh", "-c", "echo up; exec sleep 600"],
        stdout=subprocess.PIPE,
    )
    try:
        assert sleeper.stdout is not None and sleeper.stdout.readline() == b"up\n"
        for check in (objection_to_writing, objection_to_rights):
            assert "runs as another user (54321)" in (check([sleeper.pid]) or "")
    finally:
        sleeper.kill()
        sleeper.wait()
        sleeper.stdout.close()


def test_rights_that_its_keeper_has_not_are_named_and_may_not_be_woken(monkeypatch):
    actual = criu.capabilities("self")
    if not actual:
        pytest.skip("this process has no rights to have more of")
    monkeypatch.setattr(criu, "capabilities", lambda pid: 0)
    with process(UP) as pid:
        for check in (objection_to_writing, objection_to_rights):
            assert "has rights (capabilities) that its keeper has not" in (check([pid]) or "")


@AS_ROOT
def test_a_namespace_of_its_own_is_named():
    assert "namespace of its own (uts)" in (objection(UP, "unshare", "--uts") or "")


@AS_ROOT
def test_a_device_is_named():
    device = next((each for each in ("/dev/fuse", "/dev/loop-control") if os.path.exists(each)), None)
    if device is None:
        pytest.skip("no such device here")
    descriptor = os.open(device, os.O_RDWR)
    try:
        said = objection(UP, pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    assert f"has a device open ({device})" in (said or "")


# ---- space


@pytest.fixture
def folder(tmp_path):
    """A store."""
    made = tmp_path / "images"
    made.mkdir(mode=0o700)
    return made


def test_no_room_is_said_before_anything_is_written(folder):
    image = image_of(folder, "one")
    assert objection_to_size(image, 4096, Bounds(spare_bytes=0)) is None
    assert "stay free: delete something" in (objection_to_size(image, 1 << 60, Bounds()) or "")
    assert "stay free" in (objection_to_size(image, 0, Bounds(spare_bytes=1 << 60)) or "")


def test_a_users_images_have_a_bound_together(folder):
    (folder / "other").mkdir(mode=0o700)
    (folder / "other" / "gpu-1").write_bytes(os.urandom(1 << 20))
    image = image_of(folder, "one")
    bounds = Bounds(most_bytes=2 << 20, spare_bytes=0)
    assert objection_to_size(image, 512 << 10, bounds) is None
    said = objection_to_size(image, 2 << 20, bounds) or ""
    assert "your images may take 2 MiB together: they take 1 MiB" in said
    assert objection_to_size(image_of(folder, "other"), 2 << 20, bounds) is None, "its own is replaced"


def test_a_path_that_the_shim_cannot_be_told_is_refused(tmp_path):
    deep = tmp_path / ("x" * 200)
    assert "choose a hibernate_dir with a shorter one" in (
        objection_to_size(image_of(deep, "one"), 0, Bounds()) or ""
    )


@pytest.mark.parametrize("how", ["open", "link", "file"])
def test_a_folder_that_would_not_be_read_is_not_written_to(folder, tmp_path, how):
    if how == "open":
        folder.chmod(0o755)
    else:
        folder.rmdir()
        folder.symlink_to(tmp_path) if how == "link" else folder.write_text("")
    with pytest.raises(ImageRefused, match="chmod 700" if how == "open" else "is not a folder"):
        objection_to_size(image_of(folder, "one"), 0, Bounds(spare_bytes=0))


def test_an_image_is_deleted_by_age_only_after_that_was_said_for_a_while():
    assert deletion_at(0, 0, None) is None
    month_s, now = 30 * 86400.0, store.time.time()
    assert deletion_at(now, month_s, None) == now + month_s
    assert deletion_at(now - 2 * month_s, month_s, None) > now + 86000, "it was not said yet"
    assert deletion_at(now - 2 * month_s, month_s, now - 90_000) < now
    assert store.notice_s(600) == 60


@pytest.mark.parametrize(
    "kernel_id",
    ["..", ".", "", "../../etc", "a/b", "a" * 300, "x\0y", "\udc80", ".hidden", "ä", "con trol\n"],
)
def test_a_kernels_id_names_a_folder_in_the_store_and_no_other(folder, kernel_id):
    image = image_of(folder, kernel_id)
    assert image.folder.parent == folder
    assert image.folder.name not in ("", ".", "..") and len(image.folder.name) <= 100
    assert image_of(folder, "a/b").folder != image_of(folder, "a_b").folder


# ---- files


def test_libraries_must_be_as_they_were_and_open_files_must_only_be_there(tmp_path):
    library = tmp_path / "library.so"
    library.write_bytes(b"\0" * 5000)
    notes = tmp_path / "notes.txt"
    notes.write_text("first")
    code = f"""
import mmap
library = open({str(library)!r}, "r+b")
mapped = mmap.mmap(library.fileno(), 0, flags=mmap.MAP_PRIVATE)
library.close()
notes = open({str(notes)!r}, "a")
{UP}
"""
    with process(code) as pid:
        known = files.needed_by([pid])
    assert known[str(notes)] == []
    assert known[str(library)][0] == 5000
    assert known[os.path.realpath(sys.executable)][2] == (
        files.build_id(sys.executable) or known[os.path.realpath(sys.executable)][2]
    )
    assert files.objection_to_files(known, {}) is None
    notes.write_text("first, and more by another program")
    os.utime(library)
    assert files.objection_to_files(known, {}) is None, "it has the same contents"
    library.write_bytes(b"\0" * 4999 + b"\1")
    said = files.objection_to_files(known, {}) or ""
    assert str(library) in said and "Install what there was" in said
    notes.unlink()
    said = files.objection_to_files(known, {}) or ""
    assert str(notes) in said and "Put it back" in said

"""What stands against writing processes to disk: each on a real process, and each says what to do."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_affinode import environment
from jupyter_affinode.hibernation import checks, criu, disk, files, store
from jupyter_affinode.hibernation.checks import objection_to_rights, objection_to_writing
from jupyter_affinode.hibernation.claims import Claims
from jupyter_affinode.hibernation.hibernate import CannotHibernate
from jupyter_affinode.hibernation.image import ImageRefused
from jupyter_affinode.hibernation.seen import Seen
from jupyter_affinode.hibernation.store import Bounds, deletion_at, image_of, objection_to_size
from jupyter_affinode.keeping.life import Life

ON_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="another user's process takes root")

BEGIN = """
import ctypes, fcntl, mmap, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
"""
# What a process makes that cannot be written, and what is said of it. -1: Linux does not offer it.
REFUSED = {
    "uses io_uring, which cannot be written to disk; with UV_USE_IO_URING=0": (
        "made = libc.syscall(425, 4, ctypes.create_string_buffer(120))"
    ),
    "uses userfaultfd": "made = libc.syscall(323, 1)",
    "uses System V shared memory": (
        "libc.shmat.restype = ctypes.c_void_p\nnumber = libc.shmget(0, 4096, 0o1600)\n"
        "made = libc.shmat(number, None, 0) and libc.shmctl(number, 0, None)"
    ),
    "uses bpf-map": "attributes = struct.pack('5I', 2, 4, 8, 4, 0) + bytes(100)\n"
    "made = libc.syscall(321, 0, attributes, 120)",
    "uses kvm-vcpu": "device = os.open('/dev/kvm', os.O_RDWR)\nmachine = fcntl.ioctl(device, 0xAE01)\n"
    "made = fcntl.ioctl(machine, 0xAE41, 0)\nos.close(device); os.close(machine)",
    "uses perf_event": "attributes = struct.pack('2I4Q', 1, 128, 0, 0, 0, 0) + bytes(100)\n"
    "made = libc.syscall(298, attributes, 0, -1, -1, 0)",
    "uses fscontext": "made = libc.syscall(430, b'tmpfs', 0)",
    "a device open (/dev/kvm)": "made = os.open('/dev/kvm', os.O_RDWR)",
    "secret memory": "made = libc.syscall(447, 0)\nos.truncate(made, 4096)\nmapped = mmap.mmap(made, 4096)",
    "a pidfd of": "made = os.pidfd_open(os.getppid())",
    "a socket open (AF_VSOCK)": "made = socket.socket(40, 1).detach()",
    "a socket open (MPTCP)": "made = socket.socket(2, 1, 262).detach()",
    "as a message queue": "queues, name = ctypes.CDLL('librt.so.1'), b'/affinode-%d' % os.getpid()\n"
    "made = queues.mq_open(name, 0o102, 0o600, None)\nqueues.mq_unlink(name)",
}
IN_CI = ("io_uring", "userfaultfd", "System V", "bpf-map", "MPTCP")
# What the names of descriptors say, where no such device is at hand.
NAMED = {
    "anon_inode:[io_uring]": "uses io_uring",
    "anon_inode:bpf-prog": "uses bpf-prog, which cannot be written",
    "anon_inode:kvm-vm": "uses kvm-vm, which cannot be written",
    "anon_inode:[infinibandevent]": "uses infinibandevent, which cannot be written",
    "/dev/infiniband/uverbs0": "uses RDMA (/dev/infiniband/uverbs0), which cannot be written",
    "/dev/infiniband/rdma_cm": "uses RDMA (/dev/infiniband/rdma_cm), which cannot be written",
    "/proc/1/status": "has a file of another process open (/proc/1/status): close it first",
    "/dev/tty1": "has a terminal open that another program has, too (/dev/tty1): close it first",
    "/dev/console": "has a terminal open that another program has, too",
    "/dev/nvidia0": None,
    "/dev/null": None,
    "anon_inode:[eventfd]": None,
    "pipe:[1]": None,
}
SECCOMP = """
allow = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
program = struct.pack("@HP", 1, ctypes.addressof(allow))
made = libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.create_string_buffer(program))
"""
DELETED = """
import os, tempfile
file = tempfile.TemporaryFile(dir={folder!r})
made = os.truncate(file.fileno(), {size})
"""
MAPPED = """
import mmap, os, tempfile
file = tempfile.TemporaryFile(dir={folder!r})
os.truncate(file.fileno(), {size})
mapped = mmap.mmap(file.fileno(), {size})
made = file.close()
"""
OWN_TERMINAL = """
import os, pty, subprocess, sys
master, slave = pty.openpty()
made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=slave)
"""
OWN_SOCKETS = """
import socket
pair = socket.socketpair()
listening = socket.socket(socket.AF_UNIX); listening.bind("\\0affinode-checks-%d"); listening.listen()
made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
"""


@contextmanager
def process(code: str = "made = 0", *prefix: str, **options: object) -> Iterator[int]:
    """A process that has run this code; skips where Linux does not offer what it makes."""
    tried = f"try:\n{indent(code, ' ')}\nexcept OSError:\n made = -1"
    told = "print('none' if made == -1 else 'up', flush=True)\nimport time\ntime.sleep(600)"
    command = [*prefix, sys.executable, "-c", f"{BEGIN}\n{tried}\n{told}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as started:
        try:
            assert started.stdout is not None
            if (said := started.stdout.readline()) == "none\n":
                pytest.skip("Linux does not offer it here, or not to this user")
            assert said == "up\n", code
            yield started.pid
        finally:
            started.kill()


def objection(code: str = "made = 0", *prefix: str, **options: object) -> str:
    """What is said against a process that has run this code; "" for nothing."""
    with process(code, *prefix, **options) as pid:
        return objection_to_writing([pid]) or ""


@pytest.mark.parametrize("code", ["made = 0", OWN_SOCKETS % os.getpid()])
def test_nothing_is_said_against_an_ordinary_process(code):
    assert objection(code) == ""


@ON_X86
@pytest.mark.parametrize(
    "words",
    [pytest.param(each, marks=[] if any(s in each for s in IN_CI) else pytest.mark.long) for each in REFUSED],
)
def test_what_cannot_be_written_is_named_before_anything_is_done(words):
    assert words in objection(REFUSED[words])


@pytest.mark.parametrize("target", NAMED)
def test_what_a_descriptor_leads_to_is_known_by_its_name(target):
    kernel = checks.Processes([2**22 - 1])
    kernel.all[0].opened = {5: target}
    said = checks.objection_to(kernel)
    assert said is None if NAMED[target] is None else NAMED[target] in (said or "")


@ON_X86
def test_a_seccomp_filter_is_only_roots_to_write(monkeypatch):
    monkeypatch.setattr(criu, "is_privileged", lambda: False)
    monkeypatch.setattr(checks, "YAMA", Path("/nothing"))
    assert "seccomp=unconfined" in objection(SECCOMP)
    monkeypatch.setattr(criu, "is_privileged", lambda: True)
    assert objection(SECCOMP) == ""


@pytest.mark.parametrize("code", [DELETED, MAPPED])
@pytest.mark.parametrize(("size", "is_refused"), [(criu.GHOST_BYTES + 4096, True), (4096, False)])
def test_a_deleted_file_must_be_small(tmp_path, code, size, is_refused):
    said = objection(code.format(folder=str(tmp_path), size=size))
    assert ("that was deleted" in said) if is_refused else said == ""


def test_a_unix_socket_to_another_program_is_named_and_the_controllers_is_not(tmp_path):
    for name, is_refused in (("other.sock", True), ("link.sock", False)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(tmp_path / name))
            listening.listen()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
                connected.connect(str(tmp_path / name))
                accepted, _ = listening.accept()
                with accepted:
                    said = objection(pass_fds=[connected.fileno()])
        assert bool(said) is is_refused
        assert not is_refused or name in said


def test_a_terminal_that_another_program_gave_it_is_not_its_own():
    master, slave = os.openpty()
    try:
        with process(stdin=slave) as pid:
            kernel = checks.Processes([pid])
            assert checks.objection_to(kernel) is None
            status = os.fstat(slave)
            assert kernel.outer[pid, 0].external == f"tty[{status.st_rdev:x}:{status.st_dev:x}]"
    finally:
        os.close(master)
        os.close(slave)
    with process(OWN_TERMINAL) as pid:
        child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        kernel = checks.Processes([pid, child])
        assert checks.objection_to(kernel) is None
        assert not any(each.external for each in kernel.outer.values())


@AS_ROOT
@pytest.mark.parametrize(
    ("mode", "said"), [("a", ""), ("r", "the file {} open, which this user may not open")]
)
def test_a_file_that_its_user_may_not_open_again_is_a_log_or_is_named(tmp_path, mode, said):
    """As the log of a Hub that runs as root."""
    log = tmp_path / "hub.log"
    log.touch(mode=0o600)
    code = f"log = open({str(log)!r}, {mode!r})\nos.setresuid(54321, 54321, 54321); made = libc.prctl(4, 1)"
    with process(code) as pid:
        os.seteuid(54321)
        try:
            kernel = checks.Processes([pid])
            found = checks.objection_to(kernel, [checks._descriptors]) or ""
            outer = [each.flags & os.O_ACCMODE for each in kernel.outer.values() if each.number > 2]
        finally:
            os.seteuid(0)
    assert said.format(log) in found if said else found == ""
    assert outer == ([os.O_WRONLY] if mode == "a" else [])


def test_a_nameless_socket_is_its_output_only_if_an_older_program_has_its_other_end():
    ours, theirs = socket.socketpair()
    with ours, theirs, process(pass_fds=[theirs.fileno()]) as pid:
        kernel = checks.Processes([pid])
        assert checks.objection_to(kernel) is None
        assert kernel.outer[pid, theirs.fileno()].external == f"unix[{os.fstat(theirs.fileno()).st_ino}]"
        kernel = checks.Processes([pid])
        kernel.all[0].__dict__["stat"] = ["S", *["0"] * 30]  # as if it had been there before
        assert "by a Unix socket" in (checks.objection_to(kernel) or "")


def test_a_debugger_is_named():
    libc = ctypes.CDLL(None, use_errno=True)
    with process() as pid:
        if libc.ptrace(0x4206, pid, None, None):  # PTRACE_SEIZE
            pytest.skip("nothing may be traced here")
        said = objection_to_writing([pid])
    assert f"a debugger (process {os.getpid()})" in (said or "")


@pytest.mark.parametrize("scope", ["0", "1"])
def test_where_no_program_may_attach_the_command_that_allows_it_is_said(monkeypatch, tmp_path, scope):
    (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(checks, "YAMA", tmp_path / "scope")
    monkeypatch.setattr(criu, "is_privileged", lambda: False)
    said = objection()
    assert said == "" if scope == "0" else "sysctl -w kernel.yama.ptrace_scope=0" in said


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
    with process() as pid:
        for check in (objection_to_writing, objection_to_rights):
            assert "has rights (capabilities) that its keeper has not" in (check([pid]) or "")


@AS_ROOT
def test_a_namespace_of_its_own_is_named():
    assert "namespace of its own (uts)" in (objection("made = 0", "unshare", "--uts"))


@AS_ROOT
def test_a_device_is_named():
    device = next((each for each in ("/dev/fuse", "/dev/loop-control") if os.path.exists(each)), None)
    if device is None:
        pytest.skip("no such device here")
    descriptor = os.open(device, os.O_RDWR)
    try:
        said = objection(pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    assert f"has a device open ({device})" in said


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


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full: delete something there, or an image"),
        (errno.EDQUOT, "your quota on the disk is used up: delete something there, or an image"),
        (errno.ENOLCK, "name another folder as hibernate_dir"),
        (errno.EIO, "Input/output error (/images/one)"),
    ],
)
def test_an_error_of_the_disk_is_told_in_words(number, words):
    assert disk.in_words(OSError(number, os.strerror(number), "/images/one")).endswith(words)


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


def test_a_folder_that_others_may_write_to_is_called_by_its_setting(folder):
    image = image_of(folder, "one")
    folder.chmod(0o777)
    with pytest.raises(environment.FolderRefused, match="others may enter"):
        Claims().take(image)


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
made = 0
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


def test_a_library_is_known_by_its_build_id_whenever_it_was_installed(tmp_path):
    libraries = [part.path for part in Seen(os.getpid()).mapped if ".so" in part.path]
    source = next((each for each in libraries if files.build_id(each)), None)
    if source is None:
        pytest.skip("no library here has a build id")
    library = shutil.copy(source, tmp_path / "library.so")
    with process(
        f"file = open({str(library)!r}, 'rb')\nmapped = mmap.mmap(file.fileno(), 0, 2, 1)\nmade = 0"
    ) as pid:
        known = files.needed_by([pid])
    build_id = files.build_id(library)
    assert known[str(library)][2] == build_id
    os.utime(library, (1, 1))
    assert files.objection_to_files(known, {}) is None
    content = library.read_bytes()
    library.write_bytes(content.replace(bytes.fromhex(build_id), bytes(len(build_id) // 2)))
    assert f"the file {library} is changed since" in (files.objection_to_files(known, {}) or "")


# ---- what a kernel's own record says


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"connection": {"transport": "ipc"}}, "start the server with KernelManager.transport=tcp"),
        ({"hibernate_dir": ""}, "its server was started without a folder for images (hibernate_dir)"),
    ],
)
async def test_how_its_server_was_started_is_looked_at_first(changes, words, tmp_path):
    told = {"hibernate_dir": str(tmp_path), "connection": {"transport": "tcp"}, **changes}
    life: Any = SimpleNamespace(record=SimpleNamespace(**told), kernel=None)
    with pytest.raises(CannotHibernate) as refused:
        Life._refuse_to_leave(life)
    assert words in str(refused.value)

"""Disks, files and folders that fail or change while a kernel hibernates: said in words, and the kernel is whole."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_kernel import LoneKernel, Refused
from waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

DISK_MIB, QUOTA_MIB = 300, 200
# Has a child with the number that it is told (clone3 with set_tid), and waits for it.
TAKER = """
import ctypes, os, sys
number = (ctypes.c_int32 * 1)(int(sys.argv[1]))
SIGCHLD, CLONE3 = 17, 435
told = (ctypes.c_uint64 * 11)(0, 0, 0, 0, SIGCHLD, 0, 0, 0, ctypes.addressof(number), 1, 0)
child = ctypes.CDLL(None).syscall(CLONE3, told, ctypes.sizeof(told))
if child == 0:
    os.execvp("sleep", ["sleep", "600"])
print(child, flush=True)
if child > 0:
    os.waitpid(child, 0)
"""


@contextlib.contextmanager
def images_on(lone: LoneKernel, why: str, *commands: list[str | Path]) -> Iterator[Path]:
    """Have the kernel's images on what these commands mount at its folder "disk"; skips where they cannot."""
    mounted = lone.folder / "disk"
    mounted.mkdir()
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"{why}: no {command[0]}")
        if done.returncode:
            pytest.skip(f"{why}: {done.stderr.strip()}")
    lone.store = mounted / "images"
    lone.hand_over()
    yield mounted
    lone.kill_keeper()
    lone.kill_kernel()
    wait_until(lambda: subprocess.run(["umount", mounted], capture_output=True).returncode == 0)


def disk_file(lone: LoneKernel) -> Path:
    """A file that is a small disk."""
    path = lone.folder / "disk.img"
    with path.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    return path


@pytest.fixture
def small_disk(lone: LoneKernel) -> Iterator[Path]:
    """A disk of its own for the kernel's images."""
    image, mounted = disk_file(lone), lone.folder / "disk"
    make, mount = ["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, mounted]
    with images_on(lone, "no disk can be made here", make, mount):
        yield mounted


@pytest.fixture
def quota(lone: LoneKernel) -> Iterator[Path]:
    """A disk with a quota: what is free there says nothing of it."""
    image, mounted = disk_file(lone), lone.folder / "disk"
    with images_on(
        lone,
        "no quota can be set here",
        ["mkfs.btrfs", "-q", image],
        ["mount", "-o", "loop", image, mounted],
        ["btrfs", "quota", "enable", mounted],
        ["btrfs", "qgroup", "limit", f"{QUOTA_MIB}M", mounted],
    ):
        yield mounted


def fill(disk: Path) -> Path:
    """Leave no room on a disk."""
    path = disk / "full"
    with path.open("wb", buffering=0) as file:
        part = 1 << 20
        while part >= 512:
            try:
                file.write(bytes(part))
            except OSError:
                part //= 2
    return path


def flip(path: Path, at: int) -> None:
    """Flip a bit of a file."""
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def refusal(kernel: LoneKernel, what: str) -> str:
    """What is said when it is refused."""
    kernel.start_keeper()  # one that has images alone leaves in a while
    with pytest.raises(Refused) as refused:
        kernel.ask(what, kernel=kernel.id, store=str(kernel.store))
    return str(refused.value)


@pytest.mark.parametrize("limit", ["small_disk", "quota"])
@pytest.mark.parametrize("step", ["leave_gpu", "dump", "finish"])
def test_a_disk_or_quota_that_is_full_at_a_step_leaves_the_kernel_as_it_was(lone, request, step, limit):
    disk = request.getfixturevalue(limit)
    lone.check()
    lone.stop_at(f"hibernate: {step}")
    said = lone.in_background(lambda: refusal(lone, "hibernate"))
    wait_until(lone.is_stopped, 60, lone.log)
    full = fill(disk)
    lone.let_go()
    assert re.search("there is no room|disk is full|quota on the disk is used up", said()), said()
    assert not lone.image.exists()
    lone.check()
    full.unlink()
    os.sync()  # a quota counts what was deleted until then
    lone.hibernate()
    lone.wake()
    lone.check()


@pytest.fixture(params=["tmpfs", "overlay", "fuse"])
def other_file_system(lone: LoneKernel, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of another kind for the kernel's images. FUSE renames what is open and deleted, as NFS does."""
    mounted, *folders = (lone.folder / name for name in ("disk", "lower", "upper", "work"))
    for folder in folders:
        folder.mkdir()
    layers = ",".join(f"{path.name}dir={path}" for path in folders)
    command = {
        "tmpfs": ["mount", "-t", "tmpfs", "-o", "size=600m", "none", mounted],
        "overlay": ["mount", "-t", "overlay", "-o", layers, "none", mounted],
        "fuse": ["bindfs", folders[0], mounted],
    }[request.param]
    with images_on(lone, f"no {request.param} can be mounted here", command):
        yield mounted


def test_images_on_file_systems_of_other_kinds_are_as_good(lone, other_file_system):
    for _ in range(2):
        lone.check()
        lone.hibernate()
        lone.wake()
    lone.stop_at("hibernate: finish")
    said = lone.in_background(lambda: refusal(lone, "hibernate"))
    wait_until(lone.is_stopped, 60, lone.log)
    shutil.rmtree(lone.image / "process")
    lone.let_go()
    assert said()
    lone.check()  # its memory was in files of the image that is given up
    lone.hibernate()
    lone.wake()
    lone.check()


def test_no_room_is_said_before_anything_is_done(lone, small_disk):
    full = fill(small_disk)
    assert "delete something there, or an image" in refusal(lone, "hibernate")
    assert not lone.image.exists()
    full.unlink()
    lone.check()


def test_a_kernel_is_woken_beside_a_full_disk_in_host_memory_and_without_either_it_is_said(lone, small_disk):
    lone.check()
    lone.hibernate()
    full = fill(small_disk)
    os.truncate(full, full.stat().st_size - (1 << 20))  # for notes
    lone.kill_keeper()
    lone.environment["NO_HOST_MEMORY"] = "1"
    assert "make room in one of them" in refusal(lone, "wake")
    assert lone.is_hibernated() and not lone.lives() and not list(lone.image.glob("process/pages-*.img"))
    lone.kill_keeper()
    del lone.environment["NO_HOST_MEMORY"]
    lone.start_keeper()
    lone.wake()
    lone.check()
    full.unlink()


def test_where_host_memory_is_short_what_criu_writes_and_reads_is_on_the_disk(lone):
    lone.kill_keeper()
    lone.environment["NO_HOST_MEMORY"] = "1"
    lone.hand_over()
    for _ in range(2):
        lone.check()
        lone.hibernate()
        assert not list(lone.image.glob("process/pages-*.img"))
        lone.wake()
    lone.check()


def test_a_folder_that_cannot_be_written_to_any_more_leaves_kernel_or_image_as_it_was(lone, small_disk):
    lone.check()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert "Read-only file system" in refusal(lone, "hibernate")
    lone.check()
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    lone.hibernate()
    lone.kill_keeper()  # which has the image locked
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert "Read-only file system" in refusal(lone, "wake")
    assert lone.is_hibernated() and not lone.lives()
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    lone.wake()
    lone.check()


@pytest.mark.parametrize("step", ["leave_gpu", "dump", "finish"])
def test_a_folder_that_is_removed_at_a_step_leaves_the_kernel_as_it_was(lone, step):
    lone.check()
    lone.stop_at(f"hibernate: {step}")
    said = lone.in_background(lambda: refusal(lone, "hibernate"))
    wait_until(lone.is_stopped, 60, lone.log)
    shutil.rmtree(lone.image)
    lone.let_go()
    assert said()
    lone.check()
    lone.hibernate()
    lone.wake()
    lone.check()


def test_each_file_of_an_image_that_has_a_flipped_bit_is_named_and_nothing_is_started(lone):
    lone.check()
    lone.hibernate()
    files = sorted(path for path in lone.image.rglob("*") if path.is_file() and path.stat().st_size)
    named = [path for path in files if path.parent.name == "process" or path.name == "manifest.json"]
    assert len(named) > 20
    for path in named:
        content = path.read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        path.write_bytes(changed)
        said = refusal(lone, "wake")
        assert path.name in said or (path.name == "manifest.json" and "its manifest" in said), (path, said)
        assert not lone.lives() and lone.is_hibernated()
        path.write_bytes(content)
    lone.wake()
    lone.check()


def test_a_flipped_bit_of_gpu_memory_is_never_handed_to_the_program(lone):
    lone.check()
    lone.hibernate()
    (gpu,) = lone.image.glob("gpu-*")
    flip(gpu, 1 << 20)
    lone.wake()
    assert lone.run("print(6 * 7)") == "42\n", "what needs no GPU goes on"
    said = lone.run(
        "try:\n    print(block.checksum())\nexcept Exception as error:\n    print('refused', error)"
    )
    assert "refused" in said, "a wrong word is worse than none"
    assert (lone.image / "woken.json").exists(), "its image is not deleted before its memory is back"


def test_a_kernel_whose_number_is_taken_waits_until_it_is_free(lone):
    lone.check()
    lone.hibernate()
    wait_until(lambda: not Path(f"/proc/{lone.pid}").exists())
    taker = lone.machine.start(sys.executable, "-c", TAKER, str(lone.pid), stdout=subprocess.PIPE)
    assert taker.stdout is not None
    if taker.stdout.readline() != f"{lone.pid}\n".encode():
        pytest.skip("no number can be chosen here")
    wait_until(lambda: Path(f"/proc/{lone.pid}/comm").read_text() == "sleep\n")
    said = refusal(lone, "wake")
    assert f"its process id {lone.pid} is sleep's now" in said
    assert taker.poll() is None and lone.is_hibernated()
    os.kill(lone.pid, signal.SIGKILL)
    taker.wait(timeout=60)
    lone.wake()
    lone.check()


def test_files_that_others_change_meanwhile_are_as_they_are_and_those_that_must_be_there_are_named(lone):
    history = lone.machine.folder / "ipython" / "profile_default" / "history.sqlite"
    notes, library = lone.machine.work / "notes.txt", lone.machine.work / "private.bin"
    notes.write_text("first\n")
    library.write_bytes(b"\1" * 8192)
    lone.run(
        f"import mmap\nnotes = open({str(notes)!r}, 'a+')\nwith open({str(library)!r}, 'r+b') as file:\n"
        "    private = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)"
    )
    assert history.exists()
    lone.check()
    lone.hibernate()
    with notes.open("a") as file:
        file.write("by another program\n")
    with LoneKernel(lone.machine) as other:
        other.run("x = 1\n" * 200)
        other.run("'" + "y" * 200_000 + "'")

    library.write_bytes(b"\2" * 8192)
    assert f"the file {library} is changed since" in refusal(lone, "wake")
    library.write_bytes(b"\1" * 8192)
    moved = notes.rename(notes.with_name("elsewhere.txt"))
    assert f"the file {notes} is not there any more" in refusal(lone, "wake")
    assert lone.is_hibernated() and not lone.lives()
    moved.rename(notes)
    lone.wake()
    lone.check()
    said = lone.run("notes.seek(0); print(notes.read()); print(private[0])")
    assert said.split("\n")[:2] == ["first", "by another program"]


def test_memory_that_processes_share_by_name_is_put_back_after_a_restart(lone):
    name = f"affinode-{os.getpid()}-{lone.id}"
    path = Path("/dev/shm") / name
    lone.run(
        "from multiprocessing import shared_memory, resource_tracker\n"
        f"shared = shared_memory.SharedMemory({name!r}, create=True, size=5000)\nshared.buf[4000] = 7"
    )
    try:
        lone.hibernate()
        path.unlink()  # as a restart of the machine does
        lone.wake()
        assert lone.run("print(shared.buf[4000]); shared.buf[4000] = 8").strip() == "7"
        assert path.read_bytes()[4000] == 8 and path.stat().st_mode & 0o777 == 0o600
        lone.hibernate()
        os.chown(path, 54321, 54321)
        assert f"the file {path} is another user's now" in refusal(lone, "wake")
        os.chown(path, 0, 0)
        lone.wake()
        lone.check()
    finally:
        path.unlink(missing_ok=True)


def test_a_key_that_is_lost_leaves_images_that_are_refused_in_words(lone):
    lone.check()
    lone.hibernate()
    key = lone.folder / "state" / "affinode" / "image.key"
    content = key.read_bytes()
    key.write_bytes(os.urandom(32))
    assert "changed, or another user made it" in refusal(lone, "wake")
    key.write_bytes(content)
    lone.wake()
    lone.check()

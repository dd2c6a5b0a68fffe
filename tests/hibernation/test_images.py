"""Images: what makes them whole, what makes them refused, and what is left when a step was the last one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until, wait_until
from written_images import GONE, made

from jupyter_affinode.hibernation import criu, tree
from jupyter_affinode.hibernation import hibernate as hibernate_module
from jupyter_affinode.hibernation.hibernate import CannotHibernate, CannotWake, Recovered, recover, wake
from jupyter_affinode.hibernation.image import (
    AWAY,
    MANIFEST,
    Image,
    ImageRefused,
)
from jupyter_affinode.hibernation.machine import objection_to_waking, this_machine
from jupyter_affinode.hibernation.signing import signature_of
from jupyter_affinode.hibernation.store import image_of, images_in
from jupyter_affinode.keeping.processes import name_of


@pytest.fixture(autouse=True)
def own_key(tmp_path, monkeypatch):
    """The user's key is the test's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def store(tmp_path):
    """A folder for images that no other user may enter."""
    folder = tmp_path / "images"
    folder.mkdir(mode=0o700)
    return folder


def compare(image: Image) -> None:
    """Compare all of it with its manifest, as a wake does."""
    manifest = image.manifest()
    image.verify(manifest)
    with image.plain_pages(manifest.plain_bytes) as plain:
        image.unpack(manifest, plain)


def test_a_whole_image_is_found_and_is_what_was_written(store):
    image = made(store)
    (found,) = images_in(store)
    assert found.is_whole
    manifest = found.manifest()
    assert manifest.record == {"kernel_id": "one"}
    assert {"process/core-7.img", "process/files.img"} <= set(manifest.files)
    assert list(manifest.pages) == ["pages-1.img.zst"]
    assert manifest.ids == [7, GONE.pid]
    compare(found)
    assert image.bytes > 100_000
    assert all(path.stat().st_mode & 0o077 == 0 for path in (image.folder, image.process_folder))


@pytest.mark.parametrize("name", ["pages-1.img.zst", "core-7.img"])
@pytest.mark.parametrize("how", ["flipped", "short", "gone", "link"])
def test_a_file_that_was_changed_is_refused_by_its_name(store, name, how):
    image = made(store)
    path = image.process_folder / name
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif how == "short":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    if how == "link":
        (store / "elsewhere").write_bytes(content)
        path.symlink_to(store / "elsewhere")
    with pytest.raises(ImageRefused, match=name):
        compare(image)


def test_a_file_that_was_added_is_refused(store):
    image = made(store)
    (image.process_folder / "creds-7.img").write_bytes(b"root's")
    with pytest.raises(ImageRefused, match=r"creds-7\.img"):
        compare(image)


def test_a_manifest_that_was_changed_or_is_another_users_is_refused(store, monkeypatch, tmp_path):
    image = made(store)
    path = image.folder / MANIFEST
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "record": {"kernel_id": "other"}}))
    with pytest.raises(ImageRefused, match="changed, or another user"):
        image.manifest()
    path.write_text(json.dumps(told))
    image.manifest()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with pytest.raises(ImageRefused, match="changed, or another user"):
        image.manifest()


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"signature": "x"}', '{"version": 1}'])
def test_a_manifest_that_is_none_is_refused(store, broken):
    image = made(store)
    (image.folder / MANIFEST).write_text(broken)
    with pytest.raises(ImageRefused):
        image.manifest()


@pytest.mark.parametrize("how", ["writable", "link"])
def test_a_folder_that_others_may_change_has_no_images(store, tmp_path, how):
    made(store)
    named = store
    if how == "link":
        named = tmp_path / "link"
        named.symlink_to(store)
    else:
        store.chmod(0o777)
    with pytest.raises(ImageRefused):
        images_in(named)


async def test_an_image_that_never_became_whole_is_given_up(store):
    image = image_of(store, "one")
    image.begin()
    (image.process_folder / "pages-1.img").write_bytes(b"half")
    assert (image.folder / AWAY).exists()
    assert await recover(image) == Recovered()
    assert not image.folder.exists()


async def test_processes_that_were_left_stopped_go_on_and_their_image_is_given_up(store):
    stopped = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        image = made(store, [name_of(stopped.pid)])
        os.kill(stopped.pid, 19)
        os.waitpid(stopped.pid, os.WUNTRACED)
        assert await recover(image) == Recovered()
        assert not image.folder.exists()
        os.waitpid(stopped.pid, os.WCONTINUED)
    finally:
        stopped.kill()
        stopped.wait()


async def test_an_image_counts_again_when_its_process_was_not_started(store):
    image = made(store)
    image.note_waking()
    assert (image.is_whole, image.is_being_woken, image.was_woken) == (False, True, False)
    assert (await recover(image)).manifest is not None
    assert (image.is_whole, image.is_being_woken, image.was_woken) == (True, False, False)


async def test_an_image_whose_process_lives_again_is_not_woken_twice(store):
    alive = subprocess.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
        env={**os.environ, "AFFINODE_KERNEL_ID": "one"},
        stdout=subprocess.PIPE,
    )
    try:
        assert alive.stdout is not None and alive.stdout.readline() == b"up\n"
        image = made(store, [replace(name_of(alive.pid), started=1)])  # as it was before
        image.note_waking()
        image.note_woken()
        recovered = await recover(image)
        assert recovered.process == name_of(alive.pid)
        assert image.was_woken
        assert alive.poll() is None
    finally:
        alive.kill()
        alive.wait()
        alive.stdout.close()


async def test_a_process_that_was_started_and_not_compared_is_ended_and_its_image_counts(store):
    half = subprocess.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
        env={**os.environ, "AFFINODE_KERNEL_ID": "one"},
        stdout=subprocess.PIPE,
    )
    assert half.stdout is not None and half.stdout.readline() == b"up\n"
    image = made(store, [replace(name_of(half.pid), started=1)])
    image.note_waking()
    recovered = await recover(image)
    assert (recovered.manifest is not None, recovered.process) == (True, None)
    assert half.wait(timeout=30) == -9
    assert image.is_whole
    half.stdout.close()


def test_why_an_image_cannot_be_woken_is_said_before_anything_is_done(store, monkeypatch):
    origin, here = made(store).manifest().origin, this_machine()
    assert objection_to_waking(origin) is None

    def other(**changes):
        return objection_to_waking(replace(origin, machine={**here, **changes}))

    assert "another kind" in other(architecture="riscv64")
    assert "lacks what the kernel may use (avx9)" in other(features=f"{here['features']} avx9")
    assert "another GPU driver (600.1)" in other(driver="600.1")
    assert "another GPU (NVIDIA H200)" in other(gpus="NVIDIA H200")
    assert "Linux is older here" in other(kernel="99.1.0-generic")
    assert other(kernel="4.19.0") is None
    no_cuda = replace(origin, has_cuda=False, machine={**here, "driver": "600.1", "gpus": "NVIDIA H200"})
    assert objection_to_waking(no_cuda) is None
    ahead = replace(origin, monotonic_s=time.clock_gettime(time.CLOCK_MONOTONIC) + 4000)
    monkeypatch.setattr(criu, "is_privileged", lambda: True)
    assert objection_to_waking(ahead) is None, "root wakes it in a time namespace"
    monkeypatch.setattr(criu, "is_privileged", lambda: False)
    assert "4000 s behind" in objection_to_waking(ahead)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "(00.18) Error (criu/sk-unix.c:881): unix: Can't dump half of stream unix connection. name: /tmp/x;"
            " peer name: (null)",
            "it is connected to another program by a Unix socket",
        ),
        (
            "(00.03) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
            "(00.03) Error (criu/cr-restore.c:1237): Can't fork for 5402: File exists",
            "its process id 5402 is another process's now",
        ),
        (
            "(00.01) Error (criu/x.c:1): File /usr/lib/y.so has bad size 7 (expect 9)",
            "/usr/lib/y.so was changed",
        ),
        ("(00.01) Error (criu/image.c:1): write: No space left on device", "the disk is full: delete"),
        (
            "(00.01) Error (criu/image.c:1): write: Disk quota exceeded",
            "your quota on the disk is used up: delete",
        ),
        (
            "(00.01) Error (criu/files.c:582): Can't dump file 5 of that type [60000] (unknown anon_inode:[io_uring])",
            "it uses io_uring, which cannot be written to disk",
        ),
        (
            "(00.01) Error (criu/files.c:582): Can't dump file 5 of that type [20600] (chr 10:232 /dev/kvm)",
            "it has something open that cannot be written to disk (chr 10:232 /dev/kvm)",
        ),
        (
            "(00.01) 6566: Error (criu/sk-inet.c:1059): inet: Can't bind inet socket (id 86): Address already in use",
            "another program has taken a port that it listens on: try again when that has ended",
        ),
        ("(00.01) Error (criu/pipes.c:1): External pipe", "a pipe leads from it to another program"),
        (
            "(00.01) Error (criu/tty.c:2024): tty: Found dangling tty with sid 1 pgid 2 (pts) on peer fd 0.",
            "it has a terminal open that another program has",
        ),
        (
            "(00.01) Error (criu/files-reg.c:1029): Can't dump ghost file /tmp/x of 99999999 size, increase limit",
            "it has a large file open that was deleted (/tmp/x)",
        ),
        (
            "(00.01) Error (criu/files-reg.c:1185): Can't create link remap for /tmp/x. Use link-remap option.",
            "was replaced or renamed (/tmp/x): restart the kernel, or close the file",
        ),
        ("(00.01) Error (compel/infect.c:1): 7 is already being traced", "a debugger is attached to it"),
        (
            "(00.01) Error (criu/files-reg.c:2105): Can't open file tmp/x on restore: No such file or directory",
            "/tmp/x is not there any more",
        ),
        (
            "(00.01) Error (criu/cr-restore.c:1511): 77 killed by signal 9: Killed",
            "its process was ended on its way, by signal 9",
        ),
        (
            "(00.01) Error (criu/files-reg.c:1): Can't lookup mount=66 for fd=-3 path=/affinode-lot-34 (deleted)",
            "it has a file of another mount in memory (/affinode-lot-34)",
        ),
        (
            "(00.01) Error (criu/cap.c:1): CAP_CHECKPOINT_RESTORE is missing",
            "CRIU may not do it: `setcap cap_checkpoint_restore,cap_setpcap+eip criu` lets it",
        ),
        (
            "(00.02) 8408: Error (criu/file-lock.c:661): Can not set ofd lock!",
            "another program has locked a file",
        ),
        (
            "(00.10) Error (criu/parasite-syscall.c:87): si_code=4 si_pid=11018 si_status=19",
            "it was stopped by signal 19 meanwhile: try again",
        ),
        ("(00.01) Error (criu/new.c:1): something new", "CRIU says: Error (criu/new.c:1): something new"),
        ("", "CRIU says: it says nothing"),
    ],
)
def test_what_criu_says_is_told_in_words(said, reason):
    assert reason in criu.reason(said, "criu")


async def test_a_process_that_has_the_number_of_an_images_is_left_alone_and_the_image_stays(
    store, monkeypatch
):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        image = made(store, [replace(name_of(other.pid), started=1)])
        with pytest.raises(CannotWake, match="try again when that has ended"):
            await wake(image)
        assert image.is_whole

        async def nothing_is_taken(ids):
            return None  # it came after the look

        async def refused(folder, lock, size):
            raise criu.CriuFailed(f"its process id {other.pid} is another process's now")

        async def works():
            return "4.2"

        monkeypatch.setattr(tree, "free", nothing_is_taken)
        monkeypatch.setattr(criu, "check", works)
        monkeypatch.setattr(criu, "restore", refused)
        with pytest.raises(CannotWake, match="another process's now"):
            await wake(image)
        assert image.is_whole
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


# ---- attacks: who may write to a folder may try all of these


def resigned(image, **changes):
    """The image's manifest with changes, signed again: as the user's own program may write it."""
    path = image.folder / MANIFEST
    told = json.loads(path.read_text())
    del told["signature"]
    told.update(changes)
    path.write_text(json.dumps({**told, "signature": signature_of(told)}))


@pytest.mark.parametrize(
    "name", ["../../secret", "/etc/passwd", "process/../../secret", "process/", "process/.x", "gpu-7", "a\n"]
)
def test_a_manifest_that_names_files_elsewhere_is_refused_though_it_is_signed(store, name):
    image = made(store)
    resigned(image, files={**image.manifest().files, name: [1, "0" * 64]})
    with pytest.raises(ImageRefused, match="names a file elsewhere"):
        image.manifest()
    resigned(image, files={}, pages={name.removeprefix("process/"): {"size": 1, "frames": []}})
    if not name.startswith("gpu"):  # which would be one in `process/`
        with pytest.raises(ImageRefused, match="names a file elsewhere"):
            image.manifest()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"version": 3, "signature": ' + b"9" * 100_000 + b"}",
        b"[" * 200_000,
        b'{"signature": "' + b"\xff" * 64 + b'", "version": 3}',
        '{"signature": "ä", "version": 3}'.encode(),
        b'{"signature": null, "version": 3}',
        b'{"signature": "x", "version": 1e999}',
        b"null",
    ],
)
def test_a_manifest_of_giant_numbers_or_depth_is_refused(store, raw):
    image = made(store)
    (image.folder / MANIFEST).write_bytes(raw)
    with pytest.raises(ImageRefused):
        image.manifest()


@pytest.mark.parametrize("what", [MANIFEST, "process/core-7.img", "process"])
@pytest.mark.parametrize("how", ["fifo", "link", "hard link", "folder", "device"])
def test_what_is_no_plain_file_of_the_users_is_refused_without_waiting(store, what, how):
    image = made(store)
    manifest, path = image.manifest(), image.folder / what
    elsewhere = store.parent / "elsewhere"
    path.rename(elsewhere)
    if how == "fifo":
        os.mkfifo(path, 0o600)
    elif how == "link":
        path.symlink_to(elsewhere)
    elif how == "hard link" and elsewhere.is_file():
        os.link(elsewhere, path)
    elif how == "device" and os.geteuid() == 0:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero: it never ends
    elif what != "process":
        path.mkdir()
    else:
        return
    with pytest.raises(ImageRefused):
        image.manifest()
        image.verify(manifest)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away takes root")
@pytest.mark.parametrize("what", [MANIFEST, "process/core-7.img", "process", "."])
def test_what_belongs_to_another_user_is_refused(store, what):
    image = made(store)
    manifest = image.manifest()
    os.chown(image.folder / what, 54321, 54321)
    with pytest.raises(ImageRefused):
        image.manifest()
        image.verify(manifest)


@pytest.mark.parametrize("how", ["open", "short", "link", "another user's"])
def test_a_key_that_others_may_know_signs_and_proves_nothing(store, tmp_path, how):
    image = made(store)
    key = tmp_path / "state" / "affinode" / "image.key"
    if how == "open":
        key.chmod(0o644)
    elif how == "short":
        key.write_bytes(b"short")
    elif how == "link":
        key.rename(tmp_path / "key")
        key.symlink_to(tmp_path / "key")
    elif os.geteuid() == 0:
        os.chown(key, 54321, 54321)
    else:
        pytest.skip("giving a file away takes root")
    with pytest.raises(ImageRefused):
        image.manifest()


@pytest.mark.parametrize("what", ["image", "store"])
async def test_giving_an_image_up_deletes_nothing_beyond_a_link(store, what):
    image = made(store)
    precious = store.parent / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    if what == "image":
        (image.folder / "process" / "way-out").symlink_to(precious)
    else:
        image.folder.rename(store.parent / "moved")
        image.folder.symlink_to(precious)
    image.give_up()
    assert (precious / "thesis.tex").read_text() == "years"


async def test_an_image_on_which_criu_works_is_looked_at_only_afterwards(store):
    image = made(store)
    with image.in_use():
        looking = asyncio.get_running_loop().create_task(recover(image))
        await asyncio.sleep(0.2)
        assert not looking.done()
        assert image.is_in_use()
        with pytest.raises(OSError, match="CRIU works on its image still"), image.in_use():
            pass
    assert (await looking).manifest is not None


async def test_a_kernel_that_is_stopped_on_its_way_does_not_have_criu_killed_in_the_midst_of_it(
    store, monkeypatch, tmp_path
):
    fake = tmp_path / "criu"
    waits = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun; {waits}; touch {tmp_path}/ended\n")
    fake.chmod(0o700)
    monkeypatch.setenv("AFFINODE_CRIU", str(fake))
    image = made(store)
    with image.in_use() as lock:
        dump = asyncio.get_running_loop().create_task(criu.dump(GONE.pid, image.process_folder, lock))
        await until((tmp_path / "begun").exists)
        dump.cancel()
        await asyncio.sleep(0.5)  # it would be killed by then
        (tmp_path / "go").touch()
        with pytest.raises(asyncio.CancelledError):
            await dump
    assert (tmp_path / "ended").exists()


HANGING = """
import fcntl, sys, time
lock = open(sys.argv[1] + "/in-use", "w"); fcntl.flock(lock, fcntl.LOCK_EX)
print("up", flush=True)
time.sleep(600)
"""


async def test_a_criu_that_hangs_and_has_no_keeper_any_more_is_ended(store, monkeypatch):
    image = made(store)
    command = [sys.executable, "-c", HANGING, str(image.folder), "-D", str(image.process_folder)]
    hanging = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert hanging.stdout is not None and hanging.stdout.readline() == b"up\n"
    monkeypatch.setattr(criu, "PATIENCE_S", 0.2)
    assert (await recover(image)).manifest is not None
    assert hanging.wait(timeout=30) == -9
    hanging.stdout.close()


async def test_what_a_hanging_criu_has_started_ends_with_it(store, monkeypatch, tmp_path):
    """It may have a kernel's number, nothing in memory that names the image, and rights by which it hides the rest."""
    fake = tmp_path / "criu"
    fake.write_text(f"#!/bin/sh\nsleep 600 & echo $! >{tmp_path}/child; wait\n")
    fake.chmod(0o700)
    monkeypatch.setenv("AFFINODE_CRIU", str(fake))
    monkeypatch.setattr(criu, "patience_for", lambda size: 5.0)  # in which it writes `child`
    image = made(store)
    with image.in_use() as lock, pytest.raises(criu.CriuFailed, match="came to no end within 5 s"):
        await criu.restore(image.process_folder, lock)
    child = int((tmp_path / "child").read_text())
    await until(lambda: not tree.threads_of(child))


KILLED_WHILE_IT_TRIES_LINUX_OUT = """
import os, signal
if os.fork():
    os.waitpid(-1, os.WUNTRACED)
    os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGSTOP)
"""


async def test_what_a_killed_criu_leaves_stopped_keeps_no_kernel_in_its_image(store, monkeypatch, tmp_path):
    fake = tmp_path / "criu"
    fake.write_text(f"#!{sys.executable}\n{KILLED_WHILE_IT_TRIES_LINUX_OUT}")
    fake.chmod(0o700)
    monkeypatch.setenv("AFFINODE_CRIU", str(fake))
    image = made(store)
    with image.in_use() as lock, pytest.raises(criu.CriuFailed, match="ended by SIGKILL"):
        await criu.restore(image.process_folder, lock)
    await until(lambda: not image.is_in_use())


async def test_an_image_counts_once_one_of_its_processes_has_been_ended(store):
    alive = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        image = made(store, [GONE, name_of(alive.pid)])
        assert (await recover(image)).manifest is not None
        assert image.is_whole
        assert alive.wait(timeout=30) == -9
    finally:
        alive.kill()
        alive.wait()


async def test_a_dead_process_that_was_not_taken_note_of_does_not_live(store):
    dead = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    image = made(store, [name_of(dead.pid)])
    dead.kill()
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert (await recover(image)).manifest is not None, "its image counts"
    dead.wait()


async def test_what_criu_started_is_ended_if_it_has_more_rights_than_its_keeper(store, monkeypatch):
    image = made(store)
    started: list[subprocess.Popen[bytes]] = []

    async def works():
        return "4.2"

    async def restore(folder, lock, size):
        """CRIU starts a process that has root's rights, as an image may ask for."""
        manifest = image.manifest()
        started.append(subprocess.Popen(["sleep", "600"]))
        monkeypatch.setattr(
            hibernate_module.tree, "tree_of", lambda pid: [name_of(started[0].pid)] if pid == GONE.pid else []
        )
        assert manifest.processes[0] == GONE

    async def nothing_is_taken(ids):
        return None

    monkeypatch.setattr(tree, "free", nothing_is_taken)
    monkeypatch.setattr(criu, "check", works)
    monkeypatch.setattr(criu, "restore", restore)
    monkeypatch.setattr(criu, "capabilities", lambda pid: 0)
    monkeypatch.setattr(hibernate_module, "objection_to_waking", lambda origin: None)
    if os.geteuid() != 0:
        pytest.skip("a process with rights takes root")
    with pytest.raises(CannotWake, match="has rights"):
        await wake(image)
    assert started[0].wait(timeout=30) == -9
    assert image.is_whole


async def test_a_kernel_that_has_ended_is_said_to_have(store, monkeypatch):
    async def works():
        return "4.2"

    async def nothing(folder):
        return False

    monkeypatch.setattr(criu, "check", works)
    with pytest.raises(CannotHibernate, match="its process has ended"):
        await hibernate_module.hibernate(image_of(store, "one"), GONE.pid, nothing, lambda: None)


def test_the_process_of_a_warm_kernel_is_known_as_its_own(tmp_path):
    """It was started under another kernel's name, and one that is not managed under none."""
    command = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(command, env={"AFFINODE_KERNEL_ID": "of-the-pool"}, stdin=subprocess.PIPE) as its,
        subprocess.Popen(command, env={"AFFINODE_KERNEL_ID": "anothers"}, stdin=subprocess.PIPE) as anothers,
    ):
        wait_until(
            lambda: all(
                b"input" in Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in (its, anothers)
            )
        )
        told = {
            "record": {"kernel_id": "k"},
            "processes": [name_of(its.pid)],
            "environ": hibernate_module._environ_of(its.pid),
        }
        manifest: Any = SimpleNamespace(**told)
        assert hibernate_module._lives_again(manifest, None)
        assert hibernate_module._is_of_image(its.pid, manifest, Image(tmp_path))
        assert not hibernate_module._is_of_image(anothers.pid, manifest, Image(tmp_path))
        manifest.processes = [name_of(anothers.pid)]
        assert not hibernate_module._lives_again(manifest, None)
        assert hibernate_module._lives_again(manifest, name_of(anothers.pid))

"""A real keeper that is asked by its client, on machines that are odd; kernels are processes that sleep."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from keepers import end_keepers, keepers, the_keeper
from live_server import exists
from waiting import until

from jupyter_affinode import environment
from jupyter_affinode.keeping import client
from jupyter_affinode.keeping.processes import Adopted, name_of
from jupyter_affinode.keeping.records import Owner, Record, to_json

CLOCK = Path(__file__).parents[2] / "chaos" / "clock.c"
DAYS_NS = 86400 * 10**9
NO_LOCKS = (
    "#include <errno.h>\nint flock(int fd, int how) { (void)fd; (void)how; errno = ENOLCK; return -1; }\n"
)


class Kernels:
    """Makes kernels, and ends them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, **wanted) -> Record:
        """What adopting a new one takes."""
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._processes.append(process)
        kernel_id = uuid.uuid4().hex
        channels = ("shell", "iopub", "stdin", "control", "hb")
        ports = {f"{channel}_port": number for number, channel in enumerate(channels)}
        place = {"transport": "ipc", "ip": str(self.folder / kernel_id[:6]), **ports}
        known = {
            "kernel_name": "python3",
            "owner": Owner("", str(self.folder)),
            "process_group": process.pid,
            "connection_file": str(self.folder / f"{kernel_id}.json"),
            "connection": {**place, "key": "", "signature_scheme": "hmac-sha256"},
            "is_managed": False,
        }
        return Record(kernel_id=kernel_id, process=name_of(process.pid), **{**known, **wanted})

    def end(self) -> None:
        """End all."""
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def kernels(keeping_machine, monkeypatch):
    """Kernels of a machine whose keeper is its own."""
    monkeypatch.setenv("AFFINODE_FOLDER", keeping_machine.environment["AFFINODE_FOLDER"])
    started, start = [], client._start
    monkeypatch.setattr(client, "_start", lambda: started.append(start()) or started[-1])
    made = Kernels(keeping_machine.folder)
    yield made
    made.end()
    for keeper in started:
        keeper.kill()
        keeper.wait()


@contextlib.asynccontextmanager
async def a_server(*records: Record):
    """A server that has kernels; when it ends they are kept."""
    async with await client.connected() as keeper:
        for record in records:
            await keeper.update(record)
        yield keeper


def library(folder: Path, source: Path) -> str:
    """A library of a C file, to be preloaded."""
    made = folder / f"{source.stem}.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return str(made)


def ids(kept) -> set[str]:
    return {each.record.kernel_id for each in kept}


async def adopted(keeper: client.Keeper, owner: Owner) -> set[str]:
    """The kernels that a server gets which starts now."""
    got = set()
    for each in (await keeper.offered(owner))[0]:
        with contextlib.suppress(client.KeeperRefused):  # another server was first
            await keeper.take(each.record.kernel_id)
            got.add(each.record.kernel_id)
    return got


async def test_of_two_servers_that_start_at_once_one_gets_each_kernel(kernels):
    records = [kernels.start() for _ in range(5)]
    async with a_server(*records):
        pass
    async with a_server() as first, a_server() as second:
        got = await asyncio.gather(*(adopted(each, records[0].owner) for each in (first, second)))
        assert sum(map(len, got)) == 5 and set.union(*got) == {each.kernel_id for each in records}


async def test_a_server_that_starts_while_the_one_before_it_ends_gets_what_that_handed_over(kernels):
    record = kernels.start()
    async with a_server(record) as ending, a_server() as starting:
        await ending.hand_over(record)
        assert await adopted(starting, record.owner) == set()  # its messages are still to come
        await ending.release(record.kernel_id, client.Undelivered())
        assert await adopted(starting, record.owner) == {record.kernel_id}


async def test_kernels_of_a_folder_that_moved_are_adopted_where_a_link_stands_for_it(kernels):
    root = kernels.folder / "home"
    root.mkdir()
    record, other = kernels.start(owner=Owner("", str(root))), kernels.start()
    async with a_server(record, other):
        pass
    root.rename(kernels.folder / "disk")
    root.symlink_to("disk")
    async with a_server() as keeper:
        assert await adopted(keeper, Owner("", str(root.resolve()))) == {record.kernel_id}


async def test_nothing_is_left_of_a_kernel_that_ended_without_a_server(kernels):
    record = kernels.start()
    left = [Path(each) for each in (record.connection_file, *record.sockets)]
    for path in left:
        path.touch()
    async with a_server(record):
        pass
    os.kill(record.process.pid, signal.SIGKILL)
    await until(lambda: not any(path.exists() for path in left))
    kept = Path(os.environ["AFFINODE_FOLDER"]) / "kept"
    await until(lambda: not any(kept.iterdir()))  # its record goes last


async def test_a_keeper_has_no_descriptor_left_of_many_kernels(kernels, keeping_machine):
    """Whether they ended while no server had them, or their server says so."""
    async with a_server(kernels.start()):
        (pid,) = keepers(keeping_machine)
        before = None
        for turn in range(60):
            record = kernels.start(
                readers=["notebook"] if turn % 6 == 0 else []
            )  # it waits for each a second
            async with a_server(record) as keeper:
                if turn % 2:
                    await keeper.forget(record.kernel_id)
            os.kill(record.process.pid, signal.SIGKILL)
            if turn == 6:  # what it opens once for all is open
                before = len(os.listdir(f"/proc/{pid}/fd"))
        await until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= before)


async def test_a_full_disk_loses_no_kernel(kernels, keeping_machine):
    """Only a keeper that is killed meanwhile would."""
    folder = Path(os.environ["AFFINODE_FOLDER"])
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", folder])
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        before = kernels.start()
        async with a_server(before) as keeper:
            with contextlib.suppress(OSError), (folder / "full").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            after = kernels.start()
            await keeper.update(after)
        async with a_server() as keeper:
            both = {before.kernel_id, after.kernel_id}
            assert await adopted(keeper, before.owner) == both
    finally:
        for pid in end_keepers(keeping_machine):
            await until(lambda pid=pid: not exists(pid))
        subprocess.run(["umount", "--lazy", folder], check=True)  # a keeper of it may be about to end


async def test_a_keeper_that_is_killed_again_and_again_loses_no_kernel(kernels, keeping_machine):
    """While no server has it, and after a server has adopted it, and said nothing new of it."""
    record = kernels.start()
    async with a_server(record):
        pass
    await kill_keeper(keeping_machine)
    for _ in range(3):
        async with a_server() as keeper:
            assert await adopted(keeper, record.owner) == {record.kernel_id}
            await kill_keeper(keeping_machine)


async def test_a_keeper_that_was_started_under_a_server_does_not_take_its_kernels_for_kept(
    kernels, keeping_machine
):
    """They would end in time, or by a quota, while they are used."""
    records = [kernels.start(most_kernels=1, server=name_of(os.getpid())) for _ in range(3)]
    async with a_server(*records):
        await kill_keeper(keeping_machine)
        async with a_server(*records) as again:
            async with a_server():  # whose end has the keeper look at the quota
                pass
            assert await again.list_kept() == []
    assert (
        " is ended" not in Path(os.environ["AFFINODE_FOLDER"], "keeper.log").read_text().partition("gone")[0]
    )


async def kill_keeper(machine) -> None:
    """Kill the keeper, and return once it is gone."""
    pid = the_keeper(machine)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not exists(pid))


async def test_the_keeper_listens_wherever_a_controller_could(kernels, monkeypatch):
    """In a folder whose path is as long as the path of a socket allows."""
    path = str(kernels.folder / "long")
    path += "g" * (environment.SOCKET_PATH_MAX - len(f"{path}/{environment.SOCKET_NAME}"))
    monkeypatch.setenv("AFFINODE_FOLDER", path)
    async with a_server():
        assert (Path(path) / client.SOCKET_NAME).is_socket()


async def test_a_file_system_without_locks_has_one_keeper(kernels, keeping_machine, monkeypatch):
    source = kernels.folder / "locks.c"
    source.write_text(NO_LOCKS)
    monkeypatch.setenv("LD_PRELOAD", library(kernels.folder, source))
    record = kernels.start()
    async with a_server(record):
        second = await asyncio.create_subprocess_exec(sys.executable, "-m", "jupyter_affinode.keeping.keeper")
        assert await second.wait() == 0
    async with a_server() as keeper:
        assert ids(await keeper.list_kept()) == {record.kernel_id}


async def test_a_keeper_of_another_release_is_named_and_its_kernels_go_on(kernels, keeping_machine):
    other = "from jupyter_affinode.keeping import keeper; keeper.VERSION = 99; keeper.main()"
    folder = Path(os.environ["AFFINODE_FOLDER"])
    process = keeping_machine.start(sys.executable, "-c", other)
    await until((folder / client.SOCKET_NAME).exists)
    with pytest.raises(client.KeeperUnavailable, match="of another release of jupyter-affinode"):
        await client.connected()
    process.kill()


async def test_a_record_of_another_release_stays_as_long_as_its_kernel_lives(kernels, keeping_machine):
    folder = Path(os.environ["AFFINODE_FOLDER"]) / "kept"
    environment.make_folder(folder)
    alive, dead = kernels.start(), kernels.start()
    os.kill(dead.process.pid, signal.SIGKILL)
    for record in (alive, dead):
        (folder / f"{record.kernel_id}.json").write_text(json.dumps({**to_json(record), "version": 99}))
    os.waitpid(dead.process.pid, 0)
    async with a_server() as keeper:
        assert await keeper.list_kept() == []
    assert {path.stem for path in folder.iterdir()} == {alive.kernel_id}
    log = (folder.parent / "keeper.log").read_text()
    assert f"the kernel of process {alive.process.pid} was kept by another release" in log


@pytest.mark.parametrize("by_days", [10, -10])
async def test_setting_the_clock_neither_ends_a_kernel_nor_keeps_it(
    kernels, keeping_machine, monkeypatch, by_days
):
    """The time of day is set by so many days, for the keeper, as by a user."""
    clocks = kernels.folder / "clocks"
    clocks.write_bytes(bytes(16))
    monkeypatch.setenv("CHAOS_CLOCK", str(clocks))
    monkeypatch.setenv("LD_PRELOAD", library(kernels.folder, CLOCK))
    lasting, short = kernels.start(keep_s=86400.0), kernels.start(keep_s=3.0)
    async with a_server(lasting, short):
        pass
    monkeypatch.delenv("LD_PRELOAD")
    with clocks.open("r+b") as file:  # not emptied in between: it is mapped
        file.write(struct.pack("@qq", 0, by_days * DAYS_NS))
    log = Path(os.environ["AFFINODE_FOLDER"], "keeper.log")
    await until(lambda: not exists(short.process.pid), message=log.read_text)
    async with a_server() as keeper:
        kept, ended = await keeper.offered(lasting.owner)
        (each,) = kept
        assert each.record.kernel_id == lasting.kernel_id and ended == []
        assert abs(each.kept_since - time.time() - by_days * 86400) < 300  # by the time of day as it is now


async def test_tabs_that_came_and_went_take_no_place_from_those_that_read(kernels):
    """Nor memory: each would have as much output as fits."""
    record = kernels.start(readers=["notebook"])
    async with a_server(record) as keeper:
        for number in range(20):
            keeper.tell_delivered(record.kernel_id, f"gone-{number}", "iopub", b"header")
        await keeper.update(record)
        await keeper.update(record)
    async with a_server() as keeper:
        assert (await keeper.take(record.kernel_id))[1].messages.keys() == {"notebook"}


def test_a_process_is_watched_where_a_server_has_many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    others = [os.dup(0) for _ in range(1100)]
    process = subprocess.Popen(["sleep", "600"])
    try:
        adopted = Adopted(name_of(process.pid))
        assert adopted.fileno() > 1023 and adopted.poll() is None
        adopted.kill()
        assert (adopted.wait(60), adopted.poll()) == (0, 0)
        adopted.close()
    finally:
        process.kill()
        process.wait()
        for other in others:
            os.close(other)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""The package is replaced while a keeper and a kernel run that were started with the earlier release."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpu_cells import SETUP
from hibernating import images, move, moved, result
from keepers import end_keepers, keepers, the_keeper
from live_server import JupyterServer, exists
from releases import Upgrade, earlier_sources
from tab import Tab, run_in_tab
from waiting import until, wait_until

import jupyter_affinode
from jupyter_affinode.keeping import client

KEEP = "--AffinodeExtension.keep_kernels=all"
INTO_IMAGES = "--AffinodeExtension.keep_kernels=hibernated"
IMPORTED = "import time:"
LATER_FIELD = '    later: str = "in the later release"\n'


@pytest.fixture
def site(keeping_machine, native) -> Callable[[str], None]:
    """`site("1.0")`: install a release as pip does, in the machine's own folder; its keepers log what they import."""
    machine = keeping_machine
    machine.simulate(memory="256MiB")
    folder = machine.folder / "site" / "jupyter_affinode"
    machine.environment["PYTHONPATH"] = str(folder.parent)
    machine.environment["PYTHONPROFILEIMPORTTIME"] = "1"

    def install(release: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # files that are open stay what they were
        shutil.copytree(
            Path(jupyter_affinode.__file__).parent,
            folder,
            ignore=shutil.ignore_patterns("labextension", "__pycache__"),
        )
        (folder / "_version.py").write_text(f'__version__ = "{release}"\n')
        if release != "1.0":
            records = folder / "keeping" / "records.py"
            last = "    version: int = VERSION\n"
            changed = records.read_text().replace(last, LATER_FIELD + last)
            assert LATER_FIELD in changed
            records.write_text(changed)

    return install


@pytest.mark.long
async def test_an_old_keeper_and_kernel_go_on_with_a_new_release(keeping_machine, site, monkeypatch):
    """The old keeper needs none of its files; when it is killed the new release's takes the kernels over."""
    machine = keeping_machine
    own = Path(machine.environment["AFFINODE_FOLDER"])
    monkeypatch.setenv("AFFINODE_FOLDER", str(own))
    log = own / "keeper.log"
    site("1.0")
    server = JupyterServer(machine).start(KEEP)
    kernel, ended, other = (server.start_kernel(path=f"{number}.ipynb") for number in range(3))
    checksum = kernel.run(f"{SETUP}\nblock = Block(64, seed=7)\nprint(block.checksum())").text
    pid, ended_pid, other_pid = kernel.pid, ended.pid, other.pid
    server.process.terminate()
    server.process.wait(timeout=60)
    (keeper,) = keepers(machine)
    before = log.read_text()
    assert IMPORTED in before

    shutil.rmtree(machine.folder / "site")
    async with await client.connected() as asking:  # as a command line of another installation does
        assert len(await asking.list_kept()) == 3
        await asking.end(ended.id)
    await until(lambda: not exists(ended_pid))
    os.kill(other_pid, signal.SIGKILL)
    await until(lambda: not (own / "kept" / f"{other.id}.json").exists())
    site("2.0")
    server.start(KEEP, port=server.port)
    assert [each["id"] for each in server.request("GET", "/api/kernels")[1]] == [kernel.id]
    assert kernel.run("print(block.checksum())").text == checksum and kernel.pid == pid
    assert server.affinode(f"kernels/{kernel.id}/park", "POST", {})[0] == 200
    assert kernel.run("print(block.checksum())").text == checksum
    assert keepers(machine) == [keeper]
    added = log.read_text()[len(before) :]
    imported = {line.rpartition("|")[2].strip() for line in added.splitlines() if IMPORTED in line}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names, imported

    server.process.terminate()
    server.process.wait(timeout=60)
    record = own / "kept" / f"{kernel.id}.json"
    assert '"later"' not in record.read_text()
    os.kill(keeper, signal.SIGKILL)
    await until(lambda: keepers(machine) not in ([], [keeper]))
    server.start(KEEP, port=server.port)
    assert kernel.run("print(block.checksum())").text == checksum and kernel.pid == pid
    kernel.restart()
    assert kernel.run("'block' in dir()").text == "False"
    await until(lambda: '"later"' in record.read_text())
    assert kernel.run(f"{SETUP}\nblock = Block(64, seed=7)\nprint(block.checksum())").text == checksum
    kernel.shutdown()
    server.stop()
    for each in (ended, other):
        each.close()


# ---- the release before this one, as it was


BEGIN = f"""{SETUP}
block, kept = Block(24, seed=7), 7
def look():
    print(block.checksum(), kept)
look()
"""
COUNTING = """
import itertools, pathlib, time
for number in itertools.count():
    print(number, flush=True)
    time.sleep(0.1)
    if pathlib.Path({until!r}).exists():
        break
"""


@pytest.fixture(scope="session")
def earlier(tmp_path_factory) -> Path:
    """The package of the release before this one."""
    return earlier_sources(tmp_path_factory.mktemp("earlier"))


@pytest.fixture
def upgrade(keeping_machine, native, criu, earlier) -> Iterator[Upgrade]:
    """A machine with a simulated GPU and the earlier release; no server is started yet."""
    made = Upgrade(keeping_machine, criu, earlier)
    yield made
    made.server.stop()


def begin(upgrade: Upgrade, path: str) -> tuple[str, str]:
    """Start a kernel with a value, and something on the GPU; return its id, and what `look()` prints there."""
    kernel = upgrade.server.start_kernel(path=path)
    seen = kernel.run(BEGIN)
    assert seen.error is None, seen.traceback
    kernel.close()
    return kernel.id, seen.text


def pid_of(upgrade: Upgrade, kernel_id: str) -> int:
    """The process of a kernel, which is woken for that."""
    return int(run_in_tab(upgrade.server, kernel_id, "import os; print(os.getpid())"))


def looks(upgrade: Upgrade, kernel_id: str) -> str:
    """What `look()` prints in a tab."""
    return run_in_tab(upgrade.server, kernel_id, "look()")


def served(upgrade: Upgrade) -> set[str]:
    """The kernels of the server."""
    return {each["id"] for each in upgrade.server.request("GET", "/api/kernels")[1]}


def counted(tab: Tab, cell: str) -> list[int]:
    """The numbers that a cell of `COUNTING` has shown."""
    return [int(number) for number in tab.text(cell).split()]


async def goes_through_all(upgrade: Upgrade, kernel_id: str, path: str, seen: str) -> None:
    """Have a kernel hibernate, wake, park and end, in each way in which a person has it do so."""
    server = upgrade.server
    tab = await Tab(kernel_id).attach(server)
    pid = int(await result(tab, "import os; print(os.getpid())"))
    await moved(server, kernel_id, "hibernate")
    assert not exists(pid) and kernel_id in images(server)
    assert await result(tab, "look()") == seen, "a message wakes it"
    await asyncio.to_thread(upgrade.command, "hibernate", path)
    assert not exists(pid) and kernel_id in images(server)
    await asyncio.to_thread(upgrade.command, "wake", path)
    assert exists(pid)
    assert await result(tab, "look()") == seen
    await moved(server, kernel_id, "park")
    assert server.machine.kernel(kernel_id)["residency"] == "parked"
    assert await result(tab, "look()") == seen
    assert int(await result(tab, "print(os.getpid())")) == pid
    await moved(server, kernel_id, "hibernate")
    await tab.close()
    for turn in range(2):  # out of its image, and then out of its process
        if turn == 1:
            kernel_id, _ = begin(upgrade, path)
            assert upgrade.record(kernel_id).exists() or await until(upgrade.record(kernel_id).exists)
        ended = await asyncio.to_thread(server.request, "DELETE", f"/api/kernels/{kernel_id}")
        assert ended[0] == 204, ended
        await until(lambda: kernel_id not in images(server) and not upgrade.record(kernel_id).exists())  # noqa: B023


async def cell_goes_on(upgrade: Upgrade, path: str, change: Callable[[], None], most_repeats: int = 0) -> str:
    """Change servers while a cell runs: its tab gets all that it prints, once and in order. Return the kernel."""
    kernel_id, seen = begin(upgrade, path)
    tab = await Tab(kernel_id).attach(upgrade.server)
    enough = upgrade.machine.folder / f"{path}.enough"
    cell = tab.run(COUNTING.format(until=str(enough)))
    await until(lambda: len(counted(tab, cell)) > 3)
    await asyncio.to_thread(change)
    assert upgrade.path_of(kernel_id) == path
    await tab.attach(upgrade.server)
    enough.touch()
    await until(
        lambda: tab.is_done(cell),
        message=lambda: (tab.replies.get(cell), tab.outputs[cell][-3:], upgrade.state()),
    )
    once = list(dict.fromkeys(counted(tab, cell)))
    assert once == list(range(len(once)))
    # What a server had written to the tab when it was killed, and not noted yet, comes again.
    assert len(counted(tab, cell)) - len(once) <= most_repeats
    assert tab.replies[cell]["status"] == "ok"
    assert await result(tab, "look()") == seen
    await tab.close()
    return kernel_id


@pytest.mark.long
async def test_a_new_server_has_the_kernels_of_an_old_keeper_with_their_output(upgrade):
    upgrade.server.start(KEEP)

    def change() -> None:
        upgrade.install()
        upgrade.end_server()
        upgrade.next_server(KEEP)

    keeper = the_keeper(upgrade.machine)
    kernel_id = await cell_goes_on(upgrade, "work.ipynb", change)
    assert keepers(upgrade.machine) == [keeper]
    assert served(upgrade) == {kernel_id}


@pytest.mark.long
@pytest.mark.parametrize("of", ["the old server", "the new server"])
async def test_under_an_old_keeper_a_kernel_of_a_new_server_does_all_that_kernels_do(upgrade, of):
    upgrade.server.start(KEEP)
    kernel_id, seen = begin(upgrade, "work.ipynb")
    keeper = the_keeper(upgrade.machine)
    upgrade.install()
    upgrade.end_server()
    upgrade.next_server(KEEP)
    if of == "the new server":
        kernel_id, seen = begin(upgrade, "new.ipynb")
    await goes_through_all(upgrade, kernel_id, upgrade.path_of(kernel_id), seen)
    assert keepers(upgrade.machine) == [keeper]


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_an_old_keeper_keeps_the_kernels_of_new_servers_that_end(upgrade, how):
    """One that it had, one that is new, and one in an image, over two ends of servers."""
    upgrade.server.start(KEEP)
    kernels = dict([begin(upgrade, "old.ipynb"), begin(upgrade, "image.ipynb")])
    keeper = the_keeper(upgrade.machine)
    upgrade.install()
    upgrade.end_server()
    upgrade.next_server(KEEP)
    kernels |= dict([begin(upgrade, "new.ipynb")])
    (in_image,) = (each for each in kernels if upgrade.path_of(each) == "image.ipynb")
    pids = {each: pid_of(upgrade, each) for each in kernels}
    for _ in range(2):
        move(upgrade.server, in_image, "hibernate")
        upgrade.end_server(how)
        assert images(upgrade.server) == [in_image]
        upgrade.next_server(KEEP)
        assert served(upgrade) == kernels.keys()
        assert {upgrade.path_of(each) for each in kernels} == {"old.ipynb", "new.ipynb", "image.ipynb"}
        for each, seen in kernels.items():
            assert looks(upgrade, each) == seen
        assert {each: pid_of(upgrade, each) for each in kernels} == pids
    assert keepers(upgrade.machine) == [keeper]


@pytest.mark.long
def test_an_old_keeper_wakes_the_images_that_it_made_for_a_new_server(upgrade):
    """By a tab's message, by the panel, and by the command line; with a server, and without one."""
    upgrade.server.start(KEEP)
    kernels = dict(begin(upgrade, f"{name}.ipynb") for name in ("tab", "panel", "with", "without"))
    by_path = {upgrade.path_of(each): each for each in kernels}
    pids = {each: pid_of(upgrade, each) for each in kernels}
    for each in kernels:
        move(upgrade.server, each, "hibernate")
    keeper = the_keeper(upgrade.machine)
    upgrade.install()
    upgrade.end_server()
    assert images(upgrade.server) == sorted(kernels)
    upgrade.command("wake", "without.ipynb")
    assert exists(pids[by_path["without.ipynb"]])
    upgrade.next_server(KEEP)
    assert served(upgrade) == kernels.keys()
    assert {upgrade.path_of(each) for each in kernels} == by_path.keys()
    move(upgrade.server, by_path["panel.ipynb"], "wake")
    upgrade.command("wake", "with.ipynb")
    for each, seen in kernels.items():
        assert looks(upgrade, each) == seen
        assert pid_of(upgrade, each) == pids[each]
    assert keepers(upgrade.machine) == [keeper]


@pytest.mark.long
@pytest.mark.parametrize("of", ["the old keeper", "the new keeper"])
async def test_under_a_new_keeper_a_kernel_of_an_old_server_does_all_that_kernels_do(upgrade, of):
    """The keeper was killed, and what starts it again finds the new release's files."""
    upgrade.server.start(KEEP)
    kernel_id, seen = begin(upgrade, "work.ipynb")
    upgrade.install()
    upgrade.renew_keeper()
    if of == "the new keeper":
        kernel_id, seen = begin(upgrade, "new.ipynb")
    await goes_through_all(upgrade, kernel_id, upgrade.path_of(kernel_id), seen)


@pytest.mark.long
def test_an_old_server_has_a_kernel_woken_that_was_away_while_the_keeper_was_renewed(upgrade):
    upgrade.server.start(KEEP)
    kernels = dict(begin(upgrade, f"{name}.ipynb") for name in ("tab", "panel", "line"))
    pids = {each: pid_of(upgrade, each) for each in kernels}
    by_path = {upgrade.path_of(each): each for each in kernels}
    for each in kernels:
        move(upgrade.server, each, "hibernate")
    upgrade.install()
    upgrade.renew_keeper()
    assert images(upgrade.server) == sorted(kernels)
    move(upgrade.server, by_path["panel.ipynb"], "wake")
    upgrade.command("wake", "line.ipynb")
    for each, seen in kernels.items():
        assert looks(upgrade, each) == seen
        assert pid_of(upgrade, each) == pids[each]


@pytest.mark.long
async def test_an_old_servers_kernel_stays_where_a_person_stops_its_way_under_a_new_keeper(upgrade):
    upgrade.server.start(KEEP)
    kernel_id, seen = begin(upgrade, "work.ipynb")
    upgrade.install()
    upgrade.renew_keeper()
    tab = await Tab(kernel_id).attach(upgrade.server)
    await result(tab, "import os; large = [os.urandom(1 << 20) for _ in range(300)]")
    hibernate = f"kernels/{kernel_id}/hibernate"
    going = asyncio.create_task(asyncio.to_thread(upgrade.server.affinode, hibernate, "POST", {}))
    await until(lambda: images(upgrade.server))
    await moved(upgrade.server, kernel_id, "stay")
    assert (await going)[0] == 409
    assert images(upgrade.server) == []
    assert await result(tab, "look()") == seen
    await tab.close()


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
async def test_a_new_server_adopts_what_an_old_one_leaves_to_a_new_keeper(upgrade, how):
    """Its running kernels, one whose cell runs, and one in an image."""
    upgrade.server.start(KEEP)
    kernels = dict(begin(upgrade, f"{name}.ipynb") for name in ("runs", "image"))
    (in_image,) = (each for each in kernels if upgrade.path_of(each) == "image.ipynb")

    def change() -> None:
        move(upgrade.server, in_image, "hibernate")
        upgrade.install()
        upgrade.renew_keeper()
        upgrade.end_server(how)
        assert images(upgrade.server) == [in_image]
        upgrade.next_server(KEEP)

    busy = await cell_goes_on(upgrade, "busy.ipynb", change, most_repeats=how == signal.SIGKILL)
    assert served(upgrade) == {*kernels, busy}
    for each, seen in kernels.items():
        assert await asyncio.to_thread(looks, upgrade, each) == seen


@pytest.mark.long
def test_an_old_server_puts_its_kernels_into_images_by_a_new_keeper_when_it_ends(upgrade):
    upgrade.server.start(INTO_IMAGES)
    kernels = dict(begin(upgrade, f"{name}.ipynb") for name in ("runs", "image"))
    pids = {each: pid_of(upgrade, each) for each in kernels}
    (in_image,) = (each for each in kernels if upgrade.path_of(each) == "image.ipynb")
    move(upgrade.server, in_image, "hibernate")
    upgrade.install()
    upgrade.renew_keeper()
    upgrade.end_server()
    assert images(upgrade.server) == sorted(kernels)
    assert not any(map(exists, pids.values()))
    upgrade.next_server(INTO_IMAGES)
    assert served(upgrade) == kernels.keys()
    for each, seen in kernels.items():
        assert looks(upgrade, each) == seen
        assert pid_of(upgrade, each) == pids[each]


@pytest.mark.long
async def test_images_of_the_earlier_release_are_woken_by_this_one(upgrade):
    """With their notebooks, variables, GPU memory, and the output that no tab has got. They are not deleted by age
    before the 30 days are over that their server gave them.
    """
    upgrade.server.start(KEEP, f"--AffinodeExtension.images_for_s={30 * 86400}")
    kernel_id, seen = begin(upgrade, "work.ipynb")
    other_id, other_seen = begin(upgrade, "folder/other.ipynb")
    pid = await asyncio.to_thread(pid_of, upgrade, kernel_id)
    tab = await Tab(kernel_id).attach(upgrade.server)
    cell = tab.run("import time; print('begun', flush=True); time.sleep(5); print('ended'); kept + 1")
    await until(lambda: "begun" in tab.text(cell))
    await tab.close()
    upgrade.end_server()
    await until(lambda: not images(upgrade.server) and "cell" not in upgrade.command("kept"))
    for path in ("work.ipynb", "folder/other.ipynb"):
        await until(lambda path=path: upgrade.machine.affinode("hibernate", path).returncode == 0)
    assert images(upgrade.server) == sorted([kernel_id, other_id])
    assert not exists(pid)
    end_keepers(upgrade.machine)
    wait_until(lambda: not keepers(upgrade.machine))
    upgrade.install()
    upgrade.next_server(KEEP)
    assert served(upgrade) == {kernel_id, other_id}
    assert upgrade.path_of(kernel_id) == "work.ipynb"
    assert upgrade.path_of(other_id) == "folder/other.ipynb"
    shown = upgrade.server.affinode(f"kernels/{kernel_id}")[1]["hibernation"]
    assert shown["state"] == "hibernated"
    assert (shown["refusal"], shown["objection"], shown["deleted_at"]) == (None, None, None)
    await tab.attach(upgrade.server)
    await until(lambda: tab.is_done(cell), message=upgrade.server.log)
    assert tab.text(cell) == "begun\nended\n8"
    assert await result(tab, "look()") == seen
    assert int(await result(tab, "import os; print(os.getpid())")) == pid
    await tab.close()
    assert await asyncio.to_thread(looks, upgrade, other_id) == other_seen
    # Their GPU memory is back: their images count no more, and are no longer told of.
    await until(lambda: not list(upgrade.machine.folder.glob("images/*/*.json")), message=upgrade.state)


@pytest.mark.long
@pytest.mark.parametrize("who", ["a server", "a command line"])
def test_records_of_the_earlier_release_are_read_by_this_one(upgrade, who):
    """No keeper ran when this release was installed. A kernel that has ended meanwhile is told of as ended."""
    upgrade.server.start(KEEP)
    kernels = dict(begin(upgrade, f"{name}.ipynb") for name in ("one", "two", "ended"))
    pids = {each: pid_of(upgrade, each) for each in kernels}
    by_path = {upgrade.path_of(each): each for each in kernels}
    ended = by_path["ended.ipynb"]
    upgrade.end_server()
    end_keepers(upgrade.machine)
    wait_until(lambda: not keepers(upgrade.machine))
    os.kill(pids[ended], signal.SIGKILL)
    wait_until(lambda: not exists(pids[ended]))
    del kernels[ended]
    assert all(upgrade.record(each).exists() for each in kernels)
    upgrade.install()
    if who == "a command line":
        listed = upgrade.command("kept")
        assert all(each in listed for each in kernels) and ended not in listed
        upgrade.command("hibernate", "one.ipynb")
        assert not exists(pids[by_path["one.ipynb"]])
    upgrade.next_server(KEEP)
    assert served(upgrade) == kernels.keys()
    for each, seen in kernels.items():
        assert looks(upgrade, each) == seen
        assert pid_of(upgrade, each) == pids[each]
        upgrade.server.request("DELETE", f"/api/kernels/{each}")
    wait_until(lambda: list((upgrade.own / "kept").glob("*.json")) == [])

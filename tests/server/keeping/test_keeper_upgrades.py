"""The package is replaced while a keeper and a kernel run that were started with the earlier release."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_cells import SETUP
from keepers import keepers
from live_server import JupyterServer, exists
from waiting import until

import jupyter_affinode
from jupyter_affinode.keeping import client

KEEP = "--AffinodeExtension.keep_kernels=all"
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

"""Kernels that outlive their server: real servers that end in every way, and the next one that has them again."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from gpu_cells import SETUP
from keepers import keepers, the_keeper
from live_machine import Machine
from live_server import ENDLESS, JupyterServer, exists
from tab import Tab
from waiting import until

from jupyter_affinode import environment

KEEP = "--AffinodeExtension.keep_kernels=all"
COUNTING = """
import itertools, pathlib, time
for number in itertools.count():
    print(number, flush=True)
    pathlib.Path({until!r} + ".counted").write_text(str(number))
    time.sleep(0.1)
    if pathlib.Path({until!r}).exists():
        break
value = "counted"
"""


@pytest.fixture
def server(keeping_server):
    """A server whose kernels outlive it, without kernels."""
    made = keeping_server
    if made.process is None or made.process.poll() is not None:
        made.start(KEEP, port=made.port)
    yield made
    if made.process.poll() is None:
        for model in made.request("GET", "/api/kernels")[1]:
            made.request("DELETE", f"/api/kernels/{model['id']}")
    while made.kernels:
        made.kernels.pop().close()
    for left in (*made.machine.folder.glob("enough*"), *made.machine.folder.glob("begun")):
        left.unlink()


def again(server: JupyterServer, how: int = signal.SIGTERM) -> None:
    """End the server in a way, and start the next one at the same port."""
    server.process.send_signal(how)
    server.process.wait(timeout=60)
    server.start(KEEP, port=server.port)


@pytest.mark.long  # the test of several tabs has two of these ends
@pytest.mark.parametrize(
    "how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=["SIGTERM", "SIGINT", "SIGKILL"]
)
async def test_a_cell_that_runs_through_a_restart_completes_in_its_tab(server, how):
    kernel = server.start_kernel(path="work.ipynb")
    (session,) = server.request("GET", "/api/sessions")[1]
    kernel.run("kept = 'as it was'")
    pid = kernel.pid
    tab = await Tab(kernel.id).attach(server)
    enough = Path(server.machine.folder, "enough")
    cell = tab.run(COUNTING.format(until=str(enough)))
    await until(lambda: "3\n" in tab.text(cell))
    again(server, how)
    assert server.request("GET", "/api/sessions")[1][0]["id"] == session["id"]
    assert server.request("GET", f"/api/kernels/{kernel.id}")[1]["execution_state"] == "busy"
    await tab.attach(server)
    enough.touch()
    await until(lambda: tab.is_done(cell))
    counted = [int(number) for number in tab.text(cell).split()]
    once = list(dict.fromkeys(counted))
    assert once == list(range(len(once))), server.log()
    # What a server had written to the tab when it was killed, and not noted yet, comes again.
    assert len(counted) - len(once) <= (how == signal.SIGKILL), counted
    assert tab.replies[cell]["status"] == "ok"
    after = tab.run("print(kept, value)")
    await until(lambda: tab.is_done(after))
    assert tab.text(after) == "as it was counted\n"
    assert kernel.pid == pid
    await tab.close()


ENDS_SLOWLY = """
import asyncio
from jupyter_server.extension.application import ExtensionApp

class EndsSlowly(ExtensionApp):
    name = "ends_slowly"

    async def stop_extension(self):
        await asyncio.sleep(1)

def _jupyter_server_extension_points():
    return [{"module": "ends_slowly", "app": EndsSlowly}]
"""


def test_a_server_that_ends_tells_no_page_that_its_kernels_are_gone(server, monkeypatch):
    """JupyterLab asks again and again on connections that it has, and drops kernels that are not listed."""
    machine = server.machine
    (machine.work / "ends_slowly.py").write_text(ENDS_SLOWLY)
    enabled = Path(machine.environment["JUPYTER_CONFIG_DIR"], "jupyter_server_config.d", "slow.json")
    enabled.parent.mkdir(exist_ok=True)
    enabled.write_text('{"ServerApp": {"jpserver_extensions": {"ends_slowly": true}}}')
    monkeypatch.setitem(machine.environment, "PYTHONPATH", str(machine.work))
    again(server)
    kernel, told = server.start_kernel(path="work.ipynb"), set()
    page = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    page.request("GET", f"/api/kernels/{kernel.id}", headers={"Authorization": f"token {server.token}"})
    assert page.getresponse().read()
    server.process.terminate()
    with contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            for path in ("kernels", "sessions"):
                page.request("GET", f"/api/{path}", headers={"Authorization": f"token {server.token}"})
                told.add((path, len(json.loads(page.getresponse().read()))))
    server.process.wait(timeout=60)
    enabled.unlink()
    server.start(KEEP, port=server.port)
    assert told <= {("kernels", 1), ("sessions", 1)}
    assert kernel.run("1 + 1").text == "2"


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_kernel_that_has_just_ended_takes_no_other_with_it(server, wait_until, how):
    """Nor does it keep the keeper from being told of the others. Nobody has noticed its end: it is not restarted."""
    server.stop()
    server.start(KEEP, "--KernelManager.autorestart=False", port=server.port)
    ended, lives = (server.start_kernel(path=f"{name}.ipynb") for name in ("ended", "lives"))
    lives.run("kept = 7")
    sessions = {each["kernel"]["id"]: each["id"] for each in server.request("GET", "/api/sessions")[1]}
    os.kill(ended.pid, signal.SIGKILL)
    for kernel in (ended, lives):
        assert (
            server.request("PATCH", f"/api/sessions/{sessions[kernel.id]}", {"path": "moved.ipynb"})[0] == 200
        )
    wait_until(lambda: "moved.ipynb" in told(server.machine, lives.id), message=server.log)
    assert "reached anew" not in server.log()
    again(server, how)
    assert [each["id"] for each in server.request("GET", "/api/kernels")[1]] == [lives.id], server.log()
    assert lives.run("kept").text == "7"


@pytest.mark.long
async def test_a_server_that_hangs_and_is_killed_loses_no_output(server):
    """Nor does the next one that is killed before the tab is back, nor one that had no tab open at the time."""
    kernel, enough = server.start_kernel(), Path(server.machine.folder, "enough")
    counted = enough.with_suffix(".counted")
    tab = await Tab(kernel.id).attach(server)
    cell = tab.run(COUNTING.format(until=str(enough)) + "\n1 / 0")
    await until(lambda: "3\n" in tab.text(cell))
    server.process.send_signal(signal.SIGSTOP)
    seen = int(counted.read_text() or 0)
    await until(lambda: int(counted.read_text() or 0) > seen + 5)
    again(server, signal.SIGKILL)
    again(server, signal.SIGKILL)
    await tab.attach(server)
    await until(lambda: len(tab.text(cell).split()) > seen + 8)
    await tab.close()
    seen = int(counted.read_text() or 0)
    await until(lambda: int(counted.read_text() or 0) > seen + 5)
    again(server, signal.SIGKILL)
    await tab.attach(server)
    enough.touch()
    await until(lambda: tab.is_done(cell))
    counted = [int(number) for number in tab.text(cell).split()]
    assert counted == list(range(len(counted))), server.log()
    assert tab.replies[cell]["ename"] == "ZeroDivisionError"
    again(server, signal.SIGKILL)
    await tab.attach(server)
    after = tab.run("print('nothing comes twice')")
    await until(lambda: tab.is_done(after))
    assert len(tab.text(cell).split()) == len(counted)
    await tab.close()


def test_kernels_do_after_a_restart_what_they_did_before(server, kernelspec, wait_until):
    """Interrupt, restart, delete; consoles on one session, a kernel that is not Python's, one that died meanwhile."""
    machine, python = server.machine, server.start_kernel(path="work.ipynb")
    console = {"name": "", "path": "console-1", "type": "console", "kernel": {"id": python.id}}
    assert server.request("POST", "/api/sessions", console)[0] == 201
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    bash = server.start_kernel(kernelspec("shell", server.machine, argv=argv, language="bash"))
    bash.run("kept=there")
    dead = server.start_kernel(path="dead.ipynb")
    python.run("kept = [1, 2]")
    dead_pid, file = dead.pid, Path(machine.environment["JUPYTER_RUNTIME_DIR"]) / f"kernel-{dead.id}.json"
    server.process.terminate()
    server.process.wait(timeout=60)
    os.kill(dead_pid, signal.SIGKILL)
    wait_until(lambda: not file.exists())
    server.start(KEEP, port=server.port)

    assert "The kernel of dead.ipynb ended at " in server.log()
    sessions = {each["path"]: each["kernel"]["id"] for each in server.request("GET", "/api/sessions")[1]}
    assert sessions == {"work.ipynb": python.id, "console-1": python.id}
    assert {each["id"] for each in server.request("GET", "/api/kernels")[1]} == {python.id, bash.id}
    assert bash.run("echo $kept").text == "there\n"
    endless = python.begin(ENDLESS)
    python.interrupt()
    assert python.wait(endless).error == "KeyboardInterrupt"
    assert python.run("kept").text == "[1, 2]"
    before = python.environment()
    python.restart()
    assert python.run("'kept' in dir()").text == "False"
    after = python.environment()
    assert after["JPY_SESSION_NAME"] == before["JPY_SESSION_NAME"]
    pid = python.pid
    os.kill(pid, signal.SIGKILL)  # the server starts it again
    wait_until(lambda: "restarting kernel" in server.log())
    python.wait_for_ready()
    assert python.pid != pid
    again(server)
    python.wait_for_ready()
    for kernel in (python, bash):
        process = kernel.pid if kernel is python else int(bash.run("echo $$").text)
        kernel.shutdown()
        wait_until(lambda process=process: not exists(process))
    assert server.request("GET", "/api/kernels")[1] == []


async def test_what_a_kernel_asks_and_says_without_a_server_reaches_the_tab(server):
    """A question to the user waits; of more output than fits the newest is there, and the tab says so."""
    kernel, other = server.start_kernel(), server.start_kernel()
    asking, telling = await Tab(kernel.id).attach(server), await Tab(other.id).attach(server)
    begun = Path(server.machine.folder, "begun")
    wait = "import pathlib, time\nprint('begun', flush=True)\n"
    wait += f"while not pathlib.Path({str(begun)!r}).exists(): time.sleep(0.05)\n"
    question = asking.run(f"{wait}print('I am', input('who? '))", allow_stdin=True)
    much = telling.run(f"{wait}for n in range(1200): print(n, 'x' * 20_000, flush=True)\nprint('the end')")
    for tab, cell in ((asking, question), (telling, much)):
        await until(lambda tab=tab, cell=cell: "begun" in tab.text(cell))
    server.process.terminate()
    server.process.wait(timeout=60)
    begun.touch()
    other.wait_for_ready()
    server.start(KEEP, port=server.port)
    await asking.attach(server)
    await until(lambda: asking.questions)
    asking.send("input_reply", {"value": "here"}, "stdin", asking.questions[0]["header"])
    await until(lambda: asking.is_done(question))
    assert asking.text(question).endswith("I am here\n")
    await telling.attach(server)
    await until(lambda: telling.is_done(much))
    text = telling.text(much)
    assert "messages of output from the time without a server did not fit" in text
    assert "\n1199 x" in text and text.endswith("the end\n") and "\n10 x" not in text
    await asking.close()
    await telling.close()


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
async def test_a_question_of_before_the_servers_end_is_answered_after_it(server, how):
    kernel = server.start_kernel()
    tab = await Tab(kernel.id).attach(server)
    cell = tab.run("print('I am', input('who? '))", allow_stdin=True)
    await until(lambda: tab.questions)
    again(server, how)
    await tab.attach(server)
    tab.send("input_reply", {"value": "here"}, "stdin", tab.questions[0]["header"])
    await until(lambda: tab.is_done(cell))
    assert tab.text(cell).endswith("I am here\n")
    await tab.close()


async def test_each_of_several_tabs_gets_its_answers_and_the_output(server):
    """A notebook's cell runs through the restart; a console that was opened after it does not take its answer."""
    kernel = server.start_kernel(path="work.ipynb")
    (session,) = server.request("GET", "/api/sessions")[1]
    pid = kernel.pid
    notebook, console = await Tab(kernel.id).attach(server), await Tab(kernel.id).attach(server)
    first = console.run("print('from the console')")
    await until(lambda: console.is_done(first))
    enough = Path(server.machine.folder, "enough")
    cell = notebook.run(COUNTING.format(until=str(enough)))
    question = console.send("kernel_info_request", {})  # answered when the cell has ended
    await until(lambda: "3\n" in notebook.text(cell))
    for how in (
        signal.SIGTERM,
        signal.SIGKILL,
    ):  # what a tab did not fetch before the second end it gets after it
        again(server, how)
    assert server.request("GET", "/api/sessions")[1][0]["id"] == session["id"]
    assert server.request("GET", f"/api/kernels/{kernel.id}")[1]["execution_state"] == "busy"
    await notebook.attach(server)
    await console.attach(server)
    enough.touch()
    await until(lambda: notebook.is_done(cell) and question in console.replies)
    counted = [int(number) for number in notebook.text(cell).split()]
    assert counted == list(range(len(counted)))
    await until(lambda: console.text(cell) == notebook.text(cell))  # it has a connection of its own
    assert cell not in console.replies
    assert notebook.replies[cell]["status"] == "ok"
    after = notebook.run("print(value)")
    await until(lambda: notebook.is_done(after))
    assert notebook.text(after) == "counted\n" and kernel.pid == pid
    await notebook.close()
    await console.close()


@pytest.mark.parametrize("ends_first", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_new_tab_gets_the_output_that_no_tab_read_and_is_told_of_which_cell_it_is(server, ends_first):
    kernel = server.start_kernel(path="work.ipynb")
    tab = await Tab(kernel.id).attach(server)
    enough = Path(server.machine.folder, "enough")
    code = COUNTING.format(until=str(enough))
    cell, after = tab.run(code), tab.run("print('after', value)")
    await until(lambda: "3\n" in tab.text(cell))
    server.process.terminate()
    server.process.wait(timeout=60)
    if ends_first:
        enough.touch()
        kernel.wait_for_ready()
    server.start(KEEP, port=server.port)
    await tab.close()
    new, newer = await Tab(kernel.id).attach(server), await Tab(kernel.id).attach(server)
    if not ends_first:
        enough.touch()
    await until(lambda: "after counted" in new.text(after))
    (told,) = [each for each in new.outputs[cell] if each["header"]["msg_type"] == "affinode_missed_output"]
    assert told["content"]["cells"][cell] == {"code": code, "execution_count": 1}
    if ends_first:
        assert told["content"]["cells"][after]["code"] == "print('after', value)"
    before, counted = ([int(number) for number in each.text(cell).split()] for each in (tab, new))
    assert [*before, *counted] == list(range(len(before) + len(counted)))
    kernels_own = [each["header"]["session"] for each in new.outputs[cell]]
    assert len(set(kernels_own)) == 1  # JupyterLab drops what others send
    if ends_first:
        assert newer.text(cell) == ""
    for each in (new, newer):
        await each.close()


def test_an_end_from_the_menu_ends_all_kernels_and_leaves_nothing(server, wait_until):
    machine, kernel = server.machine, server.start_kernel(path="work.ipynb")
    pid = kernel.pid
    (keeper,) = keepers(machine)
    assert server.request("POST", "/api/shutdown")[0] == 200
    server.process.wait(timeout=60)
    assert not exists(pid)
    wait_until(lambda: not exists(keeper))
    own = Path(machine.environment["AFFINODE_FOLDER"])
    assert list((own / "kept").iterdir()) == [] and not (own / "keep.sock").exists()
    server.start(KEEP, port=server.port)
    assert server.request("GET", "/api/sessions")[1] == []


def test_a_keeper_that_is_killed_loses_nothing(server, wait_until):
    """While a server has the kernels, and while none has."""
    kernel = server.start_kernel(path="work.ipynb")
    kernel.run("kept = 5")
    for runs in (True, False):
        keeper = the_keeper(server.machine)
        if not runs:
            server.process.terminate()
            server.process.wait(timeout=60)
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda keeper=keeper: not exists(keeper))
        if runs:
            wait_until(lambda: keepers(server.machine))
            folder = Path(server.machine.environment["AFFINODE_FOLDER"]) / "kept"
            wait_until(lambda folder=folder: list(folder.glob("*.json")))
        else:
            server.start(KEEP, port=server.port)
        assert kernel.run("kept").text == "5"
    assert [each["path"] for each in server.request("GET", "/api/sessions")[1]] == ["work.ipynb"]


@pytest.mark.long
async def test_a_keeper_that_is_killed_under_a_server_takes_no_answer_from_its_tabs(server):
    kernel = server.start_kernel(path="work.ipynb")
    tab = await Tab(kernel.id).attach(server)
    record = Path(server.machine.environment["AFFINODE_FOLDER"], "kept", f"{kernel.id}.json")
    await until(record.exists)
    before = record.stat().st_mtime_ns
    keeper = the_keeper(server.machine)
    os.kill(keeper, signal.SIGKILL)
    while record.stat().st_mtime_ns == before:  # until the next one knows that a server has the kernel
        cell = tab.run("1 + 1")
        await until(lambda cell=cell: tab.is_done(cell))
    await tab.close()


async def test_kernels_that_no_server_has_get_a_new_keeper_when_theirs_is_killed(server):
    """What it held is lost; what comes afterwards is there."""
    kernel, enough = server.start_kernel(path="work.ipynb"), Path(server.machine.folder, "enough")
    counted = enough.with_suffix(".counted")
    tab = await Tab(kernel.id).attach(server)
    cell = tab.run(COUNTING.format(until=str(enough)))
    await until(lambda: "3\n" in tab.text(cell))
    server.process.terminate()
    server.process.wait(timeout=60)
    keeper = the_keeper(server.machine)
    os.kill(keeper, signal.SIGKILL)
    socket = Path(server.machine.environment["AFFINODE_FOLDER"], "keep.sock")
    await until(lambda: keepers(server.machine) not in ([], [keeper]) and environment.listens(socket))
    # It listens before it reads for the tabs, and answers this afterwards.
    assert kernel.id in server.machine.affinode("kept", "--json").stdout
    from_then_on = int(await until(counted.read_text)) + 10  # it is empty while it is written
    await until(lambda: int(counted.read_text() or 0) > from_then_on)
    enough.touch()
    kernel.wait_for_ready()
    server.start(KEEP, port=server.port)
    await tab.attach(server)
    await until(lambda: tab.is_done(cell))
    numbers = [int(number) for number in tab.text(cell).split()]
    assert numbers == sorted(set(numbers))
    assert set(range(from_then_on, numbers[-1] + 1)) <= set(numbers)
    await tab.close()


def test_a_kernel_whose_kernelspec_is_gone_runs_on_and_can_be_ended(server, kernelspec):
    """The next server adopts the others, and says why not this one; one that has the kernelspec again adopts it."""
    machine = server.machine
    spec = Path(machine.environment["JUPYTER_DATA_DIR"], "kernels", kernelspec("removed", machine))
    here, there = server.start_kernel(path="here.ipynb"), server.start_kernel("removed", path="there.ipynb")
    there.run("kept = 7")
    pid = there.pid
    for is_last in (False, True):
        away = spec.rename(machine.folder / "removed")
        again(server)
        assert [model["id"] for model in server.request("GET", "/api/kernels")[1]] == [here.id]
        assert f"Kernel {there.id} could not be adopted: No such kernel named removed" in server.log()
        kept = {each["id"]: each["here"] for each in server.affinode()[1]["kept"]}
        assert kept == {here.id: True, there.id: False}
        if not is_last:
            away.rename(spec)
            again(server)
            assert there.run("kept").text == "7"
    assert server.affinode(f"kept/{there.id}", "DELETE")[0] == 204
    assert not exists(pid)


@pytest.mark.long
def test_servers_of_one_user_adopt_their_own(server, wait_until):
    """Those of another root folder others, and a plain server none; what no server fetches ends in time."""
    machine = server.machine
    elsewhere = machine.folder / "not-here"
    elsewhere.mkdir()
    work, machine.work = machine.work, elsewhere  # the next server's root folder
    other = JupyterServer(machine).start(KEEP)
    here, there = server.start_kernel(path="here.ipynb"), other.start_kernel(path="there.ipynb")
    for each in (server, other):
        each.process.terminate()
        each.process.wait(timeout=60)
    other.start(KEEP, "--AffinodeExtension.keep_kernels_for_s=2", port=other.port)
    machine.work = work
    server.start(KEEP, port=server.port)
    for each, kernel in ((server, here), (other, there)):
        assert [model["id"] for model in each.request("GET", "/api/kernels")[1]] == [kernel.id]
    pid = there.pid
    wait_until(lambda: '"keep_s": 2' in told(machine, there.id))
    other.process.terminate()
    other.process.wait(timeout=60)
    there.close()
    wait_until(lambda: not exists(pid))
    assert f"kernel {there.id} is ended: no server had it for 2 s" in log_of_keeper(machine)
    wait_until(lambda: not told(machine, there.id))
    assert here.run("1 + 1").text == "2"


async def test_kernels_that_no_tab_shows_are_told_of_and_those_of_other_servers_can_be_ended(
    server,
):
    """Those of the same server until a tab attaches; those of another root folder with that folder."""
    machine = server.machine
    work, machine.work = machine.work, machine.folder / "elsewhere"
    machine.work.mkdir()
    other = JupyterServer(machine).start(KEEP)
    folder, machine.work = str(machine.work), work
    plain, shown, there = (
        server.start_kernel(),
        server.start_kernel(path="a/shown.ipynb"),
        other.start_kernel(path="there.ipynb"),
    )
    assert server.affinode()[1]["kept"] == []
    for each in (other, server):
        each.process.terminate()
        each.process.wait(timeout=60)
    server.start(KEEP, port=server.port)
    kept = {each["id"]: each for each in server.affinode()[1]["kept"]}
    assert {key: each["path"] for key, each in kept.items()} == {
        plain.id: None,
        shown.id: "a/shown.ipynb",
        there.id: "there.ipynb",
    }
    assert {key: each["here"] for key, each in kept.items()} == {
        plain.id: True,
        shown.id: True,
        there.id: False,
    }
    assert kept[there.id]["folder"] == folder and kept[shown.id]["folder"] is None
    assert all(re.fullmatch(r"\d\d:\d\d \S+", each["since"]) for each in kept.values())
    tab = await Tab(shown.id).attach(server)
    await until(lambda: shown.id not in {each["id"] for each in server.affinode()[1]["kept"]})
    await tab.close()  # from now on it is a kernel as others
    assert shown.id not in {each["id"] for each in server.affinode()[1]["kept"]}

    pid = there.pid
    assert server.affinode(f"kept/{plain.id}", "DELETE")[0] == 404
    assert server.affinode(f"kept/{there.id}", "DELETE")[0] == 204
    assert not exists(pid)
    assert [each["id"] for each in server.affinode()[1]["kept"]] == [plain.id]
    assert server.affinode(f"kept/{there.id}", "DELETE")[0] == 404


def told(machine: Machine, kernel_id: str) -> str:
    """What the keeper has noted of a kernel."""
    path = Path(machine.environment["AFFINODE_FOLDER"], "kept", f"{kernel_id}.json")
    return path.read_text() if path.exists() else ""


def log_of_keeper(machine: Machine) -> str:
    """What it wrote."""
    return Path(machine.environment["AFFINODE_FOLDER"], "keeper.log").read_text()


def test_the_controller_and_the_next_one_know_a_kept_kernel(gpu_machine, kernelspec, wait_until):
    """Its name, its notebook, its kernelspec's wishes, and when its cell ends: then it may be parked."""
    machine = gpu_machine
    machine.environment["AFFINODE_FOLDER"] = str(machine.folder / "own")
    spec = kernelspec("wishes", machine, metadata={"affinode": {"priority": -2}})
    server = JupyterServer(machine).start(KEEP)
    kernel = server.start_kernel(spec, path=None)
    done = machine.folder / "done"
    kernel.run(f"{SETUP}\nimport pathlib, time\nblock = Block(64, seed=3)")
    checksum = kernel.run("print(block.checksum())").text
    cell = kernel.submit(f"while not pathlib.Path({str(done)!r}).exists(): time.sleep(0.05)")
    wait_until(lambda: (machine.kernel(kernel.id) or {}).get("cell_open"))
    server.process.terminate()
    server.process.wait(timeout=60)
    wait_until(lambda: is_said_to_be_kept(machine, kernel.id))
    os.kill(machine.controller_pid(), signal.SIGKILL)
    wait_until(lambda: is_said_to_be_kept(machine, kernel.id))
    known = machine.kernel(kernel.id)
    assert (known["name"], known["priority"]) == ("wishes", -2)
    wait_until(lambda: machine.kernel(kernel.id)["cell_open"])
    done.touch()
    kernel.wait(cell)
    wait_until(lambda: not machine.kernel(kernel.id)["cell_open"])
    assert machine.ask("POST", f"/kernels/{kernel.id}/park", {"wait": True})[0] == 200
    assert machine.kernel(kernel.id)["residency"] == "parked"
    server.start(KEEP, port=server.port)
    assert kernel.run("print(block.checksum())").text == checksum
    kernel.shutdown()
    server.stop()
    wait_until(lambda: not keepers(machine))


@pytest.mark.long
def test_a_user_keeps_no_more_than_the_quota(keeping_machine, wait_until):
    """By number and by host memory; kernels that have said nothing for longest end first, busy ones last."""
    machine = keeping_machine
    server = JupyterServer(machine).start(KEEP, "--AffinodeExtension.keep_kernels_per_user=2")
    busy, *others = (server.start_kernel(path=f"{number}.ipynb") for number in range(3))
    busy.begin(ENDLESS)
    for kernel in others:
        kernel.run("1 + 1")
    pids = []
    for kernel in others:
        pids.append(kernel.pid)
        machine.affinode("kept")  # the keeper answers: it has heard this one before the next one speaks
    server.process.terminate()
    server.process.wait(timeout=60)
    wait_until(lambda: [exists(pid) for pid in pids] == [False, True])
    assert "its user may have 2 kept kernels" in log_of_keeper(machine)
    server.start(KEEP, "--AffinodeExtension.keep_kernels_memory=300MiB", port=server.port)
    assert {each["id"] for each in server.request("GET", "/api/kernels")[1]} == {busy.id, others[1].id}
    others[1].run("held = bytearray(1 << 28)")
    server.process.terminate()
    server.process.wait(timeout=60)
    wait_until(lambda: not exists(pids[1]))
    folder = Path(machine.environment["AFFINODE_FOLDER"], "kept")
    wait_until(lambda: [kept.stem for kept in folder.glob("*.json")] == [busy.id])
    busy.close()
    others[1].close()


def is_said_to_be_kept(machine: Machine, kernel_id: str) -> bool:
    """Whether the controller, if one runs, knows from the keeper that no server has a kernel."""
    known = machine.kernel(kernel_id)
    return bool(known and (known["server"] or "").startswith("none, kept since"))


@pytest.mark.long
def test_kernels_that_are_stopped_when_their_server_ends_are_kept(server):
    """No connection to them comes about, and the server has no time to wait for each."""
    kernels = [server.start_kernel(path=f"{number}.ipynb") for number in range(10)]
    pids = [kernel.pid for kernel in kernels]
    tabs = [asyncio.run(attached_once(server, kernel.id)) for kernel in kernels]
    assert len(tabs) == len(kernels)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    server.process.terminate()
    server.process.wait(timeout=60)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    server.start(KEEP, port=server.port)
    assert [kernel.pid for kernel in kernels] == pids
    assert {each["id"] for each in server.request("GET", "/api/kernels")[1]} == {each.id for each in kernels}


async def attached_once(server: JupyterServer, kernel_id: str) -> None:
    """Have a tab been attached to a kernel, so that there is one to read for."""
    tab = await Tab(kernel_id).attach(server)
    await tab.close()


@pytest.mark.long
def test_twenty_restarts_in_a_row_and_many_kernels(server, wait_until):
    """However each server ends; nothing is left at the end."""
    machine = server.machine
    kernels = [server.start_kernel(path=f"{number}.ipynb") for number in range(8)]
    for number, kernel in enumerate(kernels):
        kernel.run(f"mine, turns = {number}, 0")
    (keeper,) = keepers(machine)
    before = descriptors(keeper)
    for turn in range(20):
        again(server, (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)[turn % 3])
        for number, kernel in enumerate(kernels):
            assert kernel.run("turns += 1\nprint(mine, turns)").text == f"{number} {turn + 1}\n"
    wait_until(lambda: descriptors(keeper) <= before)  # sockets are closed on a thread of ZMQ's
    for kernel in kernels:
        kernel.shutdown()
    server.process.terminate()
    server.process.wait(timeout=60)
    wait_until(lambda: not exists(keeper))
    assert list(Path(machine.environment["AFFINODE_FOLDER"], "kept").iterdir()) == []
    assert list(Path(machine.environment["JUPYTER_RUNTIME_DIR"]).glob("kernel-*")) == []
    server.start(KEEP, port=server.port)


def descriptors(pid: int) -> int:
    """How many a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))

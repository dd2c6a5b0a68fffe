"""Warm kernels: made by a real keeper, taken by real servers and other programs, with a simulated GPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_cells import SETUP
from keepers import end_keepers
from live_server import JupyterServer, exists
from waiting import wait_until
from warm_stage import WarmStage

from jupyter_affinode import environment
from jupyter_affinode.keeping import warm_spec
from jupyter_affinode.keeping.processes import lives, name_of
from jupyter_affinode.keeping.warm_spec import command_of
from jupyter_affinode.kernel import taking

GPU_PRELUDE = f"""{SETUP}
import random
import numpy
print("said by the prelude")
random.seed(1), numpy.random.seed(1)
generator = numpy.random.default_rng(1)
block = Block(16, seed=7)
"""
RANDOM = "print(random.random(), numpy.random.random(), generator.random())"
WAS_READY = "was ready: it is a warm one"
NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "warm", "display_name": "warm", "language": "python"}},
    "cells": [
        {
            "cell_type": "code",
            "id": "one",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": "import os\nprint(os.getpid(), prepared)",
        }
    ],
}


@pytest.fixture
def stage(keeping_machine):
    """Where kernelspecs of the machine are written."""
    return WarmStage(keeping_machine)


def known(stage: WarmStage) -> dict[str, tuple[str, str]]:
    """Where the GPU memory of each kernel is that the controller knows, and the beginning of its server's name."""
    try:
        kernels = stage.machine.ask("GET", "/kernels")[1]["kernels"]
    except OSError:  # the controller is starting again
        return {}
    return {kernel["id"]: (kernel["residency"], (kernel["server"] or "")[:10]) for kernel in kernels}


def test_notebooks_take_warm_kernels_which_are_parked_until_then(native, stage, server):
    stage.machine.simulate(memory="256MiB")
    stage.write("warm", GPU_PRELUDE, count=2)
    server.start()
    stage.until("warm", "ready", 2)
    made = stage.pids()
    wait_until(lambda: set(known(stage).values()) == {("parked", "warm, made")}, 120, stage.log)

    kernels = [server.start_kernel("warm", path=f"{number}.ipynb") for number in range(2)]
    assert sorted(kernel.pid for kernel in kernels) == sorted(made)
    first, second = (kernel.run(f"{RANDOM}\nprint(block.checksum())") for kernel in kernels)
    assert (first.status, second.status, first.stderr) == ("ok", "ok", "")
    numbers = [run.text.splitlines()[0].split() for run in (first, second)]
    assert all(one != other for one, other in zip(*numbers, strict=True))
    assert first.text.splitlines()[1] == second.text.splitlines()[1]
    for kernel in kernels:  # a call goes on a moment before the controller hears that the memory is back
        wait_until(lambda kernel=kernel: kernel.state()["residency"] == "resident")
        assert kernel.state()["own"]
    assert {kernel.id for kernel in kernels} <= known(stage).keys()


def test_a_command_is_the_same_by_each_name_of_its_interpreter_in_one_environment(tmp_path):
    for where in ("one", "other"):
        (tmp_path / where).mkdir()
        (tmp_path / where / "python").symlink_to(sys.executable)
        (tmp_path / where / "python3").symlink_to("python")
    file = str(tmp_path / "kernel-1.json")
    by_name = {
        (where, name): command_of([str(tmp_path / where / name), "-f", file], file)
        for where in ("one", "other")
        for name in ("python", "python3")
    }
    assert by_name["one", "python"] == by_name["one", "python3"] != by_name["other", "python"]
    assert by_name["one", "python"][1:] == ["-f", "{connection_file}"]


@pytest.mark.long
@pytest.mark.parametrize("keeps", ["never", "all"])
def test_a_restart_gives_a_fresh_one_at_the_same_addresses(stage, server, keeps):
    stage.write("warm", "prepared = 42")
    server.start(f"--AffinodeExtension.keep_kernels={keeps}")
    stage.until("warm", "ready")
    kernel = server.start_kernel("warm", path="work.ipynb")
    before, connection = kernel.pid, kernel.client.get_connection_info()
    kernel.run("prepared = 'changed'")
    stage.until("warm", "ready")
    (ready,) = stage.pids()
    kernel.restart()
    assert kernel.pid == ready != before and kernel.run("prepared").text == "42"
    assert kernel.client.get_connection_info() == connection
    assert server.log().count(WAS_READY) == 2
    message = kernel.begin("import time\nwhile True:\n    time.sleep(0.05)")
    kernel.interrupt()
    assert kernel.wait(message).error == "KeyboardInterrupt"
    kernel.shutdown()
    wait_until(lambda: not exists(ready))


@pytest.mark.long
def test_without_a_ready_one_a_kernel_starts_as_usual_and_runs_the_prelude(stage, server):
    go = stage.machine.folder / "go"
    stage.write(
        "warm",
        f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\nprepared = 42",
    )
    server.start()
    stage.until("warm", "making")
    wait_until(stage.pids)
    status, model = server.request("POST", "/api/kernels", {"name": "warm"})
    assert status == 201 and "No warm kernel of warm" in server.log() and "none is ready yet" in server.log()
    go.touch()
    assert server.request("DELETE", f"/api/kernels/{model['id']}")[0] == 204
    stage.until("warm", "ready")
    kernel = server.start_kernel("warm")
    assert kernel.run("prepared").text == "42" and WAS_READY in server.log()


@pytest.mark.long
def test_a_prelude_that_fails_is_shown_and_tried_again_only_when_it_changes(stage, server):
    ran = stage.machine.folder / "ran"
    count = f"open({str(ran)!r}, 'a').write('x')\n"
    prelude = stage.write("warm", f"{count}print('so far')\n1 / 0", count=2)
    server.start()
    failed = stage.until("warm", "failed", True)["failed"]
    assert "ZeroDivisionError" in failed and "so far" in failed and f'File "{prelude}", line 3' in failed
    kernel = server.start_kernel("warm", path="work.ipynb")
    first, second = kernel.run("6 * 7"), kernel.run("1 + 1")
    assert (first.text, first.stderr.strip(), second.text, second.stderr) == ("42", failed.strip(), "2", "")
    assert ran.read_text() == "x"
    listed = stage.machine.affinode("warm", "list").stdout
    assert "0 of 2 ready" in listed and "ZeroDivisionError" in listed
    prelude.write_text(f"{count}prepared = 42")
    stage.until("warm", "ready", 2)
    assert ran.read_text() == "xxx"
    kernel.restart()
    assert kernel.run("prepared").text == "42" and WAS_READY in server.log()


@pytest.mark.long
def test_what_a_kernel_is_made_of_changes_and_it_is_not_taken(stage, server):
    folder = stage.machine.folder
    (folder / "module_of_mine.py").write_text("value = 1")
    weights = folder / "weights"
    weights.write_text("1")
    text = f"import sys\nsys.path.append({str(folder)!r})\nimport module_of_mine\nprepared = module_of_mine.value"
    prelude = stage.write("warm", text, files=[str(weights)])
    server.start()
    for change in (
        lambda: (folder / "module_of_mine.py").write_text("value = 20"),
        lambda: prelude.write_text(text + " + 1"),
        lambda: weights.write_text("20"),
    ):
        stage.until("warm", "ready")
        before = stage.pids()
        change()
        kernel = server.start_kernel("warm")
        assert kernel.pid not in before
        assert kernel.run("prepared").text in ("20", "21")
        wait_until(lambda before=before: not any(map(exists, before)), 120, stage.log)
    assert "has changed" in server.log() and WAS_READY not in server.log()


def test_what_no_file_of_a_pool_says_is_no_change_of_a_prelude():
    assert set(taking.OF_ONE_SERVER) == {*warm_spec.OF_ONE_SERVER, "AFFINODE_"}
    assert {*taking.SECRETS, environment.GRANT} == set(warm_spec.SECRETS)


@pytest.mark.long
def test_no_file_of_a_pool_has_a_secret_of_its_server(stage, server):
    """Nor does a notebook get one of an earlier server with the kernel."""
    mark = "not-to-be-written-down"
    secrets = {
        "AFFINODE_GRANT": f"{mark}.a.b",
        "JUPYTERHUB_API_TOKEN": f"{mark}-1",
        "JPY_API_TOKEN": f"{mark}-2",
        "JUPYTER_TOKEN": f"{mark}-3",
        "CONFIGPROXY_AUTH_TOKEN": f"{mark}-4",
    }
    stage.write("warm", "import os; seen = dict(os.environ)", count=2)
    stage.write("failing", "1 / 0")
    stage.machine.environment |= secrets
    server.start()
    stage.until("warm", "ready", 2)
    stage.until("failing", "failed", True)

    def has_mark():
        """The files below the user's folder that have one of the secrets."""
        files = [path for path in stage.folder.rglob("*") if path.is_file()]
        assert any("warm" in str(path) for path in files), "the walk has found no pool"
        return [str(path) for path in files if mark.encode() in path.read_bytes()]

    assert has_mark() == []
    kernel = server.start_kernel("warm")
    assert WAS_READY in server.log()
    seen = kernel.run("import os; print(seen['JUPYTERHUB_API_TOKEN'], os.environ['JUPYTERHUB_API_TOKEN'])")
    assert seen.text == f"{mark}-1 {mark}-1\n", "the kernel itself has what its server has"
    assert has_mark() == []
    server.stop()
    for name in secrets:
        del stage.machine.environment[name]
    stage.machine.environment["JUPYTERHUB_API_TOKEN"] = "other"
    server.start()
    stage.until("warm", "ready", 2)
    seen = server.start_kernel("warm").run(
        "import os; print(os.environ['JUPYTERHUB_API_TOKEN'], os.environ.get('JPY_API_TOKEN'))"
    )
    assert seen.text == "other None\n"


@pytest.mark.long
def test_handlers_that_a_prelude_made_write_to_the_notebook_that_took_the_kernel(stage, server):
    prelude = """
import functools, logging, sys
said, named = functools.partial(print, file=sys.stdout), sys.stderr
log = logging.getLogger("of a prelude")
log.addHandler(logging.StreamHandler())
log.warning("shown to no one"), said("shown to no one")
"""
    stage.write("warm", prelude)
    server.start()
    stage.until("warm", "ready")
    kernel = server.start_kernel("warm")
    assert WAS_READY in server.log()
    ran = kernel.run("said('said'); log.warning('logged'); print('named', file=named)")
    assert (ran.text, ran.stderr) == ("said\n", "logged\nnamed\n")


@pytest.mark.long
def test_code_that_is_no_module_changes_and_the_kernel_that_ran_it_is_not_taken(stage, server):
    """IPython's startup files and settings, new ones too, and files that the prelude executes."""
    folder = stage.machine.folder
    profile = Path(stage.machine.environment["IPYTHONDIR"]) / "profile_default"
    startup = profile / "startup" / "00-first.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text("from_startup = 1")
    for name in ("executed", "run", "by_path"):
        (folder / f"{name}.py").write_text("value = 1")
    stage.write(
        "warm",
        f"""
import pathlib, runpy
exec(open({str(folder / "executed.py")!r}).read())
exec(compile(pathlib.Path({str(folder / "by_path.py")!r}).read_text(), "named otherwise", "exec"))
get_ipython().run_line_magic("run", {str(folder / "run.py")!r})
""",
    )
    server.start()
    for change in (
        lambda: startup.write_text("from_startup = 20"),
        lambda: startup.with_name("10-second.ipy").write_text("from_second = 20"),
        lambda: (profile / "ipython_kernel_config.py").write_text("c.InteractiveShell.colors = 'NoColor'"),
        lambda: (folder / "executed.py").write_text("value = 20"),
        lambda: (folder / "by_path.py").write_text("value = 20"),
        lambda: (folder / "run.py").write_text("value = 20"),
    ):
        stage.until("warm", "ready")
        before = stage.pids()
        change()
        kernel = server.start_kernel("warm")
        assert kernel.pid not in before
        wait_until(lambda before=before: not any(map(exists, before)), 120, stage.log)
    assert kernel.run("from_startup, from_second, value").text == "(20, 20, 20)"
    assert WAS_READY not in server.log()


@pytest.mark.long
def test_each_user_has_kernels_of_their_own(stage, server):
    stage.write("warm", "import os\nprepared = os.environ['AFFINODE_FOLDER']")
    server.start()
    stage.until("warm", "ready")
    mine, other = stage.folder, stage.machine.folder / "other"
    stage.machine.environment["AFFINODE_FOLDER"] = str(other)
    theirs = JupyterServer(stage.machine)
    others = WarmStage(stage.machine)
    try:
        theirs.start()
        others.until("warm", "ready")
        assert theirs.start_kernel("warm").pid not in stage.pids()
        assert WAS_READY in theirs.log()
        assert stage.pool("warm")["taken"] == 0
        assert server.start_kernel("warm").run("prepared").text == repr(str(mine))
    finally:
        theirs.stop()
        end_keepers(stage.machine)
        stage.machine.environment["AFFINODE_FOLDER"] = str(mine)


class Taker:
    """A program that is offered a warm kernel, and does no more."""

    def __init__(self, stage: WarmStage, name: str):
        self._asking = socket.socket(socket.AF_UNIX)
        self._asking.connect(str(stage.folder / "keep.sock"))
        self._said = self._asking.makefile()
        entry = next((stage.folder / "warm").glob("*/launched.json"))
        launched = json.loads(entry.read_text())
        self._request = {
            "spec": os.path.realpath(stage.specs / name),
            "environ": dict(stage.machine.environment),
            "settings": {},
            "kernel_environ": launched["environ"],
            "command": launched["command"],
        }

    def ask(self, pid: int) -> dict:
        """Ask for a kernel in the name of a process."""
        request = {"do": "warm_offer", **self._request, "pid": pid}
        self._asking.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(self._said.readline())["answer"]

    def close(self) -> None:
        self._said.close()
        self._asking.close()


@pytest.mark.long
@pytest.mark.parametrize("killed", ["taker", "keeper, and then the taker"])
def test_a_kernel_that_was_offered_goes_to_no_other_whoever_is_killed(stage, killed):
    stage.write("warm", "prepared = 42")
    assert stage.machine.affinode("warm", "list").stdout == "No warm kernels.\n"
    settings = {
        "spec": os.path.realpath(stage.specs / "warm"),
        "environ": stage.machine.environment,
        "settings": {},
    }
    want(stage, settings)
    stage.until("warm", "ready")
    (pid,) = stage.pids()
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    taker = Taker(stage, "warm")
    try:
        assert taker.ask(program.pid)["offer"]["process"]["pid"] == pid
        with contextlib.closing(Taker(stage, "warm")) as other:
            assert other.ask(os.getpid())["offer"] is None
        if killed == "taker":
            taker.close()  # as its end does
        else:
            stage.kill_keeper()
            want(stage, settings)
            stage.until("warm", "ready")
            assert exists(pid)  # its taker may have it
            with contextlib.closing(Taker(stage, "warm")) as other:
                assert pid != other.ask(os.getpid())["offer"]["process"]["pid"]
    finally:
        program.kill()
        program.communicate()
        taker.close()
    wait_until(lambda: not exists(pid), 120, stage.log)


def want(stage: WarmStage, settings: dict) -> None:
    """Have a keeper run, and want a kernelspec's kernels."""
    code = (
        "import asyncio, json, sys\nfrom jupyter_affinode.keeping.client import connected\n"
        "async def main():\n async with await connected() as keeper:\n"
        "  await keeper.want_warm(json.load(sys.stdin))\nasyncio.run(main())"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(settings).encode(),
        env=stage.machine.environment,
        check=True,
        timeout=60,
    )


@pytest.mark.long
def test_the_keeper_is_killed_at_any_moment_and_the_next_has_as_many_ready(stage, server):
    """Also while a kernel is made: none stays behind that no keeper knows."""
    begun, go = stage.machine.folder / "begun", stage.machine.folder / "go"
    text = f"import os, time\nopen({str(begun)!r}, 'w').close()\n"
    text += f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\nprepared = 42"
    stage.write("warm", text, count=2)
    server.start()
    for moment in (lambda: stage.until("warm", "making"), lambda: wait_until(begun.exists)):
        moment()
        stage.kill_keeper()
    go.touch()
    pool = stage.until("warm", "ready", 2)
    pids = stage.pids()
    stage.kill_keeper()
    again = stage.until("warm", "ready", 2)
    assert {kernel["id"] for kernel in again["kernels"]} == {kernel["id"] for kernel in pool["kernels"]}
    assert stage.pids() == pids
    assert server.start_kernel("warm").pid in pids

    def living() -> list[Path]:
        return [path for path in Path("/proc").glob("[0-9]*/environ") if _is_of(path, stage)]

    wait_until(lambda: len(living()) <= 1 + 2 + 1, 120, stage.log)  # taken; ready or made


def _is_of(path: Path, stage: WarmStage) -> bool:
    with contextlib.suppress(OSError):
        return f"AFFINODE_WARM={stage.folder}".encode() in path.read_bytes()
    return False


@pytest.mark.long
def test_the_controller_is_killed_while_a_kernel_is_made_before_and_after_it_is_taken(native, stage, server):
    stage.machine.simulate(memory="256MiB")
    begun, go = stage.machine.folder / "begun", stage.machine.folder / "go"
    waits = f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.05)"
    stage.write("warm", f"{GPU_PRELUDE}\nimport os\nopen({str(begun)!r}, 'w').close()\n{waits}")
    server.start()

    def kill_controller() -> None:
        pid = wait_until(stage.machine.controller_pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not exists(pid))

    wait_until(begun.exists)
    kill_controller()
    go.touch()
    stage.until("warm", "ready")
    wait_until(lambda: "parked" in {where for where, _ in known(stage).values()}, 120, stage.log)
    kill_controller()
    kernel = server.start_kernel("warm")
    checksum = kernel.run("block.checksum()").text
    assert WAS_READY in server.log()
    wait_until(lambda: server.affinode(f"kernels/{kernel.id}")[0] == 200, 120, server.log)
    kill_controller()
    wait_until(lambda: server.affinode(f"kernels/{kernel.id}")[0] == 200, 120, server.log)

    def parked() -> bool:
        answer = server.affinode(f"kernels/{kernel.id}/park", "POST", {})[1]
        return isinstance(answer, dict) and answer.get("residency") == "parked"

    wait_until(parked, 120, server.log)
    assert kernel.run("block.checksum()").text == checksum


@pytest.mark.long
def test_other_programs_take_kernels_by_the_kernelspecs_name_and_these_end_with_them(stage):
    notebook = stage.machine.work / "work.ipynb"
    notebook.write_text(json.dumps(NOTEBOOK))
    (stage.machine.folder / "prelude.py").write_text("prepared = 42")
    added = stage.machine.affinode(
        "warm", "add", "warm", "--prelude", str(stage.machine.folder / "prelude.py")
    )
    assert added.returncode == 0, added.stderr
    stage.until("warm", "ready")
    (pid,) = stage.pids()
    environ = stage.machine.environment
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "notebook", "--stdout", str(notebook)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    (output,) = json.loads(done.stdout)["cells"][0]["outputs"]
    assert "".join(output["text"]) == f"{pid} 42\n"
    wait_until(lambda: not exists(pid))

    stage.until("warm", "ready")
    (pid,) = stage.pids()
    code = (
        "import os, sys\nfrom jupyter_client.manager import start_new_kernel\n"
        "manager, client = start_new_kernel(kernel_name='warm')\nprint('has it', flush=True)\ninput()"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert program.stdout.readline() == b"has it\n" and exists(pid)
    program.kill()
    program.communicate()
    wait_until(lambda: not exists(pid))

    removed = stage.machine.affinode("warm", "remove", "warm")
    assert removed.returncode == 0, removed.stderr
    assert stage.pool("warm") is None
    wait_until(lambda: not any(map(exists, stage.pids())))


@pytest.mark.long
def test_a_warm_kernel_hibernates_and_is_woken_when_it_is_taken(native, stage, criu):
    machine = stage.machine
    machine.simulate(memory="4GiB")  # with room for the way back
    folder = machine.folder
    machine.environment.update(
        AFFINODE_CRIU=criu,
        AFFINODE_HIBERNATE_DIR=str(folder / "images"),
        XDG_STATE_HOME=str(folder / "state"),
    )
    server = JupyterServer(machine)
    server.transport = "tcp"
    stage.write("warm", GPU_PRELUDE)
    try:
        server.start()
        (kernel,) = stage.until("warm", "ready")["kernels"]
        (pid,) = stage.pids()
        wait_until(lambda: known(stage).get(kernel["id"], ("",))[0] == "parked", 120, stage.log)
        done = machine.affinode("hibernate", kernel["id"])
        assert done.returncode == 0, done.stderr + stage.log()
        assert not exists(pid)
        (image,) = stage.until("warm", "ready")["kernels"]
        assert image["place"] == "image" and image["bytes"] > 1 << 20
        stage.kill_keeper()  # the next finds it in the images
        assert stage.until("warm", "ready")["kernels"][0]["place"] == "image"
        taken = server.start_kernel("warm")
        assert taken.pid == pid and WAS_READY in server.log()
        assert taken.run("block.checksum()").status == "ok"
        wait_until(lambda: taken.state()["residency"] == "resident")
        wait_until(lambda: kernel["id"] not in known(stage))
    finally:
        server.stop()


@pytest.mark.long
def test_a_prelude_without_an_end_keeps_no_other_kernels_from_being_made(stage, server):
    stage.write("endless", "while True: pass")
    stage.write("warm", "prepared = 42")
    server.start("--AffinodeExtension.warm_prelude_s=10")
    assert stage.until("endless", "failed", True)["failed"].startswith("Its prelude had not ended after 10 s")
    stage.until("warm", "ready")
    assert len(stage.pids()) == 1
    kernel = server.start_kernel("endless")
    assert "Its prelude had not ended after 10 s" in kernel.run("1 + 1").stderr


@pytest.mark.long
def test_warm_kernels_stay_within_their_bounds(stage, server):
    stage.write("many", "prepared = 42", count=3)
    server.start("--AffinodeExtension.warm_per_user=1", "--AffinodeExtension.warm_for_s=3")
    assert stage.until("many", "note", True)["ready"] <= 1
    stage.until("many", "ready")
    assert "a user may have 1 at a time" in stage.pool("many")["note"]
    (pid,) = stage.pids()
    before = name_of(pid)
    server.stop()
    wait_until(lambda: not lives(before), 120, stage.log)
    server.start("--AffinodeExtension.warm_memory=1MiB")
    words = "a user's warm kernels may have 1 MiB"
    assert stage.until("many", "note", words)["ready"] == 0
    wait_until(lambda: not any(map(exists, stage.pids())), 120, stage.log)

"""Kernels whose server runs hibernate and wake: real servers, tabs and kernels, real CRIU."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_cells import SETUP
from hibernating import end_kernels, images, move, moved, prepare, result
from keepers import keepers, the_keeper
from live_server import ENDLESS, JupyterServer, exists
from tab import Tab
from waiting import until

KEEP = "--AffinodeExtension.keep_kernels=all"


@pytest.fixture(scope="module")
def hibernating_server(keeping_server, criu):
    """One for a module's tests, which may end it."""
    prepare(keeping_server, criu)
    return keeping_server


@pytest.fixture
def server(hibernating_server):
    """The module's, running and without kernels."""
    made = hibernating_server
    if made.process is None or made.process.poll() is not None:
        made.start(port=made.port)
    end_kernels(made)
    while made.kernels:
        made.kernels.pop().close()
    return made


def with_tab(server: JupyterServer, story: Callable[[Tab], Awaitable[None]], name: str = "python3") -> None:
    """Tell a story of a new kernel with one tab."""
    kernel = server.start_kernel(name, path="work.ipynb")
    kernel.close()

    async def told() -> None:
        tab = await Tab(kernel.id).attach(server)
        try:
            await story(tab)
        finally:
            await tab.close()

    asyncio.run(told())


def with_gpu(server: JupyterServer) -> JupyterServer:
    """Start it on a machine with a simulated GPU of 4 GiB."""
    server.machine.simulate("4GiB")
    server.machine.start_controller("--settle=0")
    return server.start()


async def cycles(server: JupyterServer, tab: Tab, count: int) -> None:
    """Have a kernel hibernate again and again, and send requests before it goes, while it does, and once it is away."""
    pid = int(await result(tab, "done, said = [], 0; import os; print(os.getpid())"))
    sent: list[str] = []

    def send() -> None:
        number = len(sent)
        sent.append(tab.run(f"done.append({number}); print('line', {number}, flush=True); {number} * 2"))

    for cycle in range(count):
        if cycle % 3 == 0:  # it turns back for these, or wakes for them
            going = asyncio.create_task(
                asyncio.to_thread(server.affinode, f"kernels/{tab.kernel_id}/hibernate", "POST", {})
            )
            await asyncio.sleep(0.02 * (cycle % 23))
            send()
            status, answer = await going
            assert status in (200, 409), answer
        else:
            await moved(server, tab.kernel_id, "hibernate")
            assert not exists(pid)
        for _ in range(cycle % 4 + 1):
            send()
        asked = tab.send("complete_request", {"code": "done.app", "cursor_pos": 8})
        await until(lambda: all(map(tab.is_done, sent)) and asked in tab.replies)  # noqa: B023
        assert tab.replies[asked]["status"] == "ok"
    # Other programs of this machine may have one of its process ids for a moment, and then it says so first.
    said = [tab.text(each).rpartition("It is tried again.\n")[-1] for each in sent]
    assert said == [f"line {n}\n{2 * n}" for n in range(len(sent))]
    assert await result(tab, "print(done == list(range(len(done))), len(done))") == f"True {len(sent)}\n"
    assert int(await result(tab, "print(os.getpid())")) == pid


def test_a_tabs_next_request_wakes_its_kernel_and_none_is_lost_or_executed_twice(server):
    async def story(tab: Tab) -> None:
        await cycles(server, tab, 4)
        hibernated = await moved(server, tab.kernel_id, "hibernate")
        shown = hibernated["hibernation"]
        assert (shown["state"], shown["refusal"], shown["bytes"] > 0) == ("hibernated", None, True)
        assert 0 < shown["estimate_s"] < 60
        assert len(images(server)) == 1
        # To its manager it lives. It is not started anew, there is nothing to interrupt, and it can be shut down.
        assert (await asyncio.to_thread(server.request, "GET", f"/api/kernels/{tab.kernel_id}"))[0] == 200
        interrupted = await asyncio.to_thread(
            server.request, "POST", f"/api/kernels/{tab.kernel_id}/interrupt"
        )
        assert interrupted[0] == 204
        assert "there is nothing to interrupt" in server.log()
        ended = await asyncio.to_thread(server.request, "DELETE", f"/api/kernels/{tab.kernel_id}")
        assert ended[0] == 204, ended
        await until(lambda: images(server) == [])

    with_tab(server, story)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_two_hundred_cycles_lose_nothing(server):
    with_tab(server, lambda tab: cycles(server, tab, 200))


@pytest.mark.long
def test_a_restart_of_a_hibernated_kernel_begins_anew_without_its_image(server):
    async def story(tab: Tab) -> None:
        pid = int(await result(tab, "kept = 1; import os; print(os.getpid())"))
        await moved(server, tab.kernel_id, "hibernate")
        status, answer = await asyncio.to_thread(
            server.request, "POST", f"/api/kernels/{tab.kernel_id}/restart"
        )
        assert status == 200, answer
        assert await result(tab, "import os; print('kept' in globals())") == "False\n"
        assert int(await result(tab, "print(os.getpid())")) != pid
        assert images(server) == []
        # What it sends its kernel afterwards reaches the new one, and that hibernates, too.
        pid = int(await result(tab, "print(os.getpid())"))
        await moved(server, tab.kernel_id, "hibernate")
        assert await result(tab, "print('again')") == "again\n"
        # Turning to its notebook wakes it, too.
        await moved(server, tab.kernel_id, "hibernate")
        assert not exists(pid)
        await moved(server, tab.kernel_id, "focus")
        await until(lambda: exists(pid))

    with_tab(server, story)


@pytest.mark.long
def test_what_a_thread_prints_is_all_there(server):
    """While the kernel goes, and before its tab hears it again."""
    threads = """
import sys, threading, time
def count():
    number = 0
    while not stop.is_set():
        number += 1
        sys.stdout.write(f"{number}\\n"); sys.stdout.flush(); time.sleep(0.003)
    print("end", number, flush=True)
stop = threading.Event()
threading.Thread(target=count, daemon=True).start()
"""

    def said(tab: Tab) -> str:
        return "".join(map(tab.text, list(tab.outputs)))

    async def story(tab: Tab) -> None:
        await result(tab, threads)
        for _ in range(3):
            await moved(server, tab.kernel_id, "hibernate")
            await moved(server, tab.kernel_id, "wake")
            await result(tab, "pass")
        await result(tab, "stop.set()")
        await until(lambda: re.search(r"^end (\d+)", said(tab), re.M))
        numbers = [int(each) for each in re.findall(r"^(\d+)$", said(tab), re.M)]
        count = int(re.search(r"^end (\d+)", said(tab), re.M)[1])
        missing = sorted({*range(1, count + 1)} - {*numbers})
        assert not missing, (len(missing), missing[:20])
        assert len(numbers) == count, "none comes twice"

    with_tab(server, story)


@pytest.mark.long
def test_files_plots_children_and_widgets_survive(server):
    begin = """
import subprocess, threading, os
file = open("notes.txt", "w+"); _ = file.write("first "); file.flush()
ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
child = subprocess.Popen(["sh", "-c", "read line; echo got $line"], **ends)
lock = threading.Condition(); heard = []
def wait():
    with lock:
        lock.wait(); heard.append(threading.get_native_id())
thread = threading.Thread(target=wait, daemon=True); thread.start()
native = thread.native_id
from comm import create_comm
comm = create_comm(target_name="answers", data={})
comm.on_msg(lambda message: comm.send({"answer": message["content"]["data"]["ask"] + 1}))
print(comm.comm_id)
"""
    plot = """
from IPython.display import display, Image
import struct, zlib
def png(level):
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    parts = [part(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))]
    parts += [part(b"IDAT", zlib.compress(bytes([0, level]))), part(b"IEND", b"")]
    return b"\\x89PNG\\r\\n\\x1a\\n" + b"".join(parts)
handle = display(Image(png(3)), display_id="plot")
"""

    async def story(tab: Tab) -> None:
        comm_id = (await result(tab, begin)).strip()
        await result(tab, plot)
        script = tab.run("%%bash --bg\nfor i in 1 2 3 4 5 6; do sleep 0.5; echo $i >> counted.txt; done")
        await until(lambda: tab.is_done(script))
        await moved(server, tab.kernel_id, "hibernate")
        asked = tab.send("comm_msg", {"comm_id": comm_id, "data": {"ask": 41}})
        answers = await until(
            lambda: [
                each["content"]["data"]
                for each in tab.outputs.get(asked, [])
                if each["header"]["msg_type"] == "comm_msg"
            ]
        )
        assert answers == [{"answer": 42}]
        updated = tab.run("handle.update(Image(png(200)))")
        await until(lambda: tab.is_done(updated))
        (shown,) = [
            each for each in tab.outputs[updated] if each["header"]["msg_type"] == "update_display_data"
        ]
        assert shown["content"]["transient"]["display_id"] == "plot"
        assert await result(tab, "file.write('second'); file.seek(0); print(file.read())") == "first second\n"
        assert await result(tab, "print(child.communicate('word\\n')[0], end='')") == "got word\n"
        assert (
            await result(tab, "with lock: lock.notify()\nthread.join(5); print(heard == [native])")
            == "True\n"
        )
        await until(lambda: (server.machine.work / "counted.txt").read_text().split() == list("123456"))

    with_tab(server, story)


@pytest.mark.long
def test_a_slider_of_ipywidgets_is_moved_while_its_kernel_is_away(server):
    """Which wakes it: the kernel's own functions hear of it, and answer the tab."""
    pytest.importorskip("ipywidgets")
    begin = """
import ipywidgets
slider, label = ipywidgets.IntSlider(value=3), ipywidgets.Label()
def moved(change):
    label.value = f"from {change.old} to {change.new}"
slider.observe(moved, "value")
print(slider.model_id, label.model_id)
"""

    async def story(tab: Tab) -> None:
        slider, label = (await result(tab, begin)).split()
        for value, words in ((8, "from 3 to 8"), (5, "from 8 to 5")):
            await moved(server, tab.kernel_id, "hibernate")
            data = {"method": "update", "state": {"value": value}, "buffer_paths": []}
            asked = tab.send("comm_msg", {"comm_id": slider, "data": data})

            def heard(asked: str = asked) -> list[Any]:
                updates = [
                    each["content"]
                    for each in tab.outputs.get(asked, [])
                    if each["header"]["msg_type"] == "comm_msg" and each["content"]["comm_id"] == label
                ]
                return [each["data"]["state"]["value"] for each in updates]

            assert await until(heard) == [words]
        assert await result(tab, "print(slider.value, label.value)") == "5 from 8 to 5\n"

    with_tab(server, story)


def add_kernel(server: JupyterServer, name: str, command: list[str], language: str) -> None:
    """Have the server know one more kernel."""
    folder = Path(server.machine.environment["JUPYTER_DATA_DIR"], "kernels", name)
    folder.mkdir(parents=True)
    told = {"argv": command, "display_name": name, "language": language}
    (folder / "kernel.json").write_text(json.dumps(told))


@pytest.mark.long
def test_a_kernel_of_another_language_hibernates_with_the_shell_that_it_drives(server):
    """It is no kernel of IPython's: its shell runs at a terminal that is its own."""
    command = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    add_kernel(server, "bash", command, "bash")

    async def story(tab: Tab) -> None:
        shell = (await result(tab, "kept=word; cd /; echo $$")).strip()
        for _ in range(3):
            await moved(server, tab.kernel_id, "hibernate")
            assert not exists(int(shell))
            assert (await result(tab, "echo $kept $$ $PWD")).split() == ["word", shell, "/"]

    with_tab(server, story, "bash")


@pytest.mark.long
def test_an_r_kernel_hibernates(server):
    if subprocess.run(["sh", "-c", "Rscript -e 'library(IRkernel)'"], capture_output=True).returncode:
        pytest.skip("R with IRkernel is not here (Debian: r-base-core, r-cran-irkernel)")
    command = ["R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"]
    add_kernel(server, "ir", command, "R")

    async def story(tab: Tab) -> None:
        pid = (
            await result(tab, "set.seed(7); first <- runif(1); kept <- environment(); cat(Sys.getpid())")
        ).strip()
        for count in range(3):
            await moved(server, tab.kernel_id, "hibernate")
            assert not exists(int(pid))
            assert (await result(tab, "first <- first + 1; cat(floor(first), Sys.getpid())")).split() == [
                str(count + 1),
                pid,
            ]
        drawn = await result(
            tab, "second <- runif(1); set.seed(7); cat(all.equal(c(first - 3, second), runif(2)))"
        )
        assert drawn.strip() == "TRUE", "its random numbers go on, too"

    with_tab(server, story, "ir")


def test_a_kernel_that_is_needed_stays_and_says_why(server):
    async def story(tab: Tab) -> None:
        running = tab.run(f"print('begun', flush=True)\n{ENDLESS}")
        await until(lambda: "begun" in tab.text(running))
        refused = await moved(server, tab.kernel_id, "hibernate", 409)
        assert refused["message"] == "a cell runs"
        await asyncio.to_thread(server.request, "POST", f"/api/kernels/{tab.kernel_id}/interrupt")
        await until(lambda: tab.is_done(running))
        asking = tab.run("print(input('name '))", allow_stdin=True)
        question = await until(lambda: tab.questions)
        refused = await moved(server, tab.kernel_id, "hibernate", 409)
        assert refused["message"] == "a cell runs"
        tab.send("input_reply", {"value": "given"}, channel="stdin", parent=question[0]["header"])
        await until(lambda: tab.is_done(asking))
        assert tab.text(asking) == "given\n"
        await result(tab, "import socket; socket.socketpair()[0].detach()")
        assert images(server) == []

    with_tab(server, story)


@pytest.mark.long
def test_a_debugger_that_is_attached_keeps_a_kernel_from_hibernating(server):
    """The connection between its processes would be lost; breakpoints work on."""

    async def story(tab: Tab) -> None:
        async def ask(command: str, **arguments: Any) -> dict[str, Any]:
            message = {"type": "request", "seq": len(tab.control), "command": command, "arguments": arguments}
            message_id = tab.send("debug_request", message, channel="control")
            return await until(lambda: tab.control.get(message_id))

        await ask("initialize", clientID="test", adapterID="", pathFormat="path")
        await ask("attach")
        code = "before = 1\nafter = before + 1\n"
        path = (await ask("dumpCell", code=code))["body"]["sourcePath"]
        await ask("setBreakpoints", source={"path": path}, breakpoints=[{"line": 2}], sourceModified=False)
        await ask("configurationDone")
        refused = await moved(server, tab.kernel_id, "hibernate", 409)
        assert "a debugger is attached" in refused["message"]
        cell = tab.run(code)
        stopped = await until(
            lambda: [
                each["content"]
                for messages in tab.outputs.values()
                for each in messages
                if each["header"]["msg_type"] == "debug_event" and each["content"].get("event") == "stopped"
            ]
        )
        await ask("continue", threadId=stopped[0]["body"]["threadId"])
        await until(lambda: tab.is_done(cell))
        assert await result(tab, "print(after)") == "2\n"

    with_tab(server, story)


def test_a_cell_asks_for_it_and_a_command_line_does(server):
    async def story(tab: Tab) -> None:
        pid = int(await result(tab, "import os; print(os.getpid())"))
        assert await result(tab, "%gpu_hibernate") == "This kernel hibernates once no cell runs.\n"
        await until(lambda: not exists(pid))
        woken = await asyncio.to_thread(server.machine.affinode, "wake", "work.ipynb", "--json")
        assert woken.returncode == 0, woken.stderr
        assert exists(pid)
        assert await result(tab, "print(os.getpid())") == f"{pid}\n"
        asleep = await asyncio.to_thread(server.machine.affinode, "hibernate", "work.ipynb", "--json")
        assert json.loads(asleep.stdout)[0]["place"] == "image", asleep.stderr
        assert not exists(pid)
        # A tab that attaches wakes it.
        await tab.attach(server)
        assert exists(pid)
        assert await result(tab, "print(os.getpid())") == f"{pid}\n"

    with_tab(server, story)


@pytest.mark.long
def test_an_image_outlives_a_server_that_is_killed_and_ends_with_one_that_stops(server):
    kernel = server.start_kernel(path="work.ipynb")
    kernel.run("kept = 7")
    kernel.close()
    move(server, kernel.id, "hibernate")
    server.kill()
    server.start(port=server.port)
    assert [model["id"] for model in server.request("GET", "/api/kernels")[1]] == [kernel.id]
    assert len(images(server)) == 1

    async def used() -> None:
        tab = await Tab(kernel.id).attach(server)
        assert await result(tab, "print(kept)") == "7\n"
        await tab.close()

    asyncio.run(used())
    move(server, kernel.id, "hibernate")
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=60)
    assert images(server) == []


@pytest.mark.long
def test_a_keeper_that_is_killed_loses_no_hibernated_kernel(server):
    """While it is hibernated; and at the moment at which its processes have ended."""

    async def story(tab: Tab) -> None:
        pid = int(await result(tab, "kept = 7; import os; print(os.getpid())"))
        await moved(server, tab.kernel_id, "hibernate")
        (keeper,) = keepers(server.machine)
        os.kill(keeper, signal.SIGKILL)
        await until(lambda: [each for each in keepers(server.machine) if each != keeper])
        assert await result(tab, "print(kept)") == "7\n"
        going = asyncio.create_task(
            asyncio.to_thread(server.affinode, f"kernels/{tab.kernel_id}/hibernate", "POST", {})
        )
        keeper = the_keeper(server.machine)
        while exists(pid):
            await asyncio.sleep(0)
        os.kill(keeper, signal.SIGKILL)
        status, answer = await going
        assert status == 200, answer
        assert await result(tab, "print(kept)") == "7\n"
        assert int(await result(tab, "print(os.getpid())")) == pid

    with_tab(server, story)


@pytest.mark.long
def test_a_hibernated_kernel_is_handed_over_to_the_next_server(unstarted):
    server = unstarted.start(KEEP)
    kernel = server.start_kernel(path="work.ipynb")
    kernel.run("kept = 7")
    kernel.close()
    move(server, kernel.id, "hibernate")
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=60)
    server.start(KEEP, port=server.port)
    assert len(images(server)) == 1

    async def used() -> None:
        tab = await Tab(kernel.id).attach(server)
        assert await result(tab, "print(kept)") == "7\n"
        await tab.close()

    asyncio.run(used())


@pytest.mark.long
def test_one_that_cannot_be_woken_says_so_in_the_cell_that_waits(server):
    """The cell runs once it can be."""

    async def story(tab: Tab) -> None:
        await result(tab, "kept = 7")
        await moved(server, tab.kernel_id, "hibernate")
        (image,) = (server.machine.folder / "images").glob("[!.]*")
        (image / "process" / "more").touch()
        waiting = tab.run("print(kept)")
        await until(lambda: "could not be woken" in tab.text(waiting))
        shown = (await asyncio.to_thread(server.affinode))[1]
        (kernel,) = [each for each in shown["kernels"] if each["id"] == tab.kernel_id]
        assert kernel["hibernation"]["state"] == "hibernated"
        assert "a file in it that was not written" in kernel["hibernation"]["refusal"]
        (image / "process" / "more").unlink()
        await until(lambda: tab.is_done(waiting))
        assert tab.text(waiting).endswith("7\n")

    with_tab(server, story)


@pytest.mark.long
def test_what_is_wrong_with_an_image_is_said_before_it_is_needed(unstarted):
    """In the panel, and in the list of kept kernels."""
    server = unstarted.start(KEEP)
    library = server.machine.work / "library.bin"
    library.write_bytes(b"\1" * 8192)
    begin = f"""
import mmap
with open({str(library)!r}, "r+b") as file:
    library = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
"""

    def shown(kernel_id: str) -> dict[str, Any]:
        (kernel,) = [each for each in server.affinode()[1]["kernels"] if each["id"] == kernel_id]
        return kernel["hibernation"] or {}

    async def story(tab: Tab) -> None:
        await result(tab, begin)
        await moved(server, tab.kernel_id, "hibernate")
        await tab.close()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=60)
        library.write_bytes(b"\2" * 8192)
        words = f"the file {library} is changed since"
        await until(lambda: f"cannot be woken now: {words}" in server.machine.affinode("kept").stdout)
        server.start(KEEP, port=server.port)
        await until(lambda: words in (shown(tab.kernel_id).get("objection") or ""))
        assert shown(tab.kernel_id)["deleted_at"] is None
        library.write_bytes(b"\1" * 8192)
        await tab.attach(server)
        assert await result(tab, "print(library[0])") == "1\n"

    with_tab(server, story)


@pytest.mark.long
def test_what_is_on_the_gpu_comes_back_with_the_next_cell(unstarted):
    server = with_gpu(unstarted)

    async def story(tab: Tab) -> None:
        before = await result(tab, f"{SETUP}\nblock = Block(24, seed=7)\nprint(block.checksum())")
        for _ in range(2):
            await moved(server, tab.kernel_id, "hibernate")
            known = server.machine.kernel(tab.kernel_id)
            assert known["residency"] == "hibernated"
            await until(lambda: server.machine.kernel(tab.kernel_id)["image_bytes"])
            assert await result(tab, "print(block.checksum())") == before
            await until(lambda: server.machine.kernel(tab.kernel_id)["residency"] == "resident")

    with_tab(server, story)


@pytest.mark.long
@pytest.mark.parametrize("when", ["heard", "at once"])
def test_a_woken_kernel_that_is_lost_before_its_gpu_memory_is_back_is_woken_again(unstarted, when):
    """It is not started anew, which would delete its image. Its tab is told, since what it did since then is gone."""
    server = with_gpu(unstarted)

    async def story(tab: Tab) -> None:
        before = await result(tab, f"{SETUP}\nblock = Block(24, seed=7)\nprint(block.checksum())")
        pid = int(await result(tab, "import os; kept = 1; print(os.getpid())"))
        await moved(server, tab.kernel_id, "hibernate")
        if when == "heard":
            assert await result(tab, "kept = 2; print(kept)") == "2\n"
        else:
            await moved(server, tab.kernel_id, "focus")
            await until(lambda: exists(pid))
        os.kill(pid, signal.SIGKILL)
        await until(
            lambda: re.search(": its process (ended|was ended) ", server.log()), 60, message=server.log
        )
        assert len(images(server)) == 1
        # IPython may say first that it finds lines in its history which it has yet to write.
        assert (await result(tab, "print(kept, block.checksum())")).endswith(f"1 {before}")
        assert int(await result(tab, "print(os.getpid())")) == pid
        woken = server.machine.folder / "images" / tab.kernel_id / "woken.json"
        await until(lambda: not woken.exists(), 60)

    with_tab(server, story)


@pytest.mark.long
def test_a_keeper_that_is_killed_after_a_wake_does_not_leave_the_old_image_to_count(unstarted):
    """Its server lives on. What the kernel did since would be undone when its process ends some day."""
    server = with_gpu(unstarted)

    async def story(tab: Tab) -> None:
        before = await result(tab, f"{SETUP}\nblock = Block(24, seed=7)\nprint(block.checksum())")
        await moved(server, tab.kernel_id, "hibernate")
        assert await result(tab, "kept = 2; print(kept)") == "2\n"
        woken = server.machine.folder / "images" / tab.kernel_id / "woken.json"
        assert woken.exists()
        for keeper in keepers(server.machine):
            os.kill(keeper, signal.SIGKILL)
        assert await result(tab, "print(block.checksum(), kept)") == f"{before.strip()} 2\n"
        await until(lambda: not woken.exists(), 60)

    with_tab(server, story)


@pytest.mark.long
def test_kernels_hibernate_on_a_controller_of_all_users_too(unstarted):
    """Which refuses context depth: the context leaves the GPU for the image alone, and RESUME brings it back."""
    unstarted.machine.simulate("4GiB")
    unstarted.machine.start_controller("--system", "--settle=0.1", patient=True)
    assert unstarted.machine.node()["controller"]["system"]
    server = unstarted.start()

    async def story(tab: Tab) -> None:
        before = await result(tab, f"{SETUP}\nblock = Block(24, seed=7)\nprint(block.checksum())")
        await moved(server, tab.kernel_id, "hibernate")
        known = server.machine.kernel(tab.kernel_id)
        await until(lambda: server.machine.kernel(tab.kernel_id)["image_bytes"])
        assert (known["residency"], known["parked_bytes"]) == ("hibernated", 24 << 20)
        assert await result(tab, "print(block.checksum())") == before
        await until(lambda: server.machine.kernel(tab.kernel_id)["residency"] == "resident")

    with_tab(server, story)


@pytest.mark.long
def test_a_kernel_hibernates_where_the_controller_asks_for_it(unstarted):
    server = unstarted
    server.machine.simulate("4GiB")
    controller = server.machine.start_controller("--settle=0", "--hibernate-at-end=60")
    server.start()

    async def story(tab: Tab) -> None:
        before = await result(tab, f"{SETUP}\nblock = Block(24, seed=7)\nprint(block.checksum())")
        controller.send_signal(signal.SIGTERM)
        await until(lambda: images(server))
        await asyncio.to_thread(controller.wait, 60)
        shown = (await asyncio.to_thread(move, server, tab.kernel_id, "hibernate"))["hibernation"]
        assert shown["state"] == "hibernated", "it is there already"
        server.machine.start_controller("--settle=0")
        assert await result(tab, "print(block.checksum())") == before

    with_tab(server, story)


@pytest.mark.long
def test_a_parked_kernel_hibernates_by_itself(unstarted):
    unstarted.machine.simulate("4GiB")
    policy = {"park_when": "idle", "idle_timeout_s": 1, "hibernate_after_s": 2}
    server = unstarted.start(*(f"--AffinodeExtension.{name}={value}" for name, value in policy.items()))

    async def story(tab: Tab) -> None:
        before = await result(tab, f"{SETUP}\nblock = Block(24, seed=7)\nprint(block.checksum())")
        await until(lambda: server.machine.kernel(tab.kernel_id)["image_bytes"])
        assert await result(tab, "print(block.checksum())") == before

    with_tab(server, story)


@pytest.mark.long
def test_a_way_that_is_stopped_leaves_the_kernel_as_it_was(server):
    async def story(tab: Tab) -> None:
        await result(tab, "big = bytearray(os.urandom(1 << 20) * 300) if (os := __import__('os')) else None")
        going = asyncio.create_task(
            asyncio.to_thread(server.affinode, f"kernels/{tab.kernel_id}/hibernate", "POST", {})
        )
        await until(lambda: images(server))
        await moved(server, tab.kernel_id, "stay")
        status, answer = await going
        assert (status, answer["message"]) == (409, "it was stopped, and stays where it is")
        assert images(server) == []
        assert await result(tab, "print(len(big))") == f"{300 << 20}\n"

    with_tab(server, story)

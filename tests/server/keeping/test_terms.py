"""What a server says of a kernel on disk counts at once, and later keepers have it: real servers, real CRIU."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hibernating import images, move, prepare, result
from keepers import end_keepers, keepers, the_keeper
from live_server import JupyterServer
from tab import Tab, run_in_tab
from tornado.websocket import WebSocketClosedError
from waiting import until, wait_until

KEEP = "--AffinodeExtension.keep_kernels=all"


def hibernated(server: JupyterServer, path: str, code: str) -> str:
    """A kernel's id, of one that ran a cell and lives on disk."""
    kernel = server.start_kernel(path=path)
    done = kernel.run(code)
    assert done.error is None, done.traceback
    kernel.close()
    move(server, kernel.id, "hibernate")
    return kernel.id


def terms(server: JupyterServer, kernel_id: str) -> dict[str, Any]:
    """What lies beside a kernel's image."""
    path = server.machine.folder / "images" / kernel_id / "terms.json"
    return json.loads(path.read_text())["record"] if path.exists() else {}


def shown_of(server: JupyterServer, kernel_id: str) -> dict[str, Any]:
    """What a person is shown of a kernel's hibernation; the controller may know no such kernel."""
    kept = json.loads(server.machine.affinode("kept", "--json").stdout or "[]")
    found = {each["id"]: each["hibernation"] for each in server.affinode()[1]["kernels"]}
    return found.get(kernel_id) or next(each for each in kept if each["id"] == kernel_id)


def sessions(server: JupyterServer) -> dict[str, str]:
    """The kernels of the server's notebooks, by their paths."""
    return {each["path"]: each["kernel"]["id"] for each in server.request("GET", "/api/sessions")[1]}


@pytest.mark.long
def test_how_long_an_image_stays_and_its_notebooks_new_name_are_those_of_now(unstarted):
    """An image that was made for a month stays for ever where its server says so later, and the reverse."""
    server = unstarted.start(KEEP)
    kernel_id = hibernated(server, "old name.ipynb", "kept = 7")
    assert terms(server, kernel_id)["image_keep_s"] == 30 * 86400.0
    (session,) = server.request("GET", "/api/sessions")[1]
    status, answer = server.request("PATCH", f"/api/sessions/{session['id']}", {"path": "new name.ipynb"})
    assert status == 200, answer
    wait_until(lambda: terms(server, kernel_id)["sessions"][0]["path"] == "new name.ipynb")
    server.kill()
    server.start(KEEP, "--AffinodeExtension.images_for_s=0", port=server.port)
    assert sessions(server) == {"new name.ipynb": kernel_id}
    wait_until(lambda: terms(server, kernel_id)["image_keep_s"] == 0.0)
    manifest = (server.machine.folder / "images" / kernel_id / "manifest.json").read_text()
    assert "old name" not in manifest and "image_keep_s" not in manifest
    for pid in end_keepers(server.machine):
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
    assert run_in_tab(server, kernel_id, "print(kept)") == "7\n"


@pytest.mark.long
def test_an_image_that_an_earlier_jobs_keeper_still_has_is_listed_and_wakes_once_that_has_gone(unstarted):
    """The next job's server begins while the last job's processes end."""
    server = unstarted.start(KEEP)
    kernel_id = hibernated(server, "work.ipynb", "kept = 7")
    before = the_keeper(server.machine)
    server.kill()
    folder = server.machine.environment["AFFINODE_FOLDER"]
    os.kill(before, signal.SIGSTOP)  # it holds the lock on the image
    server.machine.environment["AFFINODE_FOLDER"] = f"{folder}-of-the-next-job"
    try:
        server.start(KEEP, port=server.port)
        assert sessions(server) == {"work.ipynb": kernel_id}
        shown = shown_of(server, kernel_id)
        assert shown["state"] == "hibernated" and "another keeper of yours" in shown["objection"]

        async def story() -> None:
            tab = Tab(kernel_id)
            attaching = asyncio.create_task(tab.attach(server))
            server.machine.environment["AFFINODE_FOLDER"] = folder
            end_keepers(server.machine)
            server.machine.environment["AFFINODE_FOLDER"] = f"{folder}-of-the-next-job"
            try:
                await attaching
            except Exception:  # refused while the other has it; the page tries again
                await until(lambda: not shown_of(server, kernel_id)["objection"], 90)
                await tab.attach(server)
            assert await result(tab, "print(kept)") == "7\n"
            await tab.close()

        asyncio.run(story())
    finally:
        end_keepers(server.machine)
        server.machine.environment["AFFINODE_FOLDER"] = folder
        end_keepers(server.machine)


@pytest.mark.long
def test_kernels_beyond_the_quota_are_named_by_the_server_that_ends(unstarted):
    server = unstarted.start(KEEP, "--AffinodeExtension.keep_kernels_per_user=1")
    for name in ("one.ipynb", "two.ipynb", "three.ipynb"):
        kernel = server.start_kernel(path=name)
        kernel.run("1")
        kernel.close()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=60)
    log = server.log()
    assert "1 kernels outlive this server" in log
    assert log.count("is not kept: its user may have 1 kept kernels") == 2


def has_ended(tab: Tab, cell: str) -> bool:
    """Whether the tab has the kernel's word that a cell's execution ended."""
    return any(message["content"].get("execution_state") == "idle" for message in tab.outputs.get(cell, []))


@pytest.mark.long
@pytest.mark.parametrize("keeps", ["all", "hibernated"])
def test_no_cell_that_is_sent_while_the_server_ends_is_dropped(unstarted, keeps):
    """A tab sends cells until its connection ends; what it has sent has run once when it is attached again."""
    arguments = f"--AffinodeExtension.keep_kernels={keeps}"
    server = unstarted.start(arguments)
    kernel = server.start_kernel(path="work.ipynb")
    kernel.run("done = []")
    kernel.close()

    async def story() -> None:
        tab = await Tab(kernel.id).attach(server)
        server.process.send_signal(signal.SIGTERM)
        sent = []
        with contextlib.suppress(WebSocketClosedError):
            while not tab._reading.done():  # it ends with the connection
                sent.append(tab.run(f"done.append({len(sent)})"))
                await asyncio.sleep(0.005)
        await asyncio.to_thread(server.process.wait, 120)
        server.start(arguments, port=server.port)
        await tab.attach(server)
        answered = [each for each in sent if each in tab.replies]
        assert (await result(tab, "print(done == list(range(len(done))), len(done))")).startswith("True")
        done = int((await result(tab, "print(len(done))")).split()[-1])
        await until(lambda: all(has_ended(tab, each) for each in sent[:done]))
        # The client's own end learns of the end a moment after the last that it could send.
        assert len(sent) - done <= 1, (len(sent), done, len(answered), server.log()[-3000:])
        await tab.close()

    asyncio.run(story())


@pytest.fixture
def plain(keeping_machine, criu):
    """A server with "hibernated" and no folder for images."""
    made = prepare(JupyterServer(keeping_machine), criu)
    made.machine.environment["AFFINODE_HIBERNATE_DIR"] = ""
    yield made
    made.stop()


def test_that_nothing_can_hibernate_is_said_when_the_server_starts(plain):
    plain.start("--AffinodeExtension.keep_kernels=hibernated")
    wait_until(lambda: "no folder for images is named" in plain.log())


@pytest.mark.long
def test_a_hibernation_right_after_a_wake_and_a_killed_keeper_between_lose_nothing(unstarted):
    """And no name of a Python error is told to anybody."""
    server = unstarted.start(KEEP)
    kernel_id = hibernated(server, "work.ipynb", "kept = 7; turns = 0")

    async def story() -> None:
        tab = await Tab(kernel_id).attach(server)
        for turn in range(6):
            assert (await result(tab, "turns += 1; print(kept, turns)")).endswith(f"7 {turn + 1}\n")
            going = asyncio.create_task(
                asyncio.to_thread(server.affinode, f"kernels/{kernel_id}/hibernate", "POST", {})
            )
            if turn % 2:
                await until(lambda: images(server))
                os.kill(the_keeper(server.machine), signal.SIGKILL)
            status, answer = await going
            assert status in (200, 409), answer
            assert "Error" not in str(answer.get("message", "")), answer
        assert (await result(tab, "print(kept, turns)")).endswith("7 6\n")
        await tab.close()

    asyncio.run(story())
    log = Path(server.machine.environment["AFFINODE_FOLDER"], "keeper.log").read_text() + server.log()
    assert not [line for line in log.splitlines() if "KeyError" in line or "LookupError" in line]
    assert keepers(server.machine)

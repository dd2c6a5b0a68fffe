"""Kernels of a real server on the simulated GPU: parked, waiting, interrupted, ended."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from gpu_cells import SETUP
from live_server import JupyterKernel, JupyterServer


@pytest.fixture
def becomes(wait_until) -> Callable[..., dict]:
    """`becomes(kernel, "parked")`: wait for a residency; the kernel's state then."""

    def wait(kernel: JupyterKernel, residency: str, timeout: float = 60) -> dict:
        def state() -> dict | None:
            status, answer = kernel.server.affinode(f"kernels/{kernel.id}")
            return answer if status == 200 and answer["residency"] == residency else None

        return wait_until(state, timeout, f"{residency} instead of {kernel.server.affinode()}")

    return wait


def gpu_kernel(server: JupyterServer, mib: int = 32, **options: str) -> JupyterKernel:
    """A kernel that holds a block of GPU memory with a pattern, named `block`."""
    kernel = server.start_kernel(**options)
    done = kernel.run(f"{SETUP}\nblock = Block({mib}, seed=7)\nbefore = block.checksum()")
    assert done.status == "ok", done
    return kernel


@pytest.mark.long
def test_a_parked_kernel_is_seen_in_status_and_magic(eager_gpu_server, becomes, wait_until):
    kernel = gpu_kernel(eager_gpu_server, path="plan.ipynb")
    parked = becomes(kernel, "parked")
    assert parked["parked_bytes"] == 32 * 2**20 and parked["simulated"] and "RAM" in parked["text"]
    wait_until(lambda: eager_gpu_server.affinode()[1]["node"]["gpus"][0]["managed_bytes"] == 0)
    assert "GPU freed" in kernel.run("%gpu_status").text
    assert kernel.state()["residency"] == "parked", "asking for the state does not resume"
    ran = kernel.run("print(block.checksum() == before)")
    assert ran.text == "True\n"
    wait_until(lambda: kernel.state()["resumes"] == 1)  # it is counted once calls go on


def test_a_kernels_ram_and_share_of_the_gpu_are_told_and_a_healthy_process_cannot_be_ended(
    gpu_server, wait_until
):
    kernel = gpu_kernel(gpu_server)
    wait_until(lambda: kernel.state()["host_bytes"])
    assert 20 * 2**20 < kernel.state()["host_bytes"] < 2**32
    wait_until(lambda: kernel.state()["busy_percent"] is not None)
    (process,) = wait_until(lambda: gpu_server.affinode(f"kernels/{kernel.id}")[1].get("processes"))
    assert process["stuck"] is None
    status, answer = gpu_server.affinode(f"kernels/{kernel.id}/end", "POST", {"process": process["number"]})
    assert (status, answer["error"]) == (409, "not-stuck")
    assert gpu_server.affinode(f"kernels/{kernel.id}/end", "POST", {})[0] == 400
    assert gpu_server.affinode("kernels/none/end", "POST", {"process": 1})[0] == 404
    assert kernel.run("print(block.checksum() == before)").text == "True\n"


def test_the_last_minutes_say_when_a_notebook_was_freed_and_why_and_the_command_line_finds_it(
    gpu_server, becomes, wait_until
):
    kernel = gpu_kernel(gpu_server, path="past.ipynb")

    def lane():
        status, past = gpu_server.affinode("past?seconds=600")
        assert status == 200, past
        lanes = [each for gpu in past["gpus"] for each in gpu["lanes"] if each["kernel_id"] == kernel.id]
        return lanes[0] if lanes else None

    # The controller looks at pages now and then: it may see a kernel that is parked at once as parked alone.
    wait_until(lambda: lane() and lane()["changes"][-1]["state"] == "resident")
    assert kernel.run("%gpu_park").status == "ok"
    becomes(kernel, "parked")
    seen = lane()
    assert seen["path"] == "past.ipynb" and seen["own"]
    states = [(change["state"], change["cause"]) for change in seen["changes"]]
    assert states[-1] == ("parked", "asked") and states[-2][0] == "resident"
    assert gpu_server.affinode("past?seconds=59")[0] == 400

    machine = gpu_server.machine
    # A session is looked for once the kernel runs, so its path comes a moment after the kernel.
    wait_until(lambda: (machine.kernel(kernel.id) or {}).get("path") == "past.ipynb")
    assert machine.affinode("resume", kernel.id[:6]).returncode == 0
    becomes(kernel, "resident")
    parked = machine.affinode("park", "past.ipynb")
    assert parked.returncode == 0 and "RAM" in parked.stdout, parked
    becomes(kernel, "parked")
    assert "past.ipynb" in machine.affinode("status").stdout


@pytest.mark.long
def test_the_cell_magic_runs_its_body_with_the_gpu_given_back(gpu_server, becomes):
    kernel = gpu_kernel(gpu_server)
    body = kernel.run("%%gpu_park\nafterwards = sum(range(100))\nafterwards")
    assert body.status == "ok" and "32 MiB" in body.text and body.text.endswith("4950")
    assert becomes(kernel, "parked")["parked_bytes"] == 32 * 2**20
    assert kernel.run("%%gpu_park\nprint(block.checksum() == before)").text.endswith("True\n")


@pytest.mark.parametrize("asks", ["the cell", pytest.param("the command line", marks=pytest.mark.long)])
def test_a_cell_that_began_before_a_park_is_no_reason_to_bring_it_back(gpu_server, becomes, wait_until, asks):
    """Its server sees the cell begin only after the park."""
    kernel = gpu_kernel(gpu_server)
    machine, end = gpu_server.machine, gpu_server.machine.folder / f"{kernel.id}-may-end"
    wait_until(lambda: not machine.kernel(kernel.id)["cell_open"])
    gpu_server.process.send_signal(signal.SIGSTOP)
    try:
        magic = "%gpu_park\n" if asks == "the cell" else ""
        cell = kernel.begin(f"{magic}import os\nwhile not os.path.exists({str(end)!r}): time.sleep(0.02)")
        if asks == "the command line":
            wait_until(lambda: machine.ask("POST", f"/kernels/{kernel.id}/park", {})[0] == 200)
        wait_until(lambda: machine.kernel(kernel.id)["residency"] == "parked")
    finally:
        gpu_server.process.send_signal(signal.SIGCONT)
    wait_until(lambda: machine.kernel(kernel.id)["cell_open"])
    end.touch()
    kernel.wait(cell)
    wait_until(lambda: not machine.kernel(kernel.id)["cell_open"])
    assert becomes(kernel, "parked")["resumes"] == 0


@pytest.mark.long
def test_an_interrupt_by_message_ends_the_wait_too(gpu_server, kernelspec, becomes):
    kernelspec("by-message", gpu_server.machine, interrupt_mode="message")
    waits = gpu_kernel(gpu_server, 75, name="by-message")
    assert gpu_server.affinode(f"kernels/{waits.id}/park", "POST", {})[0] == 200
    keeps = gpu_kernel(gpu_server, 75)
    gpu_server.affinode(f"kernels/{keeps.id}/hold", "POST", {"duration_s": 600})
    message_id = waits.submit("block.checksum()")
    becomes(waits, "queued")
    waits.interrupt()
    assert waits.wait(message_id).status == "error"
    assert waits.run("print(1)").text == "1\n"


@pytest.mark.long
def test_a_restart_gives_a_fresh_kernel_and_the_memory_back(gpu_server, wait_until):
    kernel = gpu_kernel(gpu_server)
    assert gpu_server.affinode(f"kernels/{kernel.id}/park", "POST", {})[0] == 200
    kernel.restart()
    assert kernel.run("block").error == "NameError"
    wait_until(lambda: gpu_server.affinode()[1]["node"]["host"]["parked_bytes"] == 0)
    assert kernel.state()["residency"] == "none"


@pytest.mark.long
def test_a_kernel_that_waits_is_not_culled_and_one_that_is_parked_is(
    gpu_machine, server, becomes, wait_until
):
    gpu_machine.simulate(memory="128MiB")
    gpu_machine.environment["AFFINODE_SIM_CONTEXT"] = "4MiB"
    server.start(
        f"--AffinodeExtension.margin_bytes={16 << 20}",
        "--MappingKernelManager.cull_idle_timeout=10",
        "--MappingKernelManager.cull_interval=1",
        "--MappingKernelManager.cull_busy=True",
        "--MappingKernelManager.cull_connected=True",
    )
    keeps = server.start_kernel()
    using = "while True:\n    small.fill(1); print('.'); time.sleep(0.3)"
    keeps.submit(f"{SETUP}\nblock, small = Block(75), Block(1)\n{using}")
    becomes(keeps, "resident")
    parked = gpu_kernel(server, 25)
    assert server.affinode(f"kernels/{parked.id}/park", "POST", {})[0] == 200
    waits = server.start_kernel()
    waits.submit(f"{SETUP}\nblock = Block(75)")
    becomes(waits, "queued")
    wait_until(lambda: not parked.alive())
    wait_until(lambda: waits.state()["waiting_s"] > 14)
    assert waits.alive() and waits.state()["residency"] == "queued"


def test_events_tell_the_story(eager_gpu_server, becomes):
    """Read as the browser does, from the server's event stream."""
    import json

    from tornado.ioloop import IOLoop
    from tornado.websocket import websocket_connect

    kernel = eager_gpu_server.start_kernel(path="secret plan.ipynb")
    seen: list[dict] = []

    async def story() -> None:
        url = (
            eager_gpu_server.url.replace("http", "ws")
            + f"/api/events/subscribe?token={eager_gpu_server.token}"
        )
        socket = await websocket_connect(url)
        kernel.submit(f"{SETUP}\nblock = Block(16)\nbefore = block.checksum()")
        while not any(event.get("residency") == "parked" for event in seen):
            seen.append(json.loads(await socket.read_message()))
        socket.close()
        while await socket.read_message() is not None:  # until it is closed
            pass

    loop = IOLoop(make_current=False)
    loop.run_sync(story, timeout=60)
    loop.close(all_fds=True)
    ours = [event for event in seen if "residency" in event]
    assert [event["residency"] for event in ours][:1] == ["resident"] and ours[-1][
        "parked_bytes"
    ] == 16 * 2**20
    assert all(event["kernel_id"] == kernel.id and event["simulated"] for event in ours)
    assert "secret" not in json.dumps(ours)


def test_a_silent_cell_on_the_gpu_is_activity_and_a_parked_kernel_ages(gpu_server, becomes, wait_until):
    """A culler would end a kernel that computes for hours without a word, and its server."""
    parked, busy = gpu_kernel(gpu_server, 25), gpu_kernel(gpu_server, 25)
    assert gpu_server.affinode(f"kernels/{parked.id}/park", "POST", {})[0] == 200
    becomes(parked, "parked")

    def last_activity(path: str) -> str:
        return gpu_server.request("GET", f"/api/{path}?no_track_activity=1")[1]["last_activity"]

    cell = busy.begin("small = Block(1)\nwhile True:\n    small.fill(7); time.sleep(0.05)")
    began = last_activity(f"kernels/{busy.id}")
    before = {path: last_activity(path) for path in (f"kernels/{busy.id}", "status")}
    wait_until(lambda: all(last_activity(path) > then for path, then in before.items()))
    assert last_activity(f"kernels/{parked.id}") < began
    busy.interrupt()
    assert busy.wait(cell).error == "KeyboardInterrupt"


BUSY = """
import pathlib
while not pathlib.Path({end!r}).exists():
    assert small.checksum() == small_before
    time.sleep(0.005)
assert block.checksum() == before
"""


def gpu_kernel_in_turns(server: JupyterServer) -> JupyterKernel:
    """A kernel that needs more than half of the GPU, and has a small block to work on."""
    kernel = gpu_kernel(server, 66)
    assert kernel.run("small = Block(2, seed=8)\nsmall_before = small.checksum()").status == "ok"
    return kernel


@pytest.mark.long
def test_two_long_cells_take_turns_and_both_compute_right(gpu_server, policy, wait_until):
    policy(when_full="time_slice", time_slice_s=0.5)
    first = gpu_kernel_in_turns(gpu_server)
    gpu_server.affinode(f"kernels/{first.id}/park", "POST", {})
    second = gpu_kernel_in_turns(gpu_server)
    end = gpu_server.machine.folder / "turns-end"
    cells = [(kernel, kernel.submit(BUSY.format(end=str(end)))) for kernel in (second, first)]
    wait_until(lambda: first.state()["resumes"] >= 1 and second.state()["resumes"] >= 1)
    end.touch()
    for kernel, message_id in cells:
        done = kernel.wait(message_id, timeout=120)
        assert done.status == "ok", done
    assert "its turn of 0.5 s is over" in gpu_server.machine.controller_log()


@pytest.mark.long
def test_the_newest_kernel_is_shut_down_by_its_server_for_an_older_one(gpu_server, policy, wait_until):
    policy(when_full="terminate_newest", time_slice_s=0.5)
    old = gpu_kernel_in_turns(gpu_server)
    gpu_server.affinode(f"kernels/{old.id}/park", "POST", {})
    young = gpu_kernel_in_turns(gpu_server)
    young.submit(BUSY.format(end="/never"))
    done = old.run("print(block.checksum() == before)")
    assert done.text == "True\n", done
    wait_until(lambda: not young.alive())
    assert old.alive()

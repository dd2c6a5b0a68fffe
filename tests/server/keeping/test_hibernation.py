"""Kernels that hibernate: real kernels, real CRIU; what was on the GPU on the simulated one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from gpu_cells import SETUP
from hibernating import end_kernels, prepare
from live_machine import Machine
from live_server import JupyterKernel, JupyterServer, exists
from waiting import wait_until

KEEP = "--AffinodeExtension.keep_kernels=all"


@pytest.fixture
def server(keeping_machine, criu):
    """A server whose kernels outlive it, and hibernate."""
    made = prepare(JupyterServer(keeping_machine), criu).start(KEEP)
    yield made
    end_kernels(made)
    made.stop()


def with_gpu(machine: Machine, criu: str) -> JupyterServer:
    """A server on a machine with a simulated GPU, whose kernels outlive it, and hibernate."""
    machine.simulate("4GiB")
    server = prepare(JupyterServer(machine), criu)
    machine.start_controller("--settle=0")
    return server.start(KEEP)


def end(server: JupyterServer) -> None:
    """End the server; its kernels stay."""
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=60)


def affinode(server: JupyterServer, *arguments: str) -> object:
    """What a command prints as JSON."""
    done = server.machine.affinode(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def wake(server: JupyterServer, kernel: JupyterKernel) -> None:
    """Have the server wake a kernel."""
    status, answer = server.affinode(f"kernels/{kernel.id}/wake", "POST", {})
    assert status == 200, answer
    kernel.listen_again()


def images(server: JupyterServer) -> list[Path]:
    """The images of the machine."""
    return sorted(Path(server.machine.environment["AFFINODE_HIBERNATE_DIR"]).glob("[!.]*"))


WORK = """
import threading, time, itertools
kept = {"a": list(range(5))}
file = open("notes.txt", "w+"); file.write("first"); file.flush()
ticks = []
def tick():
    while True:
        ticks.append(time.monotonic()); time.sleep(0.05)
threading.Thread(target=tick, daemon=True).start()
generator = itertools.count(7); next(generator)
"""


@pytest.mark.long
def test_a_kernel_hibernates_and_is_where_it_was_when_its_server_is_back(server):
    kernel = server.start_kernel(path="work.ipynb")
    kernel.run(WORK)
    pid, address = kernel.pid, kernel.run("print(id(kept))").text
    end(server)
    (hibernated,) = affinode(server, "hibernate", "work.ipynb")
    assert (hibernated["place"], hibernated["id"]) == ("image", kernel.id)
    assert hibernated["bytes"] > 0
    assert not exists(pid)
    (listed,) = affinode(server, "kept")
    assert listed["place"] == "image"

    server.start(KEEP, port=server.port)
    (model,) = server.request("GET", "/api/kernels")[1]
    assert model["id"] == kernel.id
    (session,) = server.request("GET", "/api/sessions")[1]
    assert session["path"] == "work.ipynb"
    assert not exists(pid), "it is woken when it is used"
    wake(server, kernel)
    assert kernel.pid == pid
    assert kernel.run("print(id(kept), kept['a'], next(generator))").text.split()[0] == address.strip()
    assert kernel.run("file.write(' second'); file.seek(0); print(file.read())").text == "first second\n"
    before = int(kernel.run("print(len(ticks))").text)
    wait_until(lambda: int(kernel.run("print(len(ticks))").text) > before)
    assert images(server) == []


def test_what_a_kernel_has_on_the_gpu_hibernates_with_it(keeping_machine, criu):
    machine, server = keeping_machine, with_gpu(keeping_machine, criu)
    kernel = server.start_kernel(path="work.ipynb")
    assert kernel.run(f"{SETUP}\nblock = Block(24, seed=7)").error is None
    before = kernel.run("print(block.checksum())").text
    pid = kernel.pid
    end(server)
    affinode(server, "hibernate", "work.ipynb")
    assert not exists(pid)
    (gpu_file,) = images(server)[0].glob("gpu-*")
    assert gpu_file.stat().st_blocks * 512 >= 24 << 20
    wait_until(lambda: machine.node()["gpus"][0]["used_bytes"] == 0)
    wait_until(lambda: machine.kernel(kernel.id)["residency"] == "hibernated")
    wait_until(lambda: (machine.kernel(kernel.id)["image_bytes"] or 0) >= 24 << 20)
    (images(server)[0] / "warned").touch(mode=0o600)  # as the keeper does a day before it deletes an image
    assert "unless it is woken before" in machine.affinode("status").stdout

    server.start(KEEP, port=server.port)
    (session,) = server.request("GET", "/api/sessions")[1]
    assert (session["path"], session["kernel"]["id"]) == ("work.ipynb", kernel.id)
    assert not exists(pid), "it is woken when it is used"
    wake(server, kernel)
    assert kernel.pid == pid
    assert kernel.run("1 + 1").text == "2"
    # Until its process has found the controller again it is known as hibernated.
    wait_until(lambda: machine.kernel(kernel.id)["residency"] == "parked")
    assert machine.kernel(kernel.id)["depth"] == "context"
    assert images(server), "until the GPU memory is back the image stays"
    assert kernel.run("print(block.checksum())").text == before
    wait_until(lambda: machine.kernel(kernel.id)["residency"] == "resident")
    wait_until(lambda: not (images(server)[0] / "woken.json").exists(), timeout=30)
    kernel.shutdown()
    wait_until(lambda: images(server) == [])
    server.stop()


@pytest.mark.parametrize("uses_cuda", [True, False])
def test_one_hibernates_whose_controller_has_just_ended(keeping_machine, criu, uses_cuda):
    machine, server = keeping_machine, with_gpu(keeping_machine, criu)
    kernel = server.start_kernel(path="work.ipynb")
    kernel.run(f"{SETUP}\nblock = Block(24, seed=7)" if uses_cuda else "block = None")
    before, pid = kernel.run("print(block and block.checksum())").text, kernel.pid
    os.kill(machine.controller_pid(), signal.SIGKILL)
    status, answer = server.affinode(f"kernels/{kernel.id}/hibernate", "POST", {})
    assert status == 200, (answer, server.log())
    assert not exists(pid)
    wake(server, kernel)
    assert kernel.run("print(block and block.checksum())").text == before
    kernel.shutdown()
    server.stop()

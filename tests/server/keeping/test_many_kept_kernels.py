"""Many kernels over a restart, and many times: nothing is left of any."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from keepers import keepers
from live_server import JupyterServer, exists

KEEP = "--AffinodeExtension.keep_kernels=all"
MANY, CYCLES = 50, 200


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_fifty_kernels_outlive_a_restart_and_a_crash(keeping_machine, wait_until):
    server = JupyterServer(keeping_machine).start(KEEP)
    kernels = [server.start_kernel(path=f"{number}.ipynb") for number in range(MANY)]
    for number, kernel in enumerate(kernels):
        kernel.run(f"mine = {number}")
    pids = [kernel.pid for kernel in kernels]
    for how in (signal.SIGTERM, signal.SIGKILL):
        server.process.send_signal(how)
        server.process.wait(timeout=60)
        server.start(KEEP, port=server.port)
        sessions = {each["path"]: each["kernel"]["id"] for each in server.request("GET", "/api/sessions")[1]}
        assert sessions == {f"{number}.ipynb": kernel.id for number, kernel in enumerate(kernels)}
        assert [kernel.run("mine").text for kernel in kernels] == [str(number) for number in range(MANY)]
        assert [kernel.pid for kernel in kernels] == pids
    assert "handed over in haste" not in server.log()
    for kernel in kernels:
        kernel.shutdown()
    server.stop()
    wait_until(lambda: not keepers(keeping_machine) and not any(map(exists, pids)))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_of_two_hundred_kernels_that_were_kept_adopted_and_ended_nothing_is_left(keeping_machine, wait_until):
    """No process, file or descriptor, whether the server or the keeper ends them; in a scope they are elsewhere."""
    machine = keeping_machine
    own, runtime = (Path(machine.environment[name]) for name in ("AFFINODE_FOLDER", "JUPYTER_RUNTIME_DIR"))
    server = JupyterServer(machine).start(KEEP)
    first, before = (
        server.start_kernel(path="first.ipynb"),
        None,
    )  # with it the keeper never has nothing to do
    (keeper,) = keepers(machine)
    for cycle in range(CYCLES):
        kernel = server.start_kernel(path="turn.ipynb")
        pid = kernel.pid
        server.process.send_signal((signal.SIGTERM, signal.SIGKILL)[cycle % 2])
        server.process.wait(timeout=60)
        if cycle % 4 == 3:  # one that ends while no server has it
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda kernel=kernel: not told(own, kernel.id))
            kernel.close()
        server.start(KEEP, port=server.port)
        if cycle % 4 != 3:
            assert kernel.run("1 + 1").text == "2"
            kernel.shutdown()
        wait_until(lambda pid=pid, kernel=kernel: not exists(pid) and not told(own, kernel.id))
        left = {path.name for path in runtime.glob("kernel-*")}
        assert all(first.id in name for name in left), left
        server.kernels.remove(kernel)
        now = len(os.listdir(f"/proc/{keeper}/fd"))
        if cycle == 3:
            before = now
        if cycle % 20 == 19:
            print(f"{cycle + 1} cycles, {now} descriptors", flush=True)
    assert keepers(machine) == [keeper]
    print(f"{CYCLES} cycles; the keeper has {now} descriptors, after four it had {before}")
    wait_until(lambda: len(os.listdir(f"/proc/{keeper}/fd")) <= before)  # a server may just have connected
    first.shutdown()
    server.stop()
    wait_until(lambda: not exists(keeper))
    assert list((own / "kept").iterdir()) == [] and not (own / "keep.sock").exists()
    assert list(runtime.glob("kernel-*")) == []
    wait_until(lambda: processes_of(machine) == [], message=lambda: processes_of(machine))  # its supervisor


def told(own: Path, kernel_id: str) -> bool:
    """Whether the keeper has a record of a kernel."""
    return (own / "kept" / f"{kernel_id}.json").exists()


def processes_of(machine) -> list[str]:
    """The command lines of all processes that were started on a machine, by their environment."""
    mark = machine.environment["AFFINODE_FOLDER"].encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes() and exists(int(path.parent.name)):
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in found if "jupyter_affinode.node" not in line]

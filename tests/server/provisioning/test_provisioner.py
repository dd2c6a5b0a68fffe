"""Kernels of our provisioner behave as local ones: start, interrupt, restart, shutdown, death."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel
from live_machine import environment_of_started
from live_server import ENDLESS, exists

from jupyter_affinode import environment
from jupyter_affinode.provisioning import preload as launch_environment

# With the local one tests show what ours is compared with.
PROVISIONERS = [pytest.param("local-provisioner", marks=pytest.mark.long), "affinode-provisioner"]
WAITING = f"print('on', flush=True)\n{ENDLESS}"


@pytest.fixture
def proved_anew():
    """The proof of the shim is made again by this test, and forgotten after it."""
    launch_environment.prove_preload.cache_clear()
    yield
    launch_environment.prove_preload.cache_clear()


@pytest.fixture
def ready_client(kernel_manager):
    """`await ready_client(manager)`: a client of a kernel that answers; closed before the kernel is."""
    made: list[Any] = []

    async def connect(manager: Any) -> Any:
        client = manager.client()
        made.append(client)
        client.start_channels()
        await client.wait_for_ready(timeout=60)
        return client

    yield connect
    for client in made:
        client.stop_channels()


async def reply_of(client: Any, message_id: str, timeout: float = 30) -> dict[str, Any]:
    while True:
        message = await client.get_shell_msg(timeout=timeout)
        if message["parent_header"]["msg_id"] == message_id:
            return message["content"]


async def begin(client: Any, code: str) -> str:
    """Start a cell and wait for what it prints. What is sent right after its error is not aborted."""
    message_id = client.execute(code, stop_on_error=False)
    while True:
        message = await client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream" and message["parent_header"]["msg_id"] == message_id:
            return message_id


@pytest.mark.parametrize("provisioner", PROVISIONERS)
async def test_a_kernel_is_interrupted_restarted_under_its_id_and_shut_down(
    native, kernel_manager, ready_client, provisioner
):
    manager = await kernel_manager(provisioner)
    client = await ready_client(manager)
    message_id = await begin(client, WAITING)
    await manager.interrupt_kernel()
    assert (await reply_of(client, message_id))["ename"] == "KeyboardInterrupt"
    assert (await reply_of(client, client.execute("1")))["status"] == "ok"
    before, pid = manager.kernel_id, manager.provisioner.pid
    await manager.restart_kernel()
    assert manager.kernel_id == before and manager.provisioner.pid != pid
    environ = environment_of_started(manager.provisioner.pid)
    assert (f"AFFINODE_KERNEL_ID={before}".encode() in environ) == (provisioner == "affinode-provisioner")
    await client.wait_for_ready(timeout=60)
    pid = manager.provisioner.pid
    await manager.shutdown_kernel()
    assert not exists(pid)


async def test_a_kernel_that_does_not_listen_is_terminated_and_killed(native, kernel_manager, ready_client):
    manager = await kernel_manager()
    client = await ready_client(manager)
    deaf = "import signal, threading, time\n"
    deaf += "for n in (2, 15): signal.signal(n, signal.SIG_IGN)\nprint('on', flush=True)\n"
    deaf += "while True:\n    try: time.sleep(60)\n    except KeyboardInterrupt: pass\n"
    await begin(client, deaf)
    pid = manager.provisioner.pid
    await manager.shutdown_kernel()
    assert not exists(pid)


async def test_without_a_shim_that_works_the_kernel_starts_and_the_log_says_why(
    proved_anew, here, kernel_manager, ready_client, monkeypatch, caplog
):
    broken = here.folder / "libaffinode.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(environment, "shim_path", lambda: broken)
    manager = await kernel_manager()
    client = await ready_client(manager)
    assert (await reply_of(client, client.execute("1")))["status"] == "ok"
    assert b"AFFINODE_KERNEL_ID" not in environment_of_started(manager.provisioner.pid)
    assert not manager.provisioner.managed
    assert "is not managed" in caplog.text and str(broken) in caplog.text


async def test_without_a_folder_of_its_own_the_kernel_starts_and_the_log_says_why(
    native, here, kernel_manager, monkeypatch, caplog
):
    """The simulated GPU's libraries cannot be put anywhere."""
    (here.folder / f"affinode-{os.getuid()}").touch()
    monkeypatch.setattr(environment, "TEMPORARY", here.folder)
    monkeypatch.setenv("HOME", "/dev/null/home")
    monkeypatch.setenv("AFFINODE_SIM", "1")
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    manager = await kernel_manager()
    assert await manager.is_alive() and not manager.provisioner.managed
    assert "is not managed: AFFINODE_SIM=1 is set, but" in caplog.text
    assert f"affinode-{os.getuid()} is not a folder" in caplog.text and "Traceback" not in caplog.text


async def test_the_kernelspecs_own_environment_does_not_undo_ours(native, kernel_manager, kernelspec):
    kernelspec("opinionated", env={"LD_PRELOAD": "", "AFFINODE_KERNEL_ID": "mine", "MARK": "1"})
    manager = await kernel_manager(kernel_name="opinionated")
    environ = environment_of_started(manager.provisioner.pid).decode()
    assert "libaffinode.so" in environ and f"AFFINODE_KERNEL_ID={manager.kernel_id}" in environ
    assert "MARK=1" in environ


async def test_a_kernel_that_is_not_python_is_managed_without_our_startup_file(
    native, kernel_manager, ready_client, kernelspec
):
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    kernelspec("shell", argv=argv, language="bash")
    manager = await kernel_manager(kernel_name="shell")
    environ = environment_of_started(manager.provisioner.pid).decode()
    assert "libaffinode.so" in environ and "PYTHONSTARTUP" not in environ


def test_it_works_in_programs_without_an_event_loop(native, here, factory, monkeypatch):
    """As jupyter console and nbclient start kernels; the process ends no later for it."""
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "affinode-provisioner")
    manager, client = start_new_kernel(startup_timeout=60)
    try:
        assert (
            client.execute_interactive("assert 'AFFINODE_LIBRARY' in __import__('os').environ")["content"][
                "status"
            ]
            == "ok"
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


class TestWithAController:
    """What the controller is told, and what happens when it does not listen."""

    async def test_it_knows_the_kernel_and_forgets_it_at_its_end(
        self, native, here, kernel_manager, ready_client, wait_until
    ):
        manager = await kernel_manager()
        wait_until(lambda: (here.kernel(manager.kernel_id) or {}).get("name"))
        kernel = here.kernel(manager.kernel_id)
        assert kernel["name"] == "Python 3 (ipykernel)" and kernel["language"] == "python"
        assert kernel["residency"] == "none"
        await manager.restart_kernel(now=True)
        assert here.kernel(manager.kernel_id) is not None
        pid = manager.provisioner.pid
        await manager.shutdown_kernel(now=True)
        assert not exists(pid)
        wait_until(lambda: here.kernel(manager.kernel_id) is None)

    async def test_a_kernel_that_ends_before_it_was_introduced_leaves_nothing_behind(
        self, native, here, kernel_manager, wait_until
    ):
        """The controller is started only now: it hears of the kernel after the kernel's end."""
        manager = await kernel_manager()
        await manager.shutdown_kernel(now=True)
        wait_until(lambda: here.node() is not None)
        wait_until(lambda: "affinode-introduce" not in [each.name for each in threading.enumerate()])
        wait_until(lambda: here.kernel(manager.kernel_id) is None)

    async def test_one_that_is_stopped_delays_nothing_and_hears_of_an_interrupt_afterwards(
        self, native, here, kernel_manager, ready_client, wait_until
    ):
        controller = here.start_controller()
        manager = await kernel_manager()
        client = await ready_client(manager)
        wait_until(lambda: here.kernel(manager.kernel_id))
        message_id = await begin(client, WAITING)
        controller.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StopIteration):  # at its first step: it did not wait for anything
                manager.provisioner.send_signal(signal.SIGINT).send(None)
            assert (await reply_of(client, message_id))["ename"] == "KeyboardInterrupt"
        finally:
            controller.send_signal(signal.SIGCONT)
        wait_until(lambda: f"cancel {manager.kernel_id}" in here.controller_log())
        controller.send_signal(signal.SIGSTOP)
        try:
            await manager.shutdown_kernel()
            assert not await manager.is_alive()
        finally:
            controller.send_signal(signal.SIGCONT)

    @pytest.mark.long
    async def test_one_that_was_killed_delays_nothing(self, native, here, kernel_manager, ready_client):
        controller = here.start_controller()
        manager = await kernel_manager()
        client = await ready_client(manager)
        message_id = await begin(client, WAITING)
        controller.kill()
        await manager.interrupt_kernel()
        assert (await reply_of(client, message_id))["ename"] == "KeyboardInterrupt"
        await manager.shutdown_kernel()
        assert not await manager.is_alive()


@pytest.mark.long
def test_a_kernel_outlives_the_controller(native, machine, server, wait_until):
    server.start()
    kernel = server.start_kernel()
    wait_until(lambda: machine.kernel(kernel.id))
    machine.kill_controller()
    wait_until(lambda: (machine.kernel(kernel.id) or {}).get("name") == "Python 3 (ipykernel)")
    assert kernel.run("print(1)").text == "1\n"

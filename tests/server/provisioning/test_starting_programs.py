"""Programs that start kernels without a server: threads, forks and loops of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from live_machine import environment_of_started

from jupyter_affinode.provisioning import preload as launch_environment
from jupyter_affinode.provisioning import provisioner

ONCE = """
import gc, os, sys, threading, time
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning import KernelProvisionerFactory

OURS, UPSTREAMS = "affinode-provisioner", "local-provisioner"

def once(provisioner=OURS):
    KernelProvisionerFactory.instance().default_provisioner_name = provisioner
    manager, client = start_new_kernel(startup_timeout=60)
    client.stop_channels()
    managed = getattr(manager.provisioner, "managed", False)
    manager.shutdown_kernel(now=True)
    manager.context.destroy(linger=0)
    assert managed == (provisioner == OURS)
"""
FORK = """
once()
pid = os.fork()
if pid == 0:
    once()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
THREADS = """
def left():
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))

def in_a_thread(provisioner):
    thread = threading.Thread(target=once, args=[provisioner])
    thread.start()
    thread.join()

in_a_thread(OURS)
while left()[0] > 1:  # it introduces the kernel
    time.sleep(0.05)
before = left()
in_a_thread(UPSTREAMS)  # jupyter_client 8.0 leaves a loop to each thread
most = [2 * after - then for after, then in zip(left(), before)]
in_a_thread(OURS)
while any(now > then for now, then in zip(left(), most)):  # until the time-out
    time.sleep(0.05)
"""
INTERRUPT = """
manager, client = start_new_kernel(startup_timeout=60)
client.stop_channels()
while threading.active_count() > 1:  # it introduces the kernel
    time.sleep(0.05)
manager.interrupt_kernel()  # its loop stops right afterwards
input()  # and never runs again; a controller drops what it has not read yet of a program that has ended
os.killpg(manager.provisioner.pgid, 9)
os._exit(0)
"""
IMPORTS = """
from jupyter_affinode.provisioning.provisioner import AffinodeProvisioner

AffinodeProvisioner.places = True
once("local-provisioner")
before = set(sys.modules)
once()
while threading.active_count() > 1:  # it introduces the kernel
    time.sleep(0.05)
manager, client = start_new_kernel(startup_timeout=60)
client.stop_channels()
manager.interrupt_kernel()
manager.shutdown_kernel(now=True)
print(*sorted(name for name in set(sys.modules) - before if not name.startswith("jupyter_affinode.")))
print(*sorted(name for name in sys.modules if name.startswith("jupyter_affinode.client.")))
"""


@pytest.fixture
def managing(native, here, monkeypatch):
    """Programs of this machine start managed kernels."""
    monkeypatch.setitem(here.environment, "JUPYTER_DEFAULT_PROVISIONER_NAME", "affinode-provisioner")
    return here


def run(machine, program: str) -> str:
    command = [sys.executable, "-c", ONCE + program]
    done = subprocess.run(
        command, env=machine.environment, cwd=machine.work, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_forked_process_starts_kernels_as_its_parent_did(managing):
    run(managing, FORK)


@pytest.mark.long
def test_kernels_started_by_threads_leave_neither_threads_nor_descriptors(managing):
    run(managing, THREADS)


@pytest.mark.long
def test_a_managed_kernel_needs_no_modules_that_another_kernel_does_not(managing):
    """A program that starts one kernel would wait for their import: tornado's client took longer than all else."""
    others, ours = run(managing, IMPORTS).splitlines()
    assert others == ""
    assert "jupyter_affinode.client.api" not in ours


def test_an_interrupt_in_a_program_without_a_loop_reaches_the_controller(managing, wait_until):
    program = managing.start(sys.executable, "-c", ONCE + INTERRUPT, stdin=subprocess.PIPE)

    def is_told():
        assert program.poll() is None
        return ": what waits for the GPU fails" in managing.controller_log()

    wait_until(is_told)
    program.communicate(b"\n", timeout=60)


async def test_a_preparation_that_hangs_does_not_keep_a_kernel_from_starting(
    native, kernel_manager, monkeypatch, tmp_path, caplog
):
    """The first program that the preparation runs waits for what the test writes at its end."""
    launch_environment.prove_preload.cache_clear()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    program = tmp_path / "cat"
    program.write_text(f"#!/bin/sh\nread line < {gate}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(provisioner, "PREPARE_TIMEOUT_S", 0.2)
    manager = await kernel_manager()
    try:
        assert await manager.is_alive() and not manager.provisioner.managed
        environ = environment_of_started(manager.provisioner.pid)
        assert b"AFFINODE_KERNEL_ID" not in environ and b"libaffinode" not in environ
        assert "is not managed: its preparation" in caplog.text
    finally:
        gate.write_text("go on\n")
        launch_environment.prove_preload.cache_clear()

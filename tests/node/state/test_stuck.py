"""Processes that can make no progress any more are found, named with the reason, and ended if their owner says so."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from fake_shim import DYING, FAILED, GPU, LOST, MIB, NO_GPU_ROOM, RESUME
from people import command_of
from said_pages import NOTHING

import jupyter_affinode
from jupyter_affinode.node.execution import cleanup
from jupyter_affinode.node.identity.access import EveryUserAccess
from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.model.reasons import StuckReason
from jupyter_affinode.node.protocol.page import Depth, PageGpu, State
from jupyter_affinode.node.protocol.wire import PROTOCOL_VERSION, Hello, HelloFlag, gpu_uuid
from jupyter_affinode.node.state.gpus import gpu_processes
from jupyter_affinode.node.state.records.kernel import KernelRecord, Past, ServerSide
from jupyter_affinode.node.state.records.process import Process
from jupyter_affinode.node.state.stuck import stuck
from jupyter_affinode.node.system.peers import ProcessWatch
from jupyter_affinode.settings.policy import Settings

UUID = gpu_uuid(GPU)
NOW = 10_000.0
SETTINGS = Settings(cell_idle_timeout_s=600)
SCRIPT = Path(__file__).parents[1] / "support" / "stoppable_process.py"


def process(state=State.RESIDENT, *, in_flight=0, idle=1000.0, resident=MIB, parked=0, **fields):
    gpu = PageGpu(UUID, resident, parked, (0,) * 8)
    activity = NOW - idle
    data = replace(
        NOTHING,
        state=state,
        state_since=activity,
        last_activity=activity,
        calls_in_flight=in_flight,
        gpus=(gpu,),
    )
    hello = Hello(PROTOCOL_VERSION, 1, HelloFlag(0), "k", "python", "0")
    made = Process(1, "k", hello, SimpleNamespace(), data, SimpleNamespace(), 4242)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def slug(made, kernel=None, measured=None, settings=SETTINGS):
    return stuck(made, kernel or KernelRecord("k"), measured or {}, settings, NOW)


def gpu(total):
    return {UUID: NvmlGpu(UUID, 0, "A GPU", total, 0, total, None)}


# ---- verdicts


def test_a_process_that_waits_computes_or_only_pauses_is_not_stuck():
    assert slug(process()) is None
    assert slug(process(State.PARKED, resident=0, parked=MIB)) is None
    assert slug(process(State.QUEUED, resident=0, parked=MIB), measured=gpu(MIB)) is None
    assert slug(process(in_flight=1)) is None
    assert slug(process(State.NONE)) is None


def test_a_kernel_that_lost_its_state_is_stuck_unless_it_is_about_to_end():
    assert slug(process(State.LOST)) == "lost"
    assert slug(process(State.LOST, said_dying=True)) is None


def test_a_kernel_that_cannot_resume_is_stuck():
    waiting = process(State.PARKED, resident=0, parked=2 * MIB)
    assert slug(waiting, measured=gpu(2 * MIB)) is None
    assert slug(waiting, measured=gpu(MIB)) == "gpu-too-small"
    other = {"GPU-other": replace(gpu(MIB)[UUID], uuid="GPU-other")}
    assert slug(waiting, measured=other) == "gpu-gone"
    elsewhere = process(data=replace(waiting.data, depth=Depth.CONTEXT))  # it comes back on another GPU
    assert slug(elsewhere, measured=other) is None
    waiting.failed_resumes = 2
    assert slug(waiting) is None
    waiting.failed_resumes = 3
    assert slug(waiting) == "resume-failed"


def test_a_call_that_began_before_a_peer_ended_and_has_not_come_back_is_stuck():
    kernel = KernelRecord("k", past=Past(peer_ended_at=NOW - 700))
    hangs = process(in_flight=1, calls_changed_at=NOW - 800)
    assert slug(hangs, kernel) == "peer-gone"
    assert slug(process(in_flight=1, calls_changed_at=NOW - 10), kernel) is None
    assert slug(process(in_flight=0, calls_changed_at=NOW - 800), kernel) is None
    assert slug(hangs, KernelRecord("k", past=Past(peer_ended_at=NOW - 500))) is None


def test_an_orphan_is_stuck_only_if_no_server_speaks_for_it_and_it_does_nothing():
    orphan = {"parent": 7, "orphaned_at": NOW - 700}
    assert slug(process(**orphan)) == "parent-gone"
    assert slug(process(**orphan), KernelRecord("k", server=ServerSide(pid=5))) is None
    assert slug(process(**orphan, idle=10)) is None
    assert slug(process(**orphan, in_flight=1)) is None
    assert slug(process(parent=7, orphaned_at=NOW - 10)) is None


# ---- through the controller


@pytest.fixture
def started(machine, stoppable):
    """`started("k")`: a process of its own with a fake shim, and its number."""
    return lambda kernel_id: (stoppable(kernel_id), machine.processes_of(kernel_id)[0]["number"])


def test_a_healthy_process_is_never_ended(node, machine, started):
    node()
    made, number = started("k")
    status, answer = machine.ask("POST", "/kernels/k/end", {"process": number})
    assert (status, answer["error"]) == (409, "not-stuck")
    assert machine.ask("POST", "/kernels/k/end", {"process": number + 1})[0] == 404
    assert machine.ask("POST", "/kernels/k/end", {})[0] == 400
    assert machine.ask("POST", "/kernels/other/end", {"process": number})[0] == 404
    assert made.poll() is None


def test_a_kernel_that_lost_its_state_is_named_and_its_owner_can_end_it(node, shim, wait_until, monkeypatch):
    """The fake shim lives in this process: what would be sent is kept from it."""
    machine = node()
    sent = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _, number: sent.append(number))
    kernel = shim("k", resident=MIB)
    kernel.become(LOST)
    wait_until(lambda: machine.kernel("k")["processes"][0]["stuck"])
    described = machine.kernel("k")["processes"][0]
    assert described["stuck"]["reason"] == "lost"
    status, _ = machine.ask("POST", "/kernels/k/end", {"process": described["number"]})
    assert status == 200
    assert sent == [0, signal.SIGTERM]
    wait_until(lambda: kernel.heard.of(DYING))


def test_a_resume_that_fails_again_and_again_is_told_and_one_without_room_is_not(node, shim, wait_until):
    machine = node()
    broken, patient = shim("broken", parked=MIB), shim("patient", parked=MIB)
    broken.resume_status, patient.resume_status = FAILED, NO_GPU_ROOM
    for kernel in (broken, patient):
        kernel.touch()
    wait_until(lambda: machine.kernel("broken")["processes"][0]["stuck"])
    assert machine.kernel("broken")["processes"][0]["stuck"]["reason"] == "resume-failed"
    wait_until(lambda: len(patient.heard.of(RESUME)) >= 3)
    assert machine.kernel("patient")["processes"][0]["stuck"] is None
    broken.resume_status = 0
    wait_until(lambda: broken.page.resumes == 1)  # soon it may be parked again, for the patient one
    wait_until(lambda: machine.kernel("broken")["processes"][0]["stuck"] is None)


def test_an_orphan_is_ended_and_no_other_kernel(node, machine, started, wait_until):
    """A worker whose parent has ended: the real thing, two processes of it, ended by its owner."""
    node(cell_idle_timeout_s=0.2)
    bystander, _ = started("bystander")
    starter = (
        "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", starter, sys.executable, str(SCRIPT), str(machine.socket.parent), "k"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        try:
            wait_until(lambda: (machine.kernel("k") or {}).get("processes"))
            assert machine.kernel("k")["processes"][0]["stuck"] is None
            parent.stdin.close()
            parent.wait(timeout=60)
            wait_until(lambda: machine.kernel("k")["processes"][0]["stuck"])
            described = machine.kernel("k")["processes"][0]
            assert described["stuck"]["reason"] == "parent-gone"
            assert machine.ask("POST", "/kernels/k/end", {"process": described["number"]})[0] == 200
            wait_until(lambda: not machine.processes_of("k"))
            pid = None
        finally:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
    assert bystander.poll() is None
    assert machine.kernel("bystander")["processes"]


def test_a_process_that_ignores_the_request_to_end_is_killed(node, machine, started, wait_until, monkeypatch):
    """A stopped process hears no SIGTERM."""
    monkeypatch.setattr(cleanup, "KILL_AFTER_S", 0.2)
    node(cell_idle_timeout_s=0.1)
    made, number = started("k")
    os.kill(made.pid, signal.SIGSTOP)
    status = Path(f"/proc/{made.pid}/status")
    wait_until(
        lambda: "State:\tT" in status.read_text()
    )  # of signals that wait together, SIGTERM comes first
    # It is not stuck by that: the verdict is given here.
    monkeypatch.setattr("jupyter_affinode.node.state.registry.stuck", lambda *_: StuckReason.LOST)
    assert machine.ask("POST", "/kernels/k/end", {"process": number})[0] == 200
    assert made.wait(timeout=60) == -signal.SIGKILL


def test_a_number_that_may_be_anothers_is_not_trusted():
    class Watch:
        def send(self, number):
            assert number == 0, "a signal was sent"

    def refused(**changes):
        fields = {
            "peer_uid": os.getuid(),
            "watch": Watch(),
            "pid": os.getpid(),
            "connected_at": 1e18,
            **changes,
        }
        made = process(State.LOST, **fields)
        with pytest.raises(cleanup.CannotEnd) as error:
            cleanup.CleanUp(SimpleNamespace(warning=print)).end(KernelRecord("k"), made, StuckReason.LOST)
        return error.value.slug

    assert refused(connected_at=-1e9) == "out-of-reach"  # it began after the connection
    assert refused(peer_uid=os.getuid() + 1) == "out-of-reach"
    assert refused(peer_uid=None) == "out-of-reach"
    assert refused(watch=None) == "out-of-reach"
    assert refused(connection=None) == "out-of-reach"  # it hung up: it may have ended since
    assert refused(pid=2**22 + 1) == "out-of-reach"


def test_a_process_that_has_just_ended_is_ended():
    async def story():
        program = await asyncio.create_subprocess_exec("true")
        watch = ProcessWatch(os.pidfd_open(program.pid), lambda: None)
        await program.wait()
        made = process(State.LOST, peer_uid=os.getuid(), watch=watch, pid=program.pid, connected_at=1e18)
        cleanup.CleanUp(SimpleNamespace(warning=print)).end(KernelRecord("k"), made, StuckReason.LOST)
        watch.close()

    asyncio.run(story())


# ---- what is on the GPU and not ours, on the simulated GPU


UNMANAGED = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
context, block = ctypes.c_void_p(), ctypes.c_uint64()
for call, arguments in (
    ("cuInit", (0,)),
    ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
    ("cuCtxSetCurrent", (context,)),
    ("cuMemAlloc_v2", (ctypes.byref(block), ctypes.c_size_t(200 << 20))),
):
    assert getattr(cuda, call)(*arguments) == 0, call
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_process_without_a_shim_gets_a_row_of_its_own(gpu_machine, wait_until):
    gpu_machine.simulate(memory="1GiB")
    driver = Path(jupyter_affinode.__file__).parent / "lib" / "libaffinode-sim-cuda.so"
    program = gpu_machine.start(
        sys.executable, "-c", UNMANAGED, str(driver), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout.readline() == "ready\n"
    gpu_machine.start_controller()
    wait_until(lambda: gpu_machine.node()["gpus"] and gpu_machine.node()["gpus"][0]["unmanaged_bytes"])
    described = gpu_machine.node()["gpus"][0]
    assert described["unmanaged_bytes"] >= 200 * MIB
    shown = gpu_machine.affinode("status")
    assert "others" in shown.stdout
    if described["unmanaged"] is not None:  # None in a container, where pids prove nothing
        (row,) = described["unmanaged"]
        assert (row["pid"], row["bytes"] >= 200 * MIB) == (program.pid, True)
        assert f"not managed: {row['command']} (pid {program.pid}), 2" in shown.stdout
    program.communicate("")


def test_the_name_of_an_unmanaged_process_moves_no_cursor(monkeypatch):
    monkeypatch.setattr(gpu_processes, "sees_all_pids", lambda: True)
    name = "import sys; open('/proc/self/comm', 'w').write('\\x1b[2J\\rroot'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout.readline()
        gpu = NvmlGpu(gpu_uuid(GPU), 0, "A GPU", 1 << 30, 1 << 20, 1 << 30, 0, pids=frozenset([program.pid]))
        (row,) = gpu_processes.other_programs(gpu, (), set())
        program.stdin.close()
    assert (
        row.pid == program.pid and row.command == "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}root"
    )


def test_the_command_line_lists_what_is_stuck_and_ends_it(node, machine, started, monkeypatch, wait_until):
    node()
    made, number = started("k")
    refused = machine.affinode("clean", "k", "--process", str(number))
    assert refused.returncode == 1
    assert "not stuck" in refused.stderr
    monkeypatch.setattr("jupyter_affinode.node.state.registry.stuck", lambda *_: StuckReason.LOST)
    assert (
        f"process {number} (pid {made.pid}, fake): its GPU state is lost" in machine.affinode("clean").stdout
    )
    told = " ".join(machine.affinode("status").stdout.split())  # its lines are wrapped
    assert "`jupyter affinode clean k` ends it" in told
    assert "ended: its GPU state is lost" in machine.affinode("clean", "k").stdout
    made.wait(timeout=60)
    wait_until(lambda: not machine.processes_of("k"))
    assert "No process is stuck." in machine.affinode("clean").stdout


def test_a_stopped_process_that_holds_memory_is_shown_and_an_administrator_can_end_it(
    node, shared_machine, person, wait_until, monkeypatch
):
    machine = shared_machine
    monkeypatch.setattr(cleanup, "KILL_AFTER_S", 0.1)
    node(access=EveryUserAccess())
    made = machine.start(*command_of(61001, sys.executable, str(SCRIPT), str(machine.socket.parent), "k"))
    alice, bob, admin = person(61001), person(61002), person(0)
    wait_until(lambda: alice.kernels().get("k", {}).get("processes"))
    (process,) = alice.kernels()["k"]["processes"]
    assert process["stuck"] is None
    made.send_signal(signal.SIGSTOP)
    wait_until(lambda: alice.kernels()["k"]["processes"][0]["stuck"])
    known = "uid-61001/k"
    shown = admin.kernels()[known]["processes"][0]["stuck"]
    assert shown == {"reason": "stopped", "text": "it is stopped and holds memory"}
    end = f"/kernels/{quote(known, safe='')}/end", {"process": process["number"]}
    assert bob.ask("POST", *end)[0] == 404
    assert admin.ask("POST", *end)[0] == 200
    assert made.wait(timeout=60) == -signal.SIGKILL


def test_a_stopped_process_that_goes_on_is_not_stuck_any_more(node, machine, started, wait_until):
    node()
    made, _ = started("k")
    made.send_signal(signal.SIGSTOP)
    wait_until(lambda: machine.kernel("k")["processes"][0]["stuck"])
    made.send_signal(signal.SIGCONT)
    wait_until(lambda: machine.kernel("k")["tracked"])
    (process,) = machine.kernel("k")["processes"]
    assert process["stuck"] is None
    assert machine.ask("POST", "/kernels/k/end", {"process": process["number"]})[0] == 409

"""Parked at context depth, resumed on another GPU: what NVML must say for that, what waits meanwhile, and what is left
of a process that dies on the way. tests/shim/c/context_depth/migration.c goes through the driver calls.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import select
import signal
import sys
from pathlib import Path

import pytest
from fault_board import FaultBoard
from link_peer import NO_GPU_ROOM, OK, PARKED, REFUSED, RESUME, Reply
from shim_machine import DEADLINE_S, Installed, Machine, Running
from waiting import wait_until

from jupyter_affinode.node.protocol.page import Depth
from jupyter_affinode.node.protocol.wire import HelloFlag, MoveFlag

FIGURES = "[0-9]* [0-9]* [0-9]* [0-9]* [0-9]*"
USED = """
import pynvml as n
n.nvmlInit()
print(*(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(i)).used for i in range(n.nvmlDeviceGetCount())))
"""


class Gpus(Installed):
    """A machine of several GPUs, of which the program beside the shim says what a test wants: sed edits it."""

    def __init__(self, gpu: Machine, native: Path, count: int) -> None:
        super().__init__(gpu, native)
        self._edit = gpu.folder / "edit"
        self._edit.touch()
        self.program(
            f"""told=$("$REAL" "$@"); status=$?; [ -z "$told" ] || echo "$told" | sed -f {self._edit}; exit $status"""
        )
        gpu.environment["AFFINODE_SIM_GPUS"] = str(count)

    def say(self, edit: str) -> None:
        """From now on NVML's lines are edited so."""
        self._edit.write_text(edit + "\n")

    def start(self, **environment: str) -> Running:
        self.gpu.environment.update(environment)
        return self.gpu.start_worker()

    def uuids(self) -> list[str]:
        return [line.split()[7] for line in self.run(self.real, "all", "1").splitlines()]

    def used(self) -> list[int]:
        """Bytes of each GPU, in MiB."""
        return [int(word) >> 20 for word in self.run(sys.executable, "-c", USED).split()]

    def become_others(self, serial: int) -> None:
        """The machine has other GPUs from now on, of the same kind: what a process finds that is woken elsewhere."""
        machine = Path(self.gpu.environment["AFFINODE_SIM_DIR"]) / "machine"
        with machine.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
            at = -1
            for _ in range(int(self.gpu.environment["AFFINODE_SIM_GPUS"])):
                at = shared.find(b"SIMULATED", at + 1)
                shared[at + 14] = serial

    def lock_is_free(self, gpu: str) -> bool:
        name = f"gpu-{gpu.removeprefix('GPU-').replace('-', '')}.lock"
        descriptor = os.open(self.gpu.listener.socket_path.with_name(name), os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True


@pytest.fixture
def gpus(gpu: Machine, native: Path, request: pytest.FixtureRequest) -> Gpus:
    return Gpus(gpu, native, getattr(request, "param", 3))


def depth(running: Running) -> Depth:
    return running.peer.page().depth


def paged(running: Running) -> list[str]:
    """The UUIDs of its devices, in their order."""
    return [gpu.uuid for gpu in running.peer.page().gpus]


def park_deep(running: Running) -> None:
    running.park_deep()
    assert depth(running) == Depth.CONTEXT


def resume_on(running: Running, gpu: str) -> Reply:
    return running.peer.reply_to(running.peer.command(RESUME, argument=MoveFlag.MIGRATE, text=gpu))


@pytest.mark.parametrize(
    ("gpus", "edit", "may"),
    [
        (2, "", True),
        (1, "", False),
        (2, "2s/Simulated GPU/Another GPU/", False),
        (2, f"2s/^({FIGURES}) 0 /\\1 1 /".replace("(", "\\(").replace(")", "\\)"), False),
        (2, "$d", False),
        (2, "s/ Simulated GPU$//", False),
    ],
    indirect=["gpus"],
    ids=["two", "one", "unlike", "divided", "hidden", "unreadable"],
)
def test_a_shim_says_whether_there_is_another_gpu_to_go_to(gpus: Gpus, edit: str, may: bool) -> None:
    gpus.say(edit)
    with gpus.start() as running:
        flags = running.peer.hello.flags
        assert bool(flags & HelloFlag.MIGRATES) is may
        if not may and not edit:
            assert running.peer.park().status == OK
            refused = resume_on(running, "GPU-00000000-0000-0000-0000-000000000000")
            assert refused.status == REFUSED and "CUDA context" in refused.text
            assert running.peer.resume().status == OK


def test_it_goes_only_where_nvml_sees_a_gpu_of_its_kind_that_others_may_use(gpus: Gpus) -> None:
    """And the process may do there what it could do before; device numbers stay, the GPUs behind them change."""
    first, second, third = gpus.uuids()
    with gpus.start() as running:
        park_deep(running)
        for edit, words in (
            ("2s/Simulated GPU/Another GPU/", "another kind"),
            (f"2s/^\\({FIGURES}\\) 0 1 /\\1 1 1 /", "divided"),
            (f"2s/^\\({FIGURES}\\) 0 1 /\\1 0 0 /", "one process"),
            (f"2s/^{FIGURES} 0 1 /0 0 0 0 0 0 1 /", "free memory"),
            ("2d", "does not know that GPU"),
            ("s/ Simulated GPU$//", "something else"),
        ):
            gpus.say(edit)
            refused = resume_on(running, second)
            assert refused.status == REFUSED and words in refused.text
            assert running.peer.page().state == PARKED and depth(running) == Depth.CONTEXT
            assert paged(running) == [first, second, third] and gpus.used() == [0, 0, 0]
        gpus.say("")
        assert resume_on(running, second).status == OK
        assert paged(running) == [second, first, third]
        assert [used > 0 for used in gpus.used()] == [False, True, False]
        assert running.ask("check") is True
        assert running.ask("fork_exit") == 5
        assert running.ask("fork_cuda") == ["CUDA_ERROR_NOT_INITIALIZED"] * 3
        assert running.ask("subprocess") == "ab0"
        park_deep(running)
        assert resume_on(running, third).status == OK
        assert paged(running) == [third, first, second]
        assert [used > 0 for used in gpus.used()] == [False, False, True]
        assert running.ask("check") is True


@pytest.mark.parametrize("gpus", [1, 2], indirect=True)
def test_where_its_gpu_is_no_longer_it_comes_back_on_one_of_its_kind(gpus: Gpus) -> None:
    """As a process does that was woken on another machine: it has a page of it, and can leave it again."""
    there_then = gpus.uuids()
    full, unlike = "s/^\\([0-9]*\\) [0-9]*/\\1 0/", "s/Simulated GPU/Another GPU/"
    with gpus.start() as running:
        park_deep(running)
        gpus.become_others(1)
        here = gpus.uuids()
        assert not set(here) & set(there_then)
        for edit, words, shown in (
            (unlike, "no GPU like the one that it left", there_then),
            (full, "comes back on another GPU", here),
            (full, "the GPU is full", here),
            (unlike, "no GPU like the one that it left", here),
        ):
            gpus.say(edit)
            refused = running.peer.resume()
            assert refused.status == NO_GPU_ROOM and words in refused.text
            assert running.peer.page().state == PARKED and depth(running) == Depth.CONTEXT
            assert paged(running)[0] == shown[0]
        gpus.say("")
        assert running.peer.resume().status == OK
        assert paged(running) == here and gpus.used()[0] > 0
        assert running.ask("check") is True
        park_deep(running)
        gpus.become_others(2)
        assert "comes back on another GPU" in running.peer.resume().text
        gpus.become_others(1)
        assert (
            "comes back on another GPU" in running.peer.resume().text
        )  # the one that it left, as it turns out
        assert running.peer.resume().status == OK
        assert paged(running)[0] == here[0]
        assert running.ask("check") is True
        assert running.ask("fork_exit") == 5


@pytest.mark.long
def test_others_wait_until_it_has_arrived_and_nothing_is_left_if_it_dies_on_the_way(gpus: Gpus) -> None:
    """The other process is on that GPU already, was there first, and knows nothing of context depth."""
    board = FaultBoard(gpus.gpu.folder / "board")
    first, second, _ = gpus.uuids()
    with gpus.start(CUDA_VISIBLE_DEVICES="1", AFFINODE_DEPTH="memory") as there:
        environment = {"CUDA_VISIBLE_DEVICES": "0", "AFFINODE_DEPTH": "context"}
        with gpus.start(**environment, AFFINODE_SIM_FAULT_BOARD=str(gpus.gpu.folder / "board")) as running:
            park_deep(running)
            before = gpus.used()
            board.arm("cuCheckpointProcessRestore:HOLD:1")
            epoch = running.peer.command(RESUME, argument=MoveFlag.MIGRATE, text=second)
            wait_until(board.held)
            assert not gpus.lock_is_free(second) and gpus.lock_is_free(first)
            there.say("grow\n")
            seen = set()  # moments at which its call was under way: without a wait it takes microseconds

            def waits() -> bool:
                if there.peer.page().calls_in_flight:
                    seen.add(there.peer.heartbeat_ns())
                there.peer.pump()
                return len(seen) > 2

            wait_until(waits)
            assert gpus.used() == before
            assert not select.select([there.process.stdout], [], [], 0)[0]
            board.arm("")
            assert running.peer.reply_to(epoch).status == OK
            assert json.loads(there.answer()) is True
            assert gpus.lock_is_free(second)
            assert running.ask("check") is True and there.ask("check") is True

            park_deep(running)
            before = gpus.used()
            assert before[0] == 0 and before[1] > 0
            board.arm("cuCheckpointProcessUnlock:KILL:1")
            running.peer.command(RESUME, argument=MoveFlag.MIGRATE, text=first)
            assert running.process.wait(DEADLINE_S) == -signal.SIGKILL
            wait_until(lambda: gpus.used() == before)
            assert gpus.lock_is_free(first) and gpus.lock_is_free(second)


@pytest.mark.long
def test_two_come_back_at_the_same_time_each_on_its_own_gpu(gpus: Gpus) -> None:
    """Both see both GPUs, and lock the one that they come back on. A lock that was cleaned up is made anew."""
    board = FaultBoard(gpus.gpu.folder / "board")
    first, second, _ = gpus.uuids()
    on_board = {"AFFINODE_SIM_FAULT_BOARD": str(gpus.gpu.folder / "board")}
    with (
        gpus.start(CUDA_VISIBLE_DEVICES="0,1", **on_board) as one,
        gpus.start(CUDA_VISIBLE_DEVICES="1,0", AFFINODE_SIM_FAULT_BOARD="") as other,
    ):
        assert paged(one) == [first, second] and paged(other) == [second, first]
        park_deep(one)
        park_deep(other)
        board.arm("cuCheckpointProcessRestore:HOLD:1")
        epoch = one.peer.command(RESUME)
        wait_until(board.held)
        assert not gpus.lock_is_free(first) and gpus.lock_is_free(second)
        assert other.peer.resume().status == OK
        assert other.ask("check") is True
        assert board.held()
        board.arm("")
        assert one.peer.reply_to(epoch).status == OK
        assert one.ask("check") is True

        park_deep(other)
        for file in gpus.gpu.listener.socket_path.parent.glob("gpu-*.lock"):
            file.unlink()
        assert other.peer.resume().status == OK
        assert other.ask("check") is True
        assert gpus.lock_is_free(second) and gpus.lock_is_free(first)

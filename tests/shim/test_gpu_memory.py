"""affinode-gpu-memory beside the shim: what it prints, and a shim that has none, or one that does not work."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from link_peer import NO_GPU_ROOM, OK, PARK, RESUME, Reply
from shim_machine import DEADLINE_S, HERE, Machine, Running

PROGRAM = "affinode-gpu-memory"
TO_CONTEXT_DEPTH = 2  # AFFINODE_MOVE_CONTEXT
CONTEXT = 2  # AFFINODE_DEPTH_CONTEXT
STAYS = "the CUDA context stays on the GPU: "


class Installed:
    """A copy of the shim with a program of the test's choice beside it."""

    def __init__(self, gpu: Machine, native: Path) -> None:
        self.gpu = gpu
        self.folder = gpu.folder / "lib"
        self.folder.mkdir()
        self.log = gpu.folder / "log"
        self.real = native / PROGRAM
        self.nvml = gpu.driver / "libnvidia-ml.so.1"
        self.nvml.symlink_to(native / "libaffinode-sim-nvml.so")
        shutil.copy(native / "libaffinode.so", self.folder)
        gpu.environment.update(
            LD_PRELOAD=str(self.folder / "libaffinode.so"),
            AFFINODE_DEPTH="context",
            AFFINODE_LOG=str(self.log),
        )

    def program(self, script: str, *, mode: int = 0o755) -> None:
        """Put a shell script in the place of the program; it has the real one's path in $REAL."""
        made = self.folder / PROGRAM
        made.write_text(f"#!/bin/sh\nREAL={self.real}\n{script}\n")
        made.chmod(mode)

    def start(self) -> Running:
        running = Running(self.gpu, sys.executable, HERE / "worker.py")
        assert json.loads(running.answer()) == "ready"
        return running

    def refusal(self) -> str:
        """Why a program that starts now is not parked at context depth; it runs and parks all the same."""
        with self.start() as running:
            reply = park_deep(running)
            assert reply.status == OK and depth(running) < CONTEXT
            assert running.peer.resume().status == OK
        said = {line.partition(STAYS)[2] for line in self.log.read_text().splitlines() if STAYS in line}
        (reason,) = said  # at the start, and when it was parked
        assert reason in reply.text
        return reason


@pytest.fixture
def installed(gpu: Machine, native: Path) -> Iterator[Installed]:
    yield Installed(gpu, native)


def depth(running: Running) -> int:
    return int(struct.unpack_from("=I", bytes(running.peer.map), 232)[0])


def park_deep(running: Running) -> Reply:
    """Park at context depth, again while the process is too young or its work is in the way."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        reply = running.peer.reply_to(running.peer.command(PARK, argument=TO_CONTEXT_DEPTH))
        passing = ("just begun", "waits", "in progress")
        if not any(word in reply.text for word in passing) and reply.status == OK:
            return reply
        assert time.monotonic() < deadline, reply
        if reply.status == OK:
            running.peer.resume()


def test_it_prints_one_line_of_numbers(installed: Installed) -> None:
    installed.program('exec "$REAL" "$@"')
    with installed.start():
        look = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"
        environment = {name: v for name, v in installed.gpu.environment.items() if name != "LD_PRELOAD"}
        uuid = subprocess.check_output([sys.executable, "-c", look], env=environment, text=True).strip()
        said = subprocess.check_output([installed.real, uuid, "1"], env=environment, text=True)
        total, free, used, processes, own, divided = map(int, said.split())
        assert total == 4 << 30 and 0 < used == total - free
        assert (processes, own, divided) == (1, 0, 0)
        for arguments, status in (((uuid,), 2), ((uuid, "x"), 2), (("GPU-none", "1"), 5)):
            failed = subprocess.run(
                [installed.real, *arguments], env=environment, capture_output=True, text=True
            )
            assert (failed.returncode, failed.stdout) == (status, "") and failed.stderr


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 1 2 three", "something else"),
        ("echo 100 50 50 0 0 0; echo 100 50 50 0 0 0", "something else"),
        ("printf '100 200 50 0 0 0\\n'", "something else"),
        ("printf '100 50 50 0 0'", "something else"),
        ("true", "something else"),
        ("exec cat /dev/zero", "something else"),
        ('"$REAL" "$@"; exit 6', "NVML does not know this GPU's free memory"),
        ('"$REAL" "$@"; exit 77', "failed"),
        ('"$REAL" "$@"; kill -9 $$', "was killed"),
        ("exec sleep 60", "in time"),
        ('"$REAL" "$@"; exec >&-; exec sleep 60', "in time"),
    ],
)
def test_a_program_that_does_not_work_is_refused_with_its_reason(
    installed: Installed, script: str, reason: str
) -> None:
    installed.program(script)
    assert reason in installed.refusal()


def test_a_missing_program_is_refused(installed: Installed) -> None:
    assert "not beside the shim" in installed.refusal()


def test_a_program_that_may_not_be_run_is_refused(installed: Installed) -> None:
    installed.program("true", mode=0o644)
    assert "not executable" in installed.refusal()


def test_without_nvml_it_is_refused(installed: Installed) -> None:
    installed.program('exec "$REAL" "$@"')
    installed.nvml.unlink()
    assert installed.refusal() == "NVML (libnvidia-ml.so.1) is not here"


def test_its_environment_and_descriptors_are_its_own(installed: Installed) -> None:
    seen = installed.gpu.folder / "seen"
    installed.program(
        f'{{ env; for fd in /proc/$$/fd/*; do readlink $fd; done; }} >>{seen}; exec "$REAL" "$@"'
    )
    secret = os.open(installed.gpu.folder / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    with installed.start():
        pass
    lines = seen.read_text().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert "LD_PRELOAD" not in names and {"LD_LIBRARY_PATH", "AFFINODE_SIM_DIR"} <= names
    assert not [name for name in names if name.startswith("AFFINODE_") and "SIM" not in name]
    assert "/dev/null" in lines and not [line for line in lines if "secret" in line or "socket:" in line]
    os.close(secret)


def test_nvml_that_falls_silent_keeps_a_process_where_it_is(installed: Installed) -> None:
    silent, looks = installed.gpu.folder / "silent", installed.gpu.folder / "looks"
    installed.program(f'echo >>{looks}; test -e {silent} && exec sleep 60; exec "$REAL" "$@"')
    with installed.start() as running:
        assert not park_deep(running).text and depth(running) == CONTEXT
        silent.touch()
        kept = running.peer.reply_to(running.peer.command(RESUME))
        assert kept.status == NO_GPU_ROOM and "in time" in kept.text
        assert depth(running) == CONTEXT
        silent.unlink()
        before = len(looks.read_text())
        assert running.peer.resume().status == OK
        assert len(looks.read_text()) - before == 1, "a resume costs one look"
        silent.touch()
        reply = running.peer.reply_to(running.peer.command(PARK, argument=TO_CONTEXT_DEPTH))
        assert reply.status == OK and "in time" in reply.text and depth(running) < CONTEXT
        silent.unlink()
        assert running.peer.resume().status == OK

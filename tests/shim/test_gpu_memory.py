"""affinode-gpu-memory beside the shim: what it prints, and a shim that has none, or one that does not work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from link_peer import NO_GPU_ROOM, OK, PARK, RESUME
from shim_machine import Installed, Machine

from jupyter_affinode.node.protocol.page import Depth
from jupyter_affinode.node.protocol.wire import MoveFlag

STAYS = "the CUDA context stays on the GPU: "


class Refusing(Installed):
    """Tells why nothing is parked at context depth."""

    def __init__(self, gpu: Machine, native: Path) -> None:
        super().__init__(gpu, native)
        self.log = gpu.folder / "log"
        gpu.environment["AFFINODE_LOG"] = str(self.log)

    def refusal(self) -> str:
        """Why a program that starts now is not parked at context depth; it runs and parks all the same."""
        with self.gpu.start_worker() as running:
            reply = running.park_deep()
            assert running.peer.page().depth < Depth.CONTEXT
            assert running.peer.resume().status == OK
        said = {line.partition(STAYS)[2] for line in self.log.read_text().splitlines() if STAYS in line}
        (reason,) = said  # at the start, and when it was parked
        assert reason in reply.text
        return reason


@pytest.fixture
def installed(gpu: Machine, native: Path) -> Refusing:
    return Refusing(gpu, native)


def test_it_prints_one_line_of_numbers(installed: Refusing) -> None:
    installed.program('exec "$REAL" "$@"')
    with installed.gpu.start_worker():
        look = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"
        uuid = installed.run(sys.executable, "-c", look).strip()
        said = installed.run(installed.real, uuid, "1")
        total, free, used, processes, own, divided = map(int, said.split())
        assert total == 4 << 30 and 0 < used == total - free
        assert (processes, own, divided) == (1, 0, 0)
        for arguments, status in (((uuid,), 2), ((uuid, "x"), 2), (("GPU-none", "1"), 5)):
            failed = subprocess.run(
                [installed.real, *arguments],
                env=installed.gpu.bare_environment,
                capture_output=True,
                text=True,
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
        pytest.param("exec sleep 60", "in time", marks=pytest.mark.long),
        ('"$REAL" "$@"; exec >&-; exec sleep 60', "in time"),
    ],
)
def test_a_program_that_does_not_work_is_refused_with_its_reason(
    installed: Refusing, script: str, reason: str
) -> None:
    installed.program(script)
    assert reason in installed.refusal()


def test_a_missing_program_is_refused(installed: Refusing) -> None:
    assert "not beside the shim" in installed.refusal()


def test_a_program_that_may_not_be_run_is_refused(installed: Refusing) -> None:
    installed.program("true", mode=0o644)
    assert "not executable" in installed.refusal()


def test_without_nvml_it_is_refused(installed: Refusing) -> None:
    installed.program('exec "$REAL" "$@"')
    installed.nvml.unlink()
    assert installed.refusal() == "NVML (libnvidia-ml.so.1) is not here"


def test_its_environment_and_descriptors_are_its_own(installed: Refusing) -> None:
    seen = installed.gpu.folder / "seen"
    installed.program(
        f'{{ env; for fd in /proc/$$/fd/*; do readlink $fd; done; }} >>{seen}; exec "$REAL" "$@"'
    )
    secret = os.open(installed.gpu.folder / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    with installed.gpu.start_worker():
        pass
    lines = seen.read_text().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert "LD_PRELOAD" not in names and {"LD_LIBRARY_PATH", "AFFINODE_SIM_DIR"} <= names
    assert not [name for name in names if name.startswith("AFFINODE_") and "SIM" not in name]
    assert "/dev/null" in lines and not [line for line in lines if "secret" in line or "socket:" in line]
    os.close(secret)


@pytest.mark.long
def test_nvml_that_falls_silent_keeps_a_process_where_it_is(installed: Refusing) -> None:
    silent, looks = installed.gpu.folder / "silent", installed.gpu.folder / "looks"
    installed.program(f'echo >>{looks}; test -e {silent} && exec sleep 60; exec "$REAL" "$@"')
    with installed.gpu.start_worker() as running:
        assert not running.park_deep().text and running.peer.page().depth == Depth.CONTEXT
        silent.touch()
        kept = running.peer.reply_to(running.peer.command(RESUME))
        assert kept.status == NO_GPU_ROOM and "in time" in kept.text
        assert running.peer.page().depth == Depth.CONTEXT
        silent.unlink()
        before = len(looks.read_text())
        assert running.peer.resume().status == OK
        assert len(looks.read_text()) - before == 1, "a resume costs one look"
        silent.touch()
        reply = running.peer.reply_to(running.peer.command(PARK, argument=MoveFlag.CONTEXT))
        assert reply.status == OK and "in time" in reply.text
        assert running.peer.page().depth < Depth.CONTEXT
        silent.unlink()
        assert running.peer.resume().status == OK

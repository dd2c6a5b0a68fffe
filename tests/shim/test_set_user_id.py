"""A program that runs with another user's rights takes nothing from the environment of the user that started it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest
from shim_machine import Machine


def run(gpu: Machine, program: Path, name: str) -> Path:
    """Run it with a log wanted; the log's path."""
    log = gpu.folder / "open" / f"{name}.log"
    environment = {
        **gpu.bare_environment,
        "AFFINODE_LOG": str(log),
        "AFFINODE_SIM_DIR": str(gpu.folder / "open" / f"{name}.gpu"),
    }
    ran = subprocess.run(
        [program], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "0 wrong\n"), ran.stderr
    return log


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program that runs as another user")
def test_a_set_user_id_program_writes_no_log_where_its_environment_says(gpu: Machine, native: Path) -> None:
    """It is linked to the shim, since the loader preloads nothing into such a program."""
    if os.statvfs(gpu.folder).f_flag & os.ST_NOSUID:
        pytest.skip("no program here runs as another user")
    gpu.folder.chmod(0o711)
    libraries = gpu.folder / "lib"
    libraries.mkdir()
    shutil.copy(native / "libaffinode.so", libraries)
    shutil.copy(native / "libaffinode-sim-cuda.so", libraries / "libcuda.so.1")
    (gpu.folder / "open").mkdir()
    (gpu.folder / "open").chmod(0o777)
    linked = [
        f"-L{libraries}",
        "-l:libaffinode.so",
        "-l:libcuda.so.1",
        f"-Wl,--no-as-needed,-rpath,{libraries}",
    ]
    program = gpu.compile("small.c", linked[-1], *linked[:-1], name="small")
    assert run(gpu, program, "own").exists()
    os.chown(program, pwd.getpwnam("nobody").pw_uid, -1)
    program.chmod(0o4755)
    assert not run(gpu, program, "other").exists()

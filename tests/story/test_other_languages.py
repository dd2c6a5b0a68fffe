"""Not only Python: a Bash kernel whose C program uses CUDA, linked to the driver or finding it by dlsym."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from story_stage import SMALL

PROGRAM = Path(__file__).parents[1] / "shim" / "processes" / "small.c"
HANDLE = '-DHANDLE=dlopen("libcuda.so.1", RTLD_NOW)'
CC = os.environ.get("CC", "cc")


@pytest.mark.parametrize("how", ["linked", pytest.param("dlsym", marks=pytest.mark.long)])
def test_a_c_program_of_a_bash_kernel_is_tracked_and_parked_the_same_way(stage, native, how):
    s = stage(**SMALL)
    program = s.machine.folder / "small"
    driver = s.machine.folder / "libcuda.so.1"
    driver.unlink(missing_ok=True)
    driver.symlink_to(native / "libaffinode-sim-cuda.so")
    found_by = [HANDLE, "-ldl"] if how == "dlsym" else [f"-L{driver.parent}", "-l:libcuda.so.1"]
    subprocess.run([CC, "-O1", "-w", "-o", str(program), str(PROGRAM), *found_by], check=True, timeout=60)
    folder = Path(s.machine.environment["JUPYTER_DATA_DIR"]) / "kernels" / "bash"
    folder.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "Bash", "language": "bash"})
    )

    kernel = s.server.start_kernel("bash", "shell.ipynb")
    # The program answers a byte on its standard input with a check of its memory.
    kernel.run(f"coproc GPU {{ {program}; }}; read -u ${{GPU[0]}} first; echo $first")
    s.wait(kernel, "resident")
    seen = s.seen(kernel)
    assert [process["command"] for process in seen["processes"]] == ["small"]
    s.park(kernel)
    seen = s.seen(kernel)
    assert (seen["residency"], seen["parked_bytes"], seen["language"]) == ("parked", 4 << 20, "bash")
    assert s.ok(kernel, "echo $((6 * 7))") == "42"
    assert "0 wrong" in s.ok(kernel, "printf x >&${GPU[1]}; read -u ${GPU[0]} answer; echo $answer")
    assert s.seen(kernel)["resumes"] == 1

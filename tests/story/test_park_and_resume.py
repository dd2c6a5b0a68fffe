"""A kernel gives its GPU back while no cell computes, and gets it again with every byte where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from story_stage import MIB, SMALL


def used_bytes(machine) -> int:
    return machine.node()["gpus"][0]["used_bytes"]


def test_an_idle_kernel_is_parked_and_its_next_computing_cell_brings_it_back(stage):
    s = stage(**SMALL)
    s.policy(park_when="idle", idle_timeout_s=2)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 24); gpu.allocate('small', 1); gpu.add('a', 3); x = 41")
    s.until(lambda: s.residency(kernel) != "resident")
    assert s.seen(kernel)["idle_s"] >= 2
    s.wait(kernel, "parked")
    seen = s.seen(kernel)
    assert seen["parked_bytes"] == 24 * MIB
    assert "24 MiB safe in RAM" in seen["text"] and "simulated" in seen["text"]
    s.until(lambda: used_bytes(s.machine) < 24 * MIB)  # NVML is sampled

    assert s.ok(kernel, "x + 1") == "42"
    s.ok(kernel, "import gc; y = [i for i in range(1000)]; gc.collect()")
    s.ok(kernel, "ok(cu.cuMemGetInfo())")
    ask = "print(*(int(v) for v in ok(cu.cuMemGetAddressRange(int(gpu.blocks['a'][0]) + 5))))"
    base, size = s.ok(kernel, ask).split()
    assert int(size) == 24 * MIB and int(base) == int(s.ok(kernel, "int(gpu.blocks['a'][0])"))
    kind = "cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, gpu.blocks['a'][0])"
    assert "DEVICE" in s.ok(kernel, f"str(ok({kind}))").upper() or s.ok(kernel, f"int(ok({kind}))") == "2"
    assert s.residency(kernel) == "parked"

    assert s.ok(kernel, "gpu.add('a', 4); gpu.check('a')") == "True"
    s.until(lambda: s.seen(kernel)["resumes"] == 1)  # a shim counts a resume after it lets calls go on


@pytest.mark.long
def test_del_while_parked_neither_resumes_nor_hangs_and_gives_host_memory_back(stage):
    s = stage(**SMALL)
    s.policy(park_when="idle")  # else the cell itself announces that the GPU is about to be used
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 24); gpu.allocate('b', 12); gpu.allocate('tiny', 1)")
    s.park(kernel)
    s.ok(kernel, "gpu.free('a'); gpu.free('tiny')")
    s.until(lambda: s.seen(kernel)["parked_bytes"] == 12 * MIB)
    assert s.residency(kernel) == "parked"
    assert s.ok(kernel, "gpu.check('b')") == "True"


@pytest.mark.long
def test_by_default_no_kernel_is_parked_without_need(stage):
    s = stage(**SMALL)
    s.policy(idle_timeout_s=0.5)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 24)")
    s.until(lambda: s.seen(kernel)["eligible"])
    other = s.kernel()
    s.ok(other, "gpu.allocate('b', 2)")
    s.park(other)  # the controller has decided meanwhile
    assert (s.residency(kernel), s.seen(kernel)["parks"]) == ("resident", 0)


FLOOD = 12_000  # of some 2 KiB: several times what fits into ZMQ's queues and the sockets' buffers


@pytest.mark.long
def test_a_flood_of_output_with_a_stalled_reader_does_not_keep_the_gpu(stage):
    s = stage(**SMALL)
    s.policy(park_when="idle", idle_timeout_s=2)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 24)")
    # This client's channels are not read while the outputs come.
    kernel.client.execute(f"for i in range({FLOOD}): display({{'text/plain': 'x' * 2000}}, raw=True)")
    s.wait(kernel, "parked")
    reader, outputs = kernel.client.iopub_channel, 0
    while reader.msg_ready():
        outputs += reader.get_msg()["msg_type"] == "display_data"
    assert 0 < outputs < FLOOD, "nothing was lost: the test no longer shows anything"
    kernel.close()


def test_what_cannot_move_is_named_everywhere_and_the_rest_moves(stage, wait_until):
    s = stage(**SMALL)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 24)")
    s.ok(kernel, "managed = ok(cu.cuMemAllocManaged(8 << 20, cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))")
    s.ok(kernel, "pooled = ok(cu.cuMemAllocAsync(4 << 20, 0)); ok(cu.cuCtxSynchronize())")
    # While it may be used, all of managed memory may be on the GPU; a park sends it to the host.
    wait_until(lambda: {f["reason"] for f in s.seen(kernel)["unmovable"]} == {"managed", "pool"})
    s.park(kernel)
    seen = s.seen(kernel)
    assert seen["parked_bytes"] == 24 * MIB
    assert [(f["reason"], f["bytes"]) for f in seen["unmovable"]] == [("pool", 4 * MIB)]
    assert "pool" in seen["unmovable"][0]["text"]
    assert "pool" in s.machine.affinode("status").stdout
    status, rest = s.server.affinode(f"kernels/{kernel.id}")
    assert status == 200 and rest["unmovable"][0]["reason"] == "pool"
    assert "pool" in s.ok(kernel, "%gpu_status")
    assert s.ok(kernel, "gpu.check('a')") == "True"


def test_magics_park_hold_and_release(stage):
    s = stage(**SMALL)
    kernel = s.kernel()
    s.ok(kernel, "gpu.allocate('a', 24)")
    assert "24 MiB" in s.ok(kernel, "%gpu_park")
    assert s.residency(kernel) == "parked"
    assert s.ok(kernel, "gpu.check('a')") == "True"
    inside = s.ok(kernel, "%%gpu_park\nprint(sum(range(10)))")
    assert "45" in inside and s.residency(kernel) == "parked"
    assert "kept" in s.ok(kernel, "%gpu_hold 1h")
    assert 3000 < s.seen(kernel)["held_for_s"] <= 3600
    s.ok(kernel, "%gpu_release")
    assert s.seen(kernel)["held_for_s"] is None


# ---- not only Python

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
    s.until(lambda: s.seen(kernel)["resumes"] == 1)

"""A kernel whose cell started a second process that uses the GPU: both give it back, or none; both get it back."""

from __future__ import annotations

import os

import pytest
from story_cells import SETUP
from story_stage import MIB, MORE, SMALL

# `tell(code)` runs code in a second process, which has a `gpu` of its own, and gives what the code's last line is.
CHILD = (
    SETUP
    + """
import sys
for line in sys.stdin:
    *before, last = eval(line)
    for statement in before:
        exec(statement)
    print(repr(eval(last)), flush=True)
"""
)
START_CHILD = f"""
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
def tell(*lines):
    print(repr(lines), file=child.stdin, flush=True)
    return eval(child.stdout.readline())
"""
# The kernel itself: memory on both GPUs, the second one's reached from the first by peer access.
TWO_GPUS = """
gpu.allocate("a", 8, seed=5)
other = ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(1))))
ok(cu.cuCtxSetCurrent(other))
far = ok(cu.cuMemAlloc(8 << 20))
ok(cu.cuCtxEnablePeerAccess(gpu.context, 0))
ok(cu.cuCtxSetCurrent(gpu.context))
ok(cu.cuCtxEnablePeerAccess(other, 0))
ok(cu.cuMemcpyDtoD(far, gpu.blocks["a"][0], 8 << 20))

def check_far(seed):
    found = numpy.empty(2 << 20, dtype=numpy.uint32)
    ok(cu.cuMemcpyDtoH(found.ctypes.data, far, 8 << 20))
    expected = numpy.arange(2 << 20, dtype=numpy.uint32) * numpy.uint32(2654435761) + numpy.uint32(seed)
    return bool((found == expected).all())
"""


class Group:
    """The kernel, its child, and what is asked about them."""

    def __init__(self, stage, kernel):
        self.stage = stage
        self.kernel = kernel

    def ask_to_park(self, **options):
        return self.stage.machine.ask("POST", f"/kernels/{self.kernel.id}/park", options)

    def residencies(self) -> set[str]:
        return {process["residency"] for process in self.stage.seen(self.kernel).get("processes", [])}

    def counts(self) -> tuple[int, int]:
        seen = self.stage.seen(self.kernel)
        return seen["parks"], seen["resumes"]

    def tell(self, *lines: str) -> str:
        return self.stage.ok(self.kernel, f"print(tell(*{lines!r}))")

    def check(self) -> None:
        """Every byte of both is right, and the second GPU is reached from the first as before."""
        assert self.stage.ok(self.kernel, 'print(gpu.check("a"), check_far(5))') == "True True"
        assert self.tell("gpu.check('b')") == "True"
        self.stage.ok(self.kernel, 'ok(cu.cuMemcpyDtoD(far, gpu.blocks["a"][0], 8 << 20))')
        assert self.stage.ok(self.kernel, "print(check_far(5))") == "True"


@pytest.fixture
def group(stage):
    """`group(copy_rate=…)`: 16 MiB in the kernel on two GPUs, `child_mib` in its child on the first."""

    def make(child_mib: int = 32, **options) -> Group:
        s = stage(**{**SMALL, "memory": "256MiB"}, gpus=2, **options)
        kernel = s.kernel()
        s.ok(kernel, TWO_GPUS)
        s.ok(kernel, START_CHILD)
        made = Group(s, kernel)
        made.tell(f"gpu.allocate('b', {child_mib}, seed=9)", "True")
        s.until(
            lambda: (
                len(s.seen(kernel)["processes"]) == 2
                and s.seen(kernel)["resident_bytes"] == (16 + child_mib) * MIB
            )
        )
        return made

    return make


@pytest.mark.long
def test_while_one_process_computes_none_is_parked_and_then_all_are_together(group):
    g = group()
    g.tell("flag = ctypes.c_uint32.from_address(ok(cu.cuMemHostAlloc(4, 0)))", "True")
    g.tell("gpu.launch(b'affinode_wait_flag', (ctypes.addressof(flag), ctypes.c_uint64))", "True")
    status, answer = g.ask_to_park()
    assert (status, answer["error"]) == (409, "busy")
    assert g.residencies() == {"resident"}
    assert g.counts() == (0, 0), "none was parked, not even for a moment"

    g.tell("flag.value = 1", "ok(cu.cuCtxSynchronize())", "True")
    g.stage.park(g.kernel)
    assert g.residencies() == {"parked"}
    assert g.stage.seen(g.kernel)["parked_bytes"] == 48 * MIB
    assert g.counts() == (2, 0)

    assert g.tell("gpu.check('b')") == "True"
    g.stage.wait(g.kernel, "resident")
    assert g.residencies() == {"resident"}, "a call of one brings both back"
    g.stage.until(lambda: g.counts() == (2, 2))  # a shim counts a resume after it lets calls go on
    g.check()


@pytest.mark.long
def test_a_call_to_the_ready_process_while_the_other_still_copies_does_not_wait(group):
    """The child's memory takes twelve seconds at the throttled rate; the kernel itself is ready long before."""
    g = group(child_mib=4, copy_rate="8MiB")
    g.tell(MORE.format(mib=96), "True")
    assert g.ask_to_park(wait=False)[0] == 202
    g.stage.until(lambda: g.residencies() == {"parking"})
    g.stage.ok(g.kernel, "ok(cu.cuMemsetD8(gpu.blocks['a'][0], 0, 1)); ok(cu.cuCtxSynchronize())")
    g.stage.until(lambda: g.residencies() == {"resident"})
    assert g.counts() == (0, 0), "the park was given up instead of waited for"
    assert g.tell("gpu.check('b')") == "True"


@pytest.mark.long
def test_a_child_that_is_killed_while_both_are_parked_does_not_hold_up_its_parent(group):
    g = group()
    g.stage.park(g.kernel)
    g.stage.ok(g.kernel, "child.kill(); child.wait()")
    g.stage.ok(g.kernel, "gpu.add('a', 0)")
    assert g.stage.ok(g.kernel, 'print(gpu.check("a"), check_far(5))') == "True True"


@pytest.mark.long
def test_a_controller_killed_while_a_kernel_of_two_processes_parks_loses_nothing(group):
    """Wherever the kill finds them, afterwards both are where a call finds them, with every byte."""
    g = group()
    board = g.stage.board
    for call in ("cuMemcpyDtoHAsync", "cuMemUnmap"):  # while it copies, and while the copied memory goes
        board.arm(f"{call}:HOLD:1")
        g.ask_to_park(wait=False)
        g.stage.until(board.held)
        os.kill(g.stage.machine.controller_pid(), 9)
        board.arm("")
        g.stage.until(lambda: g.stage.seen(g.kernel).get("processes"))
        g.check()
        g.stage.until(lambda: g.residencies() == {"resident"})

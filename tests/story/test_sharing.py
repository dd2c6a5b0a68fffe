"""More kernels than the GPU has room for: every kernel is served, in order, and none sees out-of-memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from story_stage import SMALL


@pytest.mark.long
def test_three_kernels_worth_two_and_a_half_gpus_all_finish(stage):
    s = stage(**SMALL, idle_timeout_s=0.3)
    kernels = [s.kernel(f"n{i}.ipynb") for i in range(3)]
    cells = [
        [
            kernel.submit(code)
            for code in (
                f"gpu.allocate('a', 40, seed={i + 1})",
                "gpu.add('a', 1); assert gpu.check('a')",
                "gpu.add('a', 2); assert gpu.check('a')",
            )
        ]
        for i, kernel in enumerate(kernels)
    ]
    for kernel, theirs in zip(kernels, cells, strict=True):
        for cell in theirs:
            done = kernel.wait(cell, 150)
            assert done.status == "ok", (done.traceback, s.machine.controller_log())
    for kernel in kernels:
        assert s.ok(kernel, "gpu.check('a')", 60) == "True"


def test_two_kernels_change_places_with_all_their_contents(stage):
    s = stage(**SMALL, idle_timeout_s=0.3)
    kernels = [s.kernel() for _ in range(2)]
    for seed, kernel in enumerate(kernels):
        s.ok(kernel, f"gpu.allocate('a', 40, seed={seed + 1})")
    for kernel in kernels:
        assert s.ok(kernel, "gpu.add('a', 1); gpu.check('a')") == "True"
    assert "others leave the GPU for it" in s.machine.controller_log()


@pytest.mark.long
def test_the_first_waiter_is_served_first(stage):
    s = stage(**SMALL, idle_timeout_s=0.3)
    busy, first, second = (s.kernel(f"{name}.ipynb") for name in ("busy", "first", "second"))
    # The resident one computes, so no other can be served until it ends.
    s.hold(busy)
    for kernel in (first, second, busy):
        s.ok(kernel, "gpu.allocate('a', 40)")
    s.wait(first, "parked"), s.wait(second, "parked")
    one = first.submit("gpu.add('a', 1); gpu.check('a')")
    s.wait(first, "queued")
    two = second.submit("gpu.add('a', 1); gpu.check('a')")
    s.wait(second, "queued")
    assert (s.seen(first)["place"], s.seen(second)["place"]) == (1, 2)
    assert "1st" in s.seen(first)["text"] and "2nd" in s.seen(second)["text"]
    s.machine.ask("POST", f"/kernels/{busy.id}/release", {})
    done = first.wait(one, 60)
    assert done.text == "True", done
    assert second.wait(two, 60).text == "True"
    s.until(lambda: f"resumed {second.id}" in s.machine.controller_log())  # it hears of it after the cell
    log = s.machine.controller_log()
    assert log.index(f"resumed {first.id}") < log.rindex(f"resumed {second.id}")


def test_a_long_wait_is_shown_in_the_cell_and_leaves_nothing_there(stage):
    s = stage(**SMALL, idle_timeout_s=0.3)
    holder, waiter = s.kernel(), s.kernel()
    s.hold(holder)
    s.ok(holder, "gpu.allocate('a', 37)")
    before = len(s.server.log())
    cell = waiter.submit("gpu.allocate('a', 37); gpu.check('a')")
    shown = waiter.wait_for_display(cell)
    reason = r"another notebook of yours is kept on the GPU until .+; `%gpu_release` there ends that"
    ending = "Interrupt the kernel to stop waiting."
    assert re.fullmatch(rf"Waiting for the GPU \(1st in line\): {reason}\. {ending}", shown), shown
    s.machine.ask("POST", f"/kernels/{holder.id}/release", {})
    done = waiter.wait(cell)
    assert done.text == "True", done
    displays = done.displays  # the last may have changed once more before: the kernel was in line no more
    while displays[-1:] != [""]:  # a thread of the kernel empties it, now and then after the cell's end
        content = waiter.client.get_iopub_msg(timeout=60)["content"]
        if content.get("transient", {}).get("display_id"):
            displays.append(content["data"]["text/plain"])
    assert "waiting for the GPU" not in done.stderr + s.server.log()[before:]


def test_a_request_that_can_never_fit_sees_its_own_out_of_memory(stage):
    s = stage(**SMALL, idle_timeout_s=0.3)
    kernel = s.kernel()
    done = kernel.run("gpu.allocate('a', 2000)", 30)
    assert done.status == "error" and "OUT_OF_MEMORY" in "".join(done.traceback), done
    assert s.ok(kernel, "gpu.allocate('a', 12); gpu.check('a')") == "True"


@pytest.mark.long
def test_a_queued_kernel_that_holds_a_lock_and_the_resident_cell_that_waits_for_it_both_finish(
    stage, wait_until
):
    """Neither would ever end if an open cell could not be parked while it does not use the GPU."""
    s = stage(**SMALL, idle_timeout_s=0.3)
    holder, waiter = s.kernel(), s.kernel()  # the first starts the controller, too
    s.policy(contended_idle_timeout_s=0.25)
    s.ok(holder, "gpu.allocate('a', 35)")
    s.ok(holder, "import fcntl; lock = open('lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)")
    s.ok(waiter, "gpu.allocate('a', 35)")  # the holder yields
    s.wait(holder, "parked")
    resident = waiter.begin(
        "import fcntl\ngpu.add('a', 1)\nlock = open('lock', 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
        "gpu.add('a', 1)\nprint(gpu.check('a'))"
    )
    wait_until(lambda: s.seen(waiter)["cell_open"])
    queued = holder.submit("gpu.add('a', 5); print(gpu.check('a')); fcntl.flock(lock, fcntl.LOCK_UN)")
    assert "True" in holder.wait(queued, 60).text
    assert "True" in waiter.wait(resident, 60).text
    assert s.seen(waiter)["parks"] >= 1


LOOP = """
import pathlib, time
gpu.add('a', 1)
pathlib.Path('computes').touch()
while not pathlib.Path('enough').exists():
    gpu.add('a', 1)
    time.sleep(0.01)
print(gpu.check('a'))
"""


def begin_to_compute(s, kernel):
    """The cell; it ends when there is a file `enough`."""
    cell = kernel.submit(LOOP)
    s.until(Path(s.machine.work, "computes").exists)
    return cell


@pytest.mark.long
def test_a_kernel_waits_while_as_many_compute_as_may_and_is_told_so(stage):
    """There is GPU memory for both."""
    s = stage(**SMALL, idle_timeout_s=0.3)
    computes, waits = s.kernel(), s.kernel()
    for kernel in (computes, waits):
        s.ok(kernel, "gpu.allocate('a', 12)")
    s.policy(max_computing_per_gpu=1)
    s.park(waits)
    loop = begin_to_compute(s, computes)
    cell = waits.submit("gpu.add('a', 1); gpu.check('a')")
    s.until(lambda: (s.seen(waits).get("wait") or {}).get("code") == "compute")
    told = s.seen(waits)
    assert told["wait_reason"] == "computing on GPU 0: 1 kernel, as many as allowed"
    assert told["estimate_s"] is None and told["wait"]["args"]["kernels"] == 1
    Path(s.machine.work, "enough").touch()
    assert computes.wait(loop).text.strip() == "True"
    assert waits.wait(cell).text == "True"
    assert not s.seen(computes)["parks"]

"""A GPU full of busy kernels, with a real server, real kernels and the shim: turns, and the end of the newest."""

from __future__ import annotations

from gpu_cells import SETUP

BUSY = """
for _ in range({rounds}):
    assert small.checksum() == small_before
    time.sleep(0.005)
assert block.checksum() == before
"""


def begin(server, mib=265):
    """A kernel with a block of GPU memory."""
    kernel = server.start_kernel()
    done = kernel.run(
        f"{SETUP}\nblock, small = Block({mib}, seed=7), Block(2, seed=8)\n"
        "before, small_before = block.checksum(), small.checksum()"
    )
    assert done.status == "ok", done
    return kernel


def test_two_long_cells_take_turns_and_both_compute_right(gpu_server, policy, wait_until):
    policy(when_full="time_slice", quantum_s=0.5)
    first = begin(gpu_server)
    gpu_server.affinode(f"kernels/{first.id}/park", "POST", {})
    second = begin(gpu_server)
    cells = [(kernel, kernel.submit(BUSY.format(rounds=100))) for kernel in (second, first)]
    for kernel, message_id in cells:
        done = kernel.wait(message_id, timeout=120)
        assert done.status == "ok", done
    wait_until(lambda: first.state()["resumes"] >= 1 and second.state()["parks"] >= 1)
    assert "its turn of 0.5 s is over" in gpu_server.machine.controller_log()


def test_the_newest_kernel_is_shut_down_by_its_server_for_an_older_one(gpu_server, policy, wait_until):
    policy(when_full="terminate_newest", end_after_s=0.5)
    old = begin(gpu_server)
    gpu_server.affinode(f"kernels/{old.id}/park", "POST", {})
    young = begin(gpu_server)
    young.submit(BUSY.format(rounds=100_000))
    done = old.run("print(block.checksum() == before)")
    assert done.text == "True\n", done
    wait_until(lambda: not young.alive())
    assert old.alive()

"""`jupyter affinode bench` on the simulated GPU: a real run, its JSON, its refusals, and that it cleans up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from live_server import exists

from jupyter_affinode.bench.exchange import HANDED_OVER
from jupyter_affinode.bench.sizes import GIB, MIB, DoesNotFit, Room, make_plan, whole_chunks


def report_of(machine, *arguments, status=0):
    """Run the benchmark; what it writes as JSON, and its process."""
    file = machine.work / "bench.json"
    done = machine.affinode("bench", *arguments, "--json", str(file), timeout=170)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(file.read_text()), done


@pytest.mark.long
def test_a_whole_run_on_the_simulated_gpu(gpu_machine):
    report, done = report_of(gpu_machine, "--quick", "--warm-host=0.125")
    assert done.stdout.startswith("SIMULATED")
    assert report["simulated"] and report["complete"] and report["skipped"] == {} and report["wrong"] == []
    assert report["ceiling"]["to_host_bytes_per_s"] > 0 and report["ratios"]["resume / pinned ceiling"] > 0
    assert all(row["median_s"] > 0 and row["mended_chunks"] == 0 for row in report["ours"])
    assert report["warmed_host"]["bytes"] == 128 * MIB
    parks = {f"park, {what}" for what in ("all changed", "unchanged", "1 % changed")}
    assert {"first park", "resume", *parks} <= {row["name"] for row in report["ours"]}
    for row in report["ours"]:
        assert row["moved_bytes"] >= row["bytes"], row
    rows = {row["name"]: row for row in report["ours"]}
    assert rows["park, all changed"]["copied_bytes"] == 64 * MIB
    assert rows["park, unchanged"]["copied_bytes"] == 0
    assert rows["park, 1 % changed"]["copied_bytes"] == 2 * MIB  # one chunk of 32
    assert done.stderr.count("\n") >= 4  # progress


@pytest.mark.long
def test_exchanges_with_host_memory_for_two_and_for_one(gpu_machine):
    """Contents are compared after each, and neither process has host memory beside its lots."""
    report, done = report_of(gpu_machine, "--exchange", "--sizes=0.3125", "--repeats=1")
    cases, steps = report["exchange"]["cases"], report["exchange"]["steps"]
    for name in ("one after the other", "exchange", *HANDED_OVER):
        assert len(cases[name]) == 1 and cases[name][0]["back_s"] > 0
        assert f"{name}: " in done.stdout
        at_once = name != "one after the other"
        assert any("part by part in" in step for step in steps[name]) is at_once, steps[name]
        assert all(f"    {step}\n" in done.stdout for step in steps[name])


def test_more_than_fits_is_refused_with_the_figures(gpu_machine):
    done = gpu_machine.affinode("bench", "--sizes=64")
    assert done.returncode == 1 and done.stdout == ""
    assert "64 GiB do not fit" in done.stderr and "GPU memory" in done.stderr


def test_without_a_gpu_it_says_so(machine):
    done = machine.affinode("bench")
    assert done.returncode == 1 and "no CUDA driver" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_leaves_nothing_running(gpu_machine, wait_until, number):
    bench = gpu_machine.start(
        sys.executable,
        "-m",
        "jupyter_affinode.cli",
        "bench",
        "--sizes=0.25",
        "--repeats=1000",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert bench.stderr is not None
    wait_until(lambda: children(bench.pid))
    while "ours" not in bench.stderr.readline():
        assert bench.poll() is None
    wait_until(lambda: children(bench.pid))
    started = children(bench.pid)
    bench.send_signal(number)
    assert bench.wait(timeout=60) in (130, 143)
    wait_until(lambda: not any(exists(pid) for pid in started))
    assert "Traceback" not in bench.stderr.read()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


DAMAGE = """
import ctypes
from jupyter_affinode.bench.test_pattern import Content
from jupyter_affinode.bench.driver import Driver
driver = Driver()
content = Content(driver, 32 << 20, 20 << 20)
found = [content.differing_words()]
for change in (lambda: content.change_all(1), lambda: content.change_some(0.2, 2), lambda: content.change_all(0)):
    change()
    found.append(content.differing_words())
    driver.call("cuMemsetD8_v2", ctypes.c_uint64(content.address + (5 << 20)), 77, ctypes.c_size_t(9))
    found.append(content.differing_words())
print(found)
"""


@pytest.mark.long
def test_a_wrong_byte_is_seen(gpu_machine):
    done = gpu_machine.affinode("simulate", "--", sys.executable, "-c", DAMAGE)
    assert done.stdout.strip() in ("[0, 0, 2, 2, 4, 0, 2]", "[0, 0, 2, 2, 2, 0, 2]"), done


def test_the_time_limit_leaves_out_what_comes_later(gpu_machine):
    report, _ = report_of(gpu_machine, "--quick", "--time=0", status=1)
    assert report["skipped"] == dict.fromkeys(("ceiling", "ours"), "the time of 0 s was over")


def test_plans_fit_the_machine():
    room = Room.of(140 * GIB, 100 * GIB, simulated=False)
    assert make_plan(room, simulated=False, quick=False).sizes == (1 * GIB, 8 * GIB, 32 * GIB)
    small = Room.of(140 * GIB, 12 * GIB, simulated=False)
    assert make_plan(small, simulated=False, quick=False).largest == 8 * GIB
    with pytest.raises(DoesNotFit, match=r"host memory.*--warm-host"):
        make_plan(small, simulated=False, quick=False, sizes=[32 * GIB])
    with pytest.raises(ValueError):
        whole_chunks("0.001")

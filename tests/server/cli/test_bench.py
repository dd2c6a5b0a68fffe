"""`jupyter affinode bench` on the simulated GPU: a real run, its JSON, its refusals, and that it cleans up."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from live_server import exists

from jupyter_affinode.bench import resume_latency
from jupyter_affinode.bench.exchange import HANDED_OVER
from jupyter_affinode.bench.measure import WrongContent
from jupyter_affinode.bench.report import ratios
from jupyter_affinode.bench.sizes import GIB, MIB, DoesNotFit, Room, make_plan, whole_chunks


def report_of(machine, *arguments, status=0):
    """Run the benchmark; what it writes as JSON, and its process."""
    file = machine.work / "bench.json"
    done = machine.affinode("bench", *arguments, "--json", str(file), timeout=170)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(file.read_text()), done


@pytest.mark.long
def test_a_controller_that_serves_the_gpu_is_named(gpu_machine):
    gpu_machine.start_controller()
    done = gpu_machine.affinode("bench", "--quick", "--parts=wake", timeout=110)
    assert done.returncode == 1
    assert "is served by process" in done.stdout and str(gpu_machine.socket) in done.stdout, done.stdout


@pytest.mark.long
def test_a_whole_run_on_the_simulated_gpu(gpu_machine):
    svg_file = gpu_machine.work / "bench.svg"
    report, done = report_of(gpu_machine, "--quick", "--warm-host=0.125", "--svg", str(svg_file))
    assert done.stdout.startswith("SIMULATED")
    assert report["simulated"] and report["complete"] and report["skipped"] == {} and report["wrong"] == []
    assert report["ceiling"]["to_host_bytes_per_s"] > 0 and report["driver"]["cases"][0]["park_s"] > 0
    assert len(report["wake"]) == 2 and all(report["wake"].values())
    assert all(row["median_s"] > 0 and row["mended_chunks"] == 0 for row in report["ours"])
    assert report["warmed_host"]["bytes"] == 128 * MIB
    parks = {f"park, {what}" for what in ("all changed", "unchanged", "1 % changed", "zeros")}
    assert {"first park", "resume", *parks} <= {row["name"] for row in report["ours"]}
    assert {row["block_bytes"] for row in report["ours"]} >= {2 * MIB, 20 * MIB}
    for row in report["ours"]:
        assert row["moved_bytes"] >= row["bytes"], row
    rows = {row["name"]: row for row in report["ours"] if row["block_bytes"] == 64 * MIB}
    assert rows["park, all changed"]["copied_bytes"] == 64 * MIB
    assert rows["park, unchanged"]["copied_bytes"] == 0
    assert rows["park, 1 % changed"]["copied_bytes"] == 2 * MIB  # one chunk of 32
    zeros = next(row for row in report["ours"] if row["name"] == "park, zeros")
    assert zeros["host_bytes"] == 0 and zeros["zero_bytes"] == zeros["bytes"]
    picture = ElementTree.parse(svg_file).getroot()
    assert any("SIMULATED" in (text.text or "") for text in picture.iter("{http://www.w3.org/2000/svg}text"))
    assert done.stderr.count("\n") >= 8  # progress


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


@pytest.mark.long
def test_context_depth_is_measured_beside_memory_depth(gpu_machine):
    gpu_machine.simulate(memory="4GiB")
    options = ("--quick", "--sizes=0.0625", "--parts=ours,driver", "--depth=context")
    report, _ = report_of(gpu_machine, *options)
    deep = {row["name"]: row for row in report["ours"] if row["depth"] == "context"}
    assert deep["park, all changed"]["depths"] == [2] and deep["resume"]["seconds"]
    assert "resume at context depth: seconds beyond memory depth" in report["ratios"]


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
        "--parts=ours",
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


def test_other_contents_after_a_resume_through_a_controller_are_wrong_and_not_just_unmeasured(
    monkeypatch, tmp_path
):
    class Child(contextlib.nullcontext):
        def ask(self, name, **_arguments):
            return {"differing_words": 3} if name == "verify" else {"seconds": 0.1}

    for name in ("ensure_controller", "end_controller", "_until_parked"):
        monkeypatch.setattr(resume_latency, name, lambda *_arguments, **_named: tmp_path)
    child = Child()
    child.enter_result = child
    monkeypatch.setattr(resume_latency, "BenchProcess", lambda **_named: child)
    with pytest.raises(WrongContent, match="3 words"):
        resume_latency.wake_by_controller(tmp_path, MIB, 1, lambda line: None)


def test_the_time_limit_leaves_out_what_comes_later(gpu_machine):
    report, _ = report_of(gpu_machine, "--quick", "--parts=ceiling,ours", "--time=0", status=1)
    assert report["skipped"] == dict.fromkeys(("ceiling", "ours"), "the time of 0 s was over")


def test_plans_fit_the_machine():
    room = Room.of(140 * GIB, 100 * GIB, simulated=False)
    assert make_plan(room, simulated=False, quick=False).sizes == (1 * GIB, 8 * GIB, 32 * GIB)
    small = Room.of(140 * GIB, 12 * GIB, simulated=False)
    assert make_plan(small, simulated=False, quick=False).largest == 8 * GIB
    with pytest.raises(DoesNotFit, match=r"host memory.*--warm-host"):
        make_plan(small, simulated=False, quick=False, sizes=[32 * GIB])
    with pytest.raises(DoesNotFit, match="zeros"):
        make_plan(room, simulated=False, quick=False, zeros=200 * GIB)
    with pytest.raises(ValueError):
        whole_chunks("0.001")


def test_ratios_are_of_the_largest_size():
    def row(name, size, block, seconds, depth="memory", host="private"):
        return {
            "name": name,
            "bytes": size,
            "block_bytes": block,
            "depth": depth,
            "host": host,
            "median_s": seconds,
        }

    report = {
        "ceiling": {"to_host_bytes_per_s": 50 * GIB, "to_device_bytes_per_s": 40 * GIB},
        "driver": {"cases": [{"bytes": 32 * GIB, "park_s": 12.0, "resume_s": 4.0}]},
        "ours": [
            row("first park", 32 * GIB, GIB, 2.0),
            row("park, all changed", 32 * GIB, GIB, 0.8),
            row("resume", 32 * GIB, GIB, 1.0),
            row("first park", 32 * GIB, 2 * MIB, 2.0),
            row("park, all changed", 32 * GIB, 2 * MIB, 2.0),
            row("resume", 32 * GIB, 2 * MIB, 1.5),
            row("resume", 32 * GIB, GIB, 1.25, "context"),
            row("resume", GIB, GIB, 0.001),
            row("first park", 32 * GIB, GIB, 1.0, host="lot"),
            row("park, zeros", 64 * GIB, GIB, 0.1),
        ],
    }
    found = ratios(report)
    assert found["resume / pinned ceiling"] == pytest.approx(0.8)
    assert found["later park, all changed / pinned ceiling"] == pytest.approx(0.8)
    assert found["first park: times faster than the driver"] == pytest.approx(6)
    assert found["first park into a lot: times faster than the driver"] == pytest.approx(12)
    assert found["resume: times faster than the driver"] == pytest.approx(4)
    assert found["resume in 2 MiB blocks / in the largest blocks"] == pytest.approx(1.5)
    assert found["resume at context depth: seconds beyond memory depth"] == pytest.approx(0.25)

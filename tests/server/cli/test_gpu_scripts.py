"""The scripts of tests/gpu, as far as they run on the simulated GPU: that they pass, and that they can fail."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "gpu"
sys.path += map(str, [GPU, GPU / "frameworks", GPU / "sharing", GPU / "driver"])

import exchanges_at_random  # noqa: E402
import many_programs  # noqa: E402
import moves  # noqa: E402
import results  # noqa: E402
import twins  # noqa: E402
from fetched_criu import fetched_criu  # noqa: E402

SUITE = """
import asyncio, os
from jupyter_affinode.bench.driver import Driver
from jupyter_affinode.client.api import ControllerClient
driver, KERNEL = Driver(), os.environ.get("AFFINODE_KERNEL_ID")
def test_holds_memory():
    held = driver.allocate(4 << 20)
    while KERNEL and not asyncio.run(ControllerClient().kernel(KERNEL))["parks"]:
        pass
    driver.free(held)
def test_sees_the_shim():
    assert not {strict} or "affinode" not in os.environ.get("LD_PRELOAD", "")
def test_fails_anyway():
    assert False
"""


def script(machine, name, *arguments, env=None, simulate=False):
    """Run one; with `simulate`, so that it can load the simulated NVML itself."""
    environment = {**machine.environment, **(env or {})}
    through = ["-m", "jupyter_affinode.cli", "simulate", "--", sys.executable] if simulate else []
    return subprocess.run(
        [sys.executable, *through, str(GPU), name, *arguments],
        env=environment,
        cwd=machine.work,
        capture_output=True,
        text=True,
        timeout=280,
    )


def found_by(machine, name, *arguments, **options):
    """What a script writes as JSON that passes, and what it prints."""
    file = machine.work / "found.json"
    done = script(machine, name, *arguments, "--json", str(file), **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text()), done.stdout


@pytest.fixture
def scripts_machine(gpu_machine):
    gpu_machine.simulate(memory="1GiB", gpus=2)
    return gpu_machine


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "random_cycles",
        "exchanges_at_random",
        "side_by_side",
        "two_gpus",
        "ipc",
        "run",
        "numba_suite",
        "against_memory_saver",
    ],
)
def test_without_a_gpu_they_refuse_kindly(machine, name):
    done = script(machine, name)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("this needs")


@pytest.mark.long
def test_all_moves_of_one_process(scripts_machine):
    scripts_machine.simulate(memory="4GiB")
    svg_file = scripts_machine.work / "moves.svg"
    options = ("--quick", "--sizes=0.0625", "--depth=context", f"--svg={svg_file}")
    report, printed = found_by(scripts_machine, "moves", *options)
    assert report["complete"] and not report["wrong"] and report["driver"]["cases"][0]["park_s"] > 0
    assert len(report["wake"]) == 2 and all(report["wake"].values())
    assert {row["block_bytes"] for row in report["ours"]} >= {2 << 20, 20 << 20}
    zeros = next(row for row in report["ours"] if row["name"] == "park, zeros")
    assert zeros["host_bytes"] == 0 and zeros["zero_bytes"] == zeros["bytes"]
    deep = {row["name"]: row for row in report["ours"] if row["depth"] == "context"}
    assert deep["park, all changed"]["depths"] == [2] and deep["resume"]["seconds"]
    assert "resume at context depth: seconds beyond memory depth" in report["ratios"]
    picture = ElementTree.parse(svg_file).getroot()
    assert any("SIMULATED" in (text.text or "") for text in picture.iter("{http://www.w3.org/2000/svg}text"))
    assert "driver's checkpoint: park" in printed and "through a controller" in printed


def test_ratios_of_moves_are_of_the_largest_size():
    def row(name, size, block, seconds, depth="memory", host="private"):
        shown = {"name": name, "bytes": size, "block_bytes": block, "depth": depth, "host": host}
        return {**shown, "median_s": seconds}

    run = moves.Moves.__new__(moves.Moves)
    run.report = {
        "ceiling": {"to_host_bytes_per_s": 50 << 30, "to_device_bytes_per_s": 40 << 30},
        "driver": {"cases": [{"bytes": 32 << 30, "park_s": 12.0, "resume_s": 4.0}]},
        "ours": [
            row("first park", 32 << 30, 1 << 30, 2.0),
            row("park, all changed", 32 << 30, 1 << 30, 0.8),
            row("resume", 32 << 30, 1 << 30, 1.0),
            row("first park", 32 << 30, 2 << 20, 2.0),
            row("park, all changed", 32 << 30, 2 << 20, 2.0),
            row("resume", 32 << 30, 2 << 20, 1.5),
            row("resume", 32 << 30, 1 << 30, 1.25, "context"),
            row("resume", 1 << 30, 1 << 30, 0.001),
            row("first park", 32 << 30, 1 << 30, 1.0, host="lot"),
            row("park, zeros", 64 << 30, 1 << 30, 0.1),
        ],
    }
    found = run.ratios()
    assert found["resume / pinned ceiling"] == pytest.approx(0.8)
    assert found["later park, all changed / pinned ceiling"] == pytest.approx(0.8)
    assert found["first park: times faster than the driver"] == pytest.approx(6)
    assert found["first park into a lot: times faster than the driver"] == pytest.approx(12)
    assert found["resume: times faster than the driver"] == pytest.approx(4)
    assert found["resume in 2 MiB blocks / in the largest blocks"] == pytest.approx(1.5)
    assert found["resume at context depth: seconds beyond memory depth"] == pytest.approx(0.25)


@pytest.mark.long
def test_random_cycles(scripts_machine):
    options = ("--programs=driver API;driver API", "--cycles=8", "--time=250")
    found, _ = found_by(scripts_machine, "random_cycles", *options)
    assert found["passed"] and found["machine"]["simulated"]
    assert all(program["cycles"] >= 8 and program["steps"] > 0 for program in found["programs"])


def test_a_loss_that_differs_is_named():
    def program(*losses):
        return twins.Program("one", None, None, list(losses))  # type: ignore[arg-type]

    assert twins.compare(program("a", "b"), program("a", "b", "c")) == "equal"
    assert "DIFFERENT at step 1" in twins.compare(program("a", "x"), program("a", "b"))
    assert "MISSING" in twins.compare(program("a", "b"), program("a"))
    assert "MISSING" in twins.compare(program(), program())


@pytest.mark.long
def test_exchanges_at_random(scripts_machine):
    options = ("--programs=driver API", "--each=4", "--mib=20:60", "--exchanges=3", "--time=250")
    found, _ = found_by(scripts_machine, "exchanges_at_random", *options)
    assert found["passed"] and found["exchanges"] >= 3
    assert [row[6] for row in found["rows"]] == ["equal"] * 4


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["first_park", "--gib=0.25", "--repeats=1", "--at-once"],
        ["two_users", "--gib=0.125", "--repeats=1", "--time=250"],
    ],
)
def test_moves_through_a_controller(scripts_machine, command):
    found, said = found_by(scripts_machine, *command, simulate=True)
    assert found["rows"] and "WRONG" not in said


def test_exchanges_that_came_to_an_end_are_counted():
    log = """
I resume a (60 MiB): it waited 0 s
I resumed a: 59 MiB in 0.4 s
I resume a (60 MiB): others leave the GPU for it
I resume b (60 MiB): others leave the GPU for it
W b stays parked: there was no room; tried again in 0.1 s
I resumed a: 59 MiB in 0.4 s
I resume b (60 MiB): it waited 0 s
I resumed b: 59 MiB in 0.4 s
I c does not change places: the kernel that waited for the memory does not need it now
"""
    came = exchanges_at_random.exchanges(log)
    assert came.in_exchange == {"a": 1} and came.count == 1 and came.called_off == 1


@pytest.mark.long
def test_memory_shared_between_processes(scripts_machine):
    done = script(scripts_machine, "ipc", "--program=driver", "--rounds=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stay as shared" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.long
def test_two_gpus(scripts_machine):
    done = script(scripts_machine, "two_gpus", "--cases=peer_driver,rank_driver", "--rounds=4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("4/4") == 2


@pytest.mark.long
@pytest.mark.parametrize("elsewhere", [False, True])
def test_programs_that_hibernate_again_and_again(scripts_machine, elsewhere):
    scripts_machine.environment["AFFINODE_CRIU"] = fetched_criu()
    options = [
        "--programs=driver API",
        "--mib=64",
        "--cycles=2",
        "--time=200",
        f"--dir={scripts_machine.work}",
    ]
    options += ["--elsewhere"] if elsewhere else []
    found, said = found_by(scripts_machine, "hibernation_cycles", *options)
    assert found["passed"] and [row[-1] for row in found["rows"]] == ["equal"], said
    assert found["rows"][0][-2].count(">") == elsewhere


@pytest.mark.long
def test_kernels_that_are_ready_against_plain_starts(scripts_machine):
    options = ("--program=driver", "--gib=0.05", "--times=1")
    found, said = found_by(scripts_machine, "warm_kernels", *options)
    assert found["passed"] and [row[-1] for row in found["rows"]] == ["yes", "yes"], said


@pytest.mark.long
def test_a_kernel_that_is_killed_on_its_way_back_and_waits_for_a_full_gpu(scripts_machine):
    criu = fetched_criu()
    options = ["--gib=0.0625", "--cycles=1", "--program=driver", f"--dir={scripts_machine.work}"]
    env = {"AFFINODE_CRIU": criu}
    found, said = found_by(
        scripts_machine, "hibernation", *options, "--killed", "--full", env=env, simulate=True
    )
    assert found["passed"] and [row[-1] for row in found["rows"]] == ["equal"], said


@pytest.mark.long
def test_a_kernel_that_is_carried_to_another_machine(scripts_machine, tmp_path):
    env, pack = {"AFFINODE_CRIU": fetched_criu()}, f"--pack={tmp_path}"
    found_by(scripts_machine, "hibernation_carried", "out", pack, "--part=1", env=env, simulate=True)
    parts = [path.stat().st_size for path in tmp_path.glob("part-*")]
    assert len(parts) > 1 and max(parts) <= 1 << 20
    found, said = found_by(scripts_machine, "hibernation_carried", "in", pack, env=env, simulate=True)
    assert found["passed"] and found["rows"][0][-1] == "equal", said


@pytest.mark.long
def test_kernels_with_the_same_weights_have_them_on_disk_once(scripts_machine):
    scripts_machine.environment["AFFINODE_CRIU"] = fetched_criu()
    sizes = ["--kernels=3", "--gib=0.125", "--own=0.0078125", "--beside=0.00390625"]
    options = ["--program=driver", "--gpu-alone", *sizes, f"--dir={scripts_machine.work}"]
    found, said = found_by(scripts_machine, "weights_once", *options)
    assert found["passed"] and [row[-1] for row in found["rows"]] == ["equal"] * 3, said


@pytest.mark.long
def test_kernels_with_the_same_weights_have_them_in_host_memory_once(scripts_machine):
    sizes = ["--kernels=3", "--gib=0.125", "--own=0.0078125", "--beside=0.03125", "--cycles=1", "--off=2"]
    found, said = found_by(scripts_machine, "weights_in_memory", "--program=driver", *sizes)
    assert found["passed"] and [row[-1] for row in found["rows"]] == ["equal"] * 2, said
    assert found["ratios"]["parks_s"] > 0 < found["ratios"]["resumes_s"]


@pytest.mark.long
@pytest.mark.parametrize("strict", [False, True])
def test_a_suite_under_the_shim_and_without(scripts_machine, strict):
    package = scripts_machine.work / "asuite"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "test_one.py").write_text(SUITE.format(strict=strict))
    file = scripts_machine.work / "found.json"
    path = f"{scripts_machine.work}:{scripts_machine.environment.get('PYTHONPATH', '')}"
    arguments = ["--suite=asuite", "--every=0.3", "--time=250", "--at-once=2", "--json", str(file)]
    # Its pytest processes, a dozen, need none of the plugins that happen to be installed here.
    env = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = script(scripts_machine, "numba_suite", *arguments, env=env)
    found = json.loads(file.read_text())
    assert (done.returncode == 1) is strict, done.stderr
    assert len(found["differences"]) == strict
    assert int(found["rows"][1][6]) > 0  # parks


@pytest.mark.long
def test_many_kernels_take_turns(scripts_machine):
    scripts_machine.environment.update(AFFINODE_SIM_MEMORY="256MiB", AFFINODE_SIM_CONTEXT="16MiB")
    options = ("--program=driver", "--kernels=2", "--gib=0.12", "--time=2", "--think=0.2:0.6", "--yields=0.1")
    options += ("--end=60", "--controller=--host-reserve-bytes=0")
    found, said = found_by(scripts_machine, "many_kernels", *options, simulate=True)
    assert found["cells"] >= 2 and found["resumes"] >= 1 and "FREED" in said


def test_the_checksum_of_many_kernels_is_that_of_every_word():
    def summed(piece_sums):
        return sum(one * (2 * piece + 1) for piece, one in enumerate(piece_sums)) % many_programs.WORD

    pieces, words, start = 3, 50, (1 << 64) - 7
    memory = [[(many_programs.A * (p * words + j) + start) for j in range(words)] for p in range(pieces)]
    weigh = [many_programs.B * j + 1 for j in range(words)]
    sums = [sum(word * weight for word, weight in zip(piece, weigh, strict=True)) for piece in memory]
    assert summed(sums) == many_programs.checksum(pieces, words, start)
    for bit in range(64):
        wrong = [sums[0], sums[1] + weigh[31] * (1 << bit), sums[2]]
        assert summed(wrong) != many_programs.checksum(pieces, words, start)


@pytest.mark.long
def test_context_depth(scripts_machine):
    scripts_machine.simulate(memory="4GiB", gpus=1)
    (found,) = found_by(scripts_machine, "context_depth", "--programs", "driver")[0]["results"]
    assert len(found["resume, context"]) == 3 and not found["problem"] and not found["woken by books"]


@pytest.mark.long
def test_resumed_on_another_gpu(scripts_machine):
    scripts_machine.simulate(memory="4GiB", gpus=2)
    options = ("--programs=driver", "--sees=first", "--cycles=1", "--no-kill")
    found, _ = found_by(scripts_machine, "elsewhere", *options)
    assert found["passed"] and found["rows"][0][1] == "1/1"
    assert found["notes"][0].endswith("the driver says its UUID, its place on the bus, errors [0, 0]")


@pytest.mark.long
def test_a_simulated_run_is_no_result(scripts_machine):
    folder = scripts_machine.work / "found"
    folder.mkdir()
    scripts_machine.affinode("bench", "--quick", "--time=0", "--json", str(folder / "bench.json"))
    done = script(scripts_machine, "results", str(folder))
    assert done.returncode == 1 and "simulated" in done.stderr and done.stdout == ""


def test_results_hold_figures_against_what_is_promised():
    row = {"name": "park, unchanged", "bytes": results.SIZE, "block_bytes": results.GIB, "depth": "memory"}
    bench = {
        "machine": {"date": "2026-11-24"},
        "ratios": {"resume / pinned ceiling": 0.93, "first park: times faster than the driver": 3.0},
        "ours": [{**row, "host": "private", "median_s": 0.07}],
        "wake": {"through a controller": [0.05, 0.055, 0.07]},
        "wake_bytes": results.GIB,
    }
    rows = {row[0]: row[3] for row in results.goal_rows([("bench", bench)])}
    assert rows == {
        "32 GiB, resume / pinned ceiling": "yes",
        "32 GiB, first park: times faster than the driver": "NO",
        "32 GiB, later park, unchanged": "yes",
        "1 GiB, a call in a parked process, through a controller": "yes",
    }

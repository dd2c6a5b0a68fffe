"""numba-cuda's own tests under the shim with a park every second, and without, and what differs.

`python tests/gpu numba_suite --time 240`. The modules of `numba.cuda.tests` run in pytest processes, a few in each,
once each way, many processes at a time; what is not begun when the time is over is named. What differs is run twice
more each way, since some of the tests do not come out the same every time by themselves.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlled import Controlled, finish, machine, options, say

HERE = Path(__file__).resolve().parent
SUITE = "numba.cuda.tests"
MODULE_S = 120.0
ROUNDS = 3
LONG_FIRST = {  # the slowest first, so that they do not come last
    *("test_vector_type", "test_libdevice", "test_atomics", "test_ufuncs", "test_random", "test_caching"),
    *("test_math", "test_debuginfo", "test_gufunc", "test_sm", "test_dispatcher", "test_multiprocessing"),
    *("test_bfloat16", "test_fp8_bindings", "test_complex"),
}

Outcomes = dict[str, str]  # test → passed, failed, error, skipped


Group = tuple[str, ...]  # modules that one process runs


@dataclass
class Run:
    """One process with a few modules, once."""

    group: Group
    managed: bool
    outcomes: Outcomes = field(default_factory=dict)
    parks: int = 0
    resumes: int = 0
    mended: int = 0
    problem: str = ""
    is_cut_off: bool = False  # the script's time was over


def folders(package: str) -> list[str]:
    """Where an installed package is."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return list(spec.submodule_search_locations)


def modules(package: str) -> list[str]:
    """Every test module of an installed package, the long ones first."""
    found = []
    for folder in folders(package):
        for path in sorted(Path(folder).rglob("test_*.py")):
            if "cudasim" not in path.parts:
                found.append(".".join([package, *path.relative_to(folder).with_suffix("").parts]))
    return sorted(dict.fromkeys(found), key=lambda name: name.rpartition(".")[2] not in LONG_FIRST)


class Suite:
    """Runs modules, each way, in several threads."""

    def __init__(self, controlled: Controlled, package: str, begins: float, ends: float, every_s: float):
        """Begins nothing new after `begins` and kills what runs at `ends` (monotonic seconds)."""
        self.root = folders(package)[0]
        self.controlled, self.every_s = controlled, every_s
        self.begins, self.ends = begins, ends
        self.runs: list[Run] = []
        config = controlled.folder / "pytest.ini"
        config.write_text("[pytest]\nconsider_namespace_packages = true\n")
        self.config = config

    def go(self, wanted: list[Group], at_once: int) -> None:
        """Run all of them both ways; returns when all have ended or were left out."""
        every = [(group, managed) for group in wanted for managed in (True, False)]
        with ThreadPoolExecutor(at_once) as threads:
            for number, run in enumerate(threads.map(self._run_in_time, every), 1):
                if run is not None and not run.is_cut_off:
                    self.runs.append(run)
                if number % 10 == 0:
                    say(f"{number} of {len(every)} processes have run or were left out")

    def _run_in_time(self, each: tuple[Group, bool]) -> Run | None:
        return self.run(*each) if time.monotonic() < self.begins else None

    def run(self, group: Group, managed: bool) -> Run:
        """Run a group once; parked every second if it is managed."""
        run = Run(group, managed)
        kernel_id = str(uuid.uuid4())
        folder = self.controlled.folder / f"{group[0].rpartition('.')[2]}-{kernel_id[:8]}"
        folder.mkdir()
        results = folder / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "suite_plugin"]
        command += [
            "-c",
            str(self.config),
            "--rootdir",
            self.root,
            f"--junitxml={results}",
            "--pyargs",
            *group,
        ]
        with (folder / "out").open("w+") as out:
            program = self.controlled.start(
                command,
                kernel_id if managed else None,
                stdout=out,
                stderr=out,
                env={
                    "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
                    "NUMBA_CACHE_DIR": str(folder),
                },
                cwd=folder,
                start_new_session=True,
            )
            assert program.stdin is not None
            program.stdin.close()
            self._wait(program, run, kernel_id)
            out.seek(0)
            words = out.read()
        if results.exists():
            run.outcomes = outcomes(results)
        elif program.returncode != 5:  # 5: no tests in it
            run.problem = run.problem or f"status {program.returncode}: {words[-300:]!r}"
        return run

    def _wait(self, program: subprocess.Popen[str], run: Run, kernel_id: str) -> None:
        patience = MODULE_S * len(run.group)
        ends = min(time.monotonic() + patience, self.ends)
        while True:
            try:
                program.wait(self.every_s)
                return
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() > ends:
                run.is_cut_off = ends == self.ends
                run.problem = f"not done in {patience:.0f} s; killed"
                program.kill()
                program.wait()
                return
            if run.managed:
                self.controlled.park(kernel_id)
                kernel = self.controlled.kernel(kernel_id)
                if kernel is not None:
                    run.parks, run.resumes = kernel["parks"], kernel["resumes"]
                    mended = [process["mended_chunks"] for process in kernel["processes"]]
                    run.mended = max([run.mended, *mended])


def outcomes(results: Path) -> Outcomes:
    """What became of each test in a JUnit file."""
    found: Outcomes = {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        kind = next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")
        found[f"{case.get('classname')}.{case.get('name')}"] = kind
    return found


def differences(plain: Run, managed: Run) -> dict[str, tuple[str, str]]:
    """(without, with) of each test that became something else; a process that did not end well under its group."""
    if plain.problem or managed.problem:
        names = ", ".join(name.rpartition(".")[2] for name in plain.group)
        return {names: (plain.problem or "ran", managed.problem or "ran")}
    return {
        name: (plain.outcomes.get(name, "absent"), managed.outcomes.get(name, "absent"))
        for name in sorted(plain.outcomes.keys() | managed.outcomes.keys())
        if plain.outcomes.get(name) != managed.outcomes.get(name)
    }


def again(suite: Suite, plain: Run, managed: Run, deadline: float) -> tuple[list[str], list[str]]:
    """Run what differed twice more each way: (what differs each time, what does not).

    What does not come out the same every time without the shim says nothing about the shim.
    """
    first = differences(plain, managed)
    rounds = [first]
    plains = [plain]
    while first and len(rounds) < ROUNDS and time.monotonic() < deadline:
        both = suite.run(plain.group, False), suite.run(plain.group, True)
        if both[0].is_cut_off or both[1].is_cut_off:
            break
        plains.append(both[0])
        rounds.append(differences(*both))
    stay, passing = [], []
    for name, (without, with_) in first.items():
        steady = len({(run.problem or run.outcomes.get(name, "absent")) for run in plains}) == 1
        text = f"{name}: {without} without, {with_} with"
        if all(name in round_ for round_ in rounds) and (steady or plain.problem or managed.problem):
            stay.append(text if len(rounds) == ROUNDS else f"{text} (not run {ROUNDS} times)")
        else:
            passing.append(text)
    return stay, passing


def grouped(names: list[str], size: int) -> list[Group]:
    """The long ones alone, the others by `size`."""
    long = [name for name in names if name.rpartition(".")[2] in LONG_FIRST]
    short = [name for name in names if name not in long]
    return [(name,) for name in long] + [
        tuple(short[begin : begin + size]) for begin in range(0, len(short), size)
    ]


def main() -> int:
    parser = options(__doc__, time_s=240)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two parks (1)")
    parser.add_argument(
        "--at-once", type=int, default=max((os.cpu_count() or 2) - 2, 1), help="processes at a time"
    )
    parser.add_argument("--suite", default=SUITE, help=f"the package with the tests ({SUITE})")
    parser.add_argument("--group", type=int, default=5, help="modules a process, but for long ones (5)")
    parser.add_argument(
        "--modules", default="", help="only these, by the end of their names, separated by commas"
    )
    given = parser.parse_args()
    where = machine(modules=["pytest", given.suite.split(".")[0]])
    deadline = time.monotonic() + given.time
    wanted = modules(given.suite)
    if given.modules:
        wanted = [name for name in wanted if name.rpartition(".")[2] in given.modules.split(",")]
    say(f"{len(wanted)} modules, {given.at_once} processes at a time")
    with Controlled() as controlled:
        suite = Suite(controlled, given.suite, deadline - given.time / 4, deadline, given.every)
        suite.go(grouped(wanted, given.group), given.at_once)
        by_group: dict[Group, dict[bool, Run]] = {}
        for run in suite.runs:
            by_group.setdefault(run.group, {})[run.managed] = run
        pairs = [(pair[False], pair[True]) for pair in by_group.values() if len(pair) == 2]
        stay: list[str] = []
        passing: list[str] = []
        for plain, managed in pairs:
            if differences(plain, managed):
                say(f"{', '.join(plain.group)}: differs, again")
                kept, dropped = again(suite, plain, managed, deadline)
                stay, passing = stay + kept, passing + dropped
    return tell(given, where, pairs, wanted, stay, passing)


def tell(
    given: Any,
    where: dict[str, Any],
    pairs: list[tuple[Run, Run]],
    wanted: list[str],
    stay: list[str],
    passing: list[str],
) -> int:
    rows = []
    for managed in (False, True):
        runs = [pair[managed] for pair in pairs]
        counted = Counter(kind for run in runs for kind in run.outcomes.values())
        rows.append(
            ["with the shim, parked" if managed else "without", str(sum(len(run.group) for run in runs))]
            + [str(counted[kind]) for kind in ("passed", "failure", "error", "skipped")]
            + [str(sum(run.parks for run in runs)), str(sum(run.resumes for run in runs))]
            + [str(sum(run.mended for run in runs))]
        )
    parks = sum(managed.parks for _, managed in pairs)
    mended = sum(managed.mended for _, managed in pairs)
    ran = {name for plain, _ in pairs for name in plain.group}
    left_out = [name for name in wanted if name not in ran]
    notes = [f"differs: {text}" for text in stay] + [
        f"differed, but not each time: {text}" for text in passing
    ]
    if left_out:
        notes.append(f"left out for time: {', '.join(name.rpartition('.')[2] for name in left_out)}")
    return finish(
        "numba_suite",
        where,
        given.json,
        headings=[
            "",
            "modules",
            "passed",
            "failed",
            "errors",
            "skipped",
            "parks",
            "resumes",
            "pieces mended",
        ],
        rows=rows,
        passed=bool(pairs) and not stay and parks > 0 and mended == 0,
        notes=notes,
        differences=stay,
        left_out=left_out,
        outcomes={
            name: kind for plain, _ in pairs for name, kind in plain.outcomes.items() if kind != "passed"
        },
    )


if __name__ == "__main__":
    sys.exit(main())

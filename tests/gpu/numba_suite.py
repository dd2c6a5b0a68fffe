"""numba-cuda's own tests under the shim with a park every second, and without, and what differs.

`python tests/gpu/numba_suite.py --time 240`. Every module of `numba.cuda.tests` is a pytest process of its own, once
each way, many at a time; modules that are not begun when the time is over are named. A difference is run again each way
at the end, since some of the tests are timing-dependent by themselves.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlled import Controlled, finish, machine, options, say

HERE = Path(__file__).resolve().parent
SUITE = "numba.cuda.tests"
MODULE_S = 150.0
LONG_FIRST = {  # the slowest first, so that they do not come last
    *("test_vector_type", "test_libdevice", "test_atomics", "test_ufuncs", "test_random", "test_caching"),
    *("test_math", "test_debuginfo", "test_gufunc", "test_sm", "test_dispatcher", "test_multiprocessing"),
    *("test_bfloat16", "test_fp8_bindings", "test_complex"),
}

Outcomes = dict[str, str]  # test → passed, failed, error, skipped


@dataclass
class Run:
    """One module, once."""

    module: str
    managed: bool
    outcomes: Outcomes = field(default_factory=dict)
    parks: int = 0
    resumes: int = 0
    mended: int = 0
    problem: str = ""


def modules(package: str) -> list[str]:
    """Every test module of an installed package, the long ones first."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    found = []
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).rglob("test_*.py")):
            if "cudasim" not in path.parts:
                found.append(".".join([package, *path.relative_to(folder).with_suffix("").parts]))
    return sorted(dict.fromkeys(found), key=lambda name: name.rpartition(".")[2] not in LONG_FIRST)


class Suite:
    """Runs modules, each way, in several threads."""

    def __init__(self, controlled: Controlled, package: str, deadline: float, every_s: float):
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        self.root = next(iter(spec.submodule_search_locations))
        self.controlled, self.deadline, self.every_s = controlled, deadline, every_s
        self.work: queue.Queue[tuple[str, bool]] = queue.Queue()
        self.runs: list[Run] = []
        self.left_out: list[str] = []
        config = controlled.folder / "pytest.ini"
        config.write_text("[pytest]\nconsider_namespace_packages = true\n")
        self.config = config

    def go(self, wanted: list[str], at_once: int) -> None:
        """Run all of them both ways; returns when all have ended or were left out."""
        for module in wanted:
            self.work.put((module, True))
            self.work.put((module, False))
        threads = [threading.Thread(target=self._worker) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(1.0)
            if int(time.monotonic()) % 10 == 0:
                say(f"{len(self.runs)} modules have run, about {self.work.qsize()} are left")

    def run(self, module: str, managed: bool) -> Run:
        """Run a module once; parked every second if it is managed."""
        run = Run(module, managed)
        kernel_id = str(uuid.uuid4())
        folder = self.controlled.folder / f"{module.rpartition('.')[2]}-{kernel_id[:8]}"
        folder.mkdir()
        results = folder / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "suite_plugin"]
        command += [
            "-c",
            str(self.config),
            "--rootdir",
            str(folder),
            f"--junitxml={results}",
            "--pyargs",
            module,
        ]
        with (folder / "out").open("w+") as out:
            program = self.controlled.start(
                command,
                kernel_id if managed else None,
                stderr=out,
                env={
                    "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
                    "NUMBA_CACHE_DIR": str(folder),
                },
                cwd=folder,
                start_new_session=True,
            )
            assert program.stdin is not None and program.stdout is not None
            program.stdin.close()
            drain = threading.Thread(target=lambda: out.write(program.stdout.read()))
            drain.start()
            self._wait(program, run, kernel_id)
            drain.join()
            out.seek(0)
            words = out.read()
        if results.exists():
            run.outcomes = outcomes(results)
        elif program.returncode != 5:  # 5: no tests in it
            run.problem = run.problem or f"status {program.returncode}: {words[-300:]!r}"
        return run

    def _wait(self, program: subprocess.Popen[str], run: Run, kernel_id: str) -> None:
        ends = time.monotonic() + MODULE_S
        while True:
            try:
                program.wait(self.every_s)
                return
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() > ends:
                run.problem = f"not done in {MODULE_S:.0f} s; killed"
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

    def _worker(self) -> None:
        while True:
            try:
                module, managed = self.work.get_nowait()
            except queue.Empty:
                return
            if time.monotonic() > self.deadline:
                self.left_out.append(module)
                continue
            self.runs.append(self.run(module, managed))


def outcomes(results: Path) -> Outcomes:
    """What became of each test in a JUnit file."""
    found: Outcomes = {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        kind = next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")
        found[f"{case.get('classname')}.{case.get('name')}"] = kind
    return found


def differences(plain: Run, managed: Run) -> list[str]:
    """Tests that became something else, in words."""
    if plain.problem or managed.problem:
        return [f"{plain.module}: without {plain.problem or 'it ran'}; with {managed.problem or 'it ran'}"]
    names = sorted(plain.outcomes.keys() | managed.outcomes.keys())
    return [
        f"{name}: {plain.outcomes.get(name, 'absent')} without, {managed.outcomes.get(name, 'absent')} with"
        for name in names
        if plain.outcomes.get(name) != managed.outcomes.get(name)
    ]


def again(suite: Suite, pairs: dict[str, dict[bool, Run]], deadline: float) -> tuple[list[str], list[str]]:
    """Run what differed once more each way: (differences that stay, those that do not)."""
    stay, passing = [], []
    for module, pair in pairs.items():
        first = differences(pair[False], pair[True])
        if not first:
            continue
        if time.monotonic() > deadline:
            stay += [f"{text} (not run again)" for text in first]
            continue
        say(f"{module}: differs, again")
        second = differences(suite.run(module, False), suite.run(module, True))
        stay += [text for text in second if text in first]
        passing += [text for text in first if text not in second]
    return stay, passing


def main() -> int:
    parser = options(__doc__, time_s=240)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two parks (1)")
    parser.add_argument(
        "--at-once", type=int, default=max((os.cpu_count() or 2) - 2, 1), help="processes at a time"
    )
    parser.add_argument("--suite", default=SUITE, help=f"the package with the tests ({SUITE})")
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
    with Controlled("--min-footprint=0") as controlled:
        suite = Suite(controlled, given.suite, deadline - min(MODULE_S / 3, given.time / 4), given.every)
        suite.go(wanted, given.at_once)
        pairs: dict[str, dict[bool, Run]] = {}
        for run in suite.runs:
            pairs.setdefault(run.module, {})[run.managed] = run
        pairs = {module: pair for module, pair in pairs.items() if len(pair) == 2}
        stay, passing = again(suite, pairs, deadline)
    return tell(given, where, pairs, wanted, stay, passing)


def tell(
    given: Any,
    where: dict[str, Any],
    pairs: dict[str, dict[bool, Run]],
    wanted: list[str],
    stay: list[str],
    passing: list[str],
) -> int:
    rows = []
    for managed in (False, True):
        runs = [pair[managed] for pair in pairs.values()]
        counted = Counter(kind for run in runs for kind in run.outcomes.values())
        rows.append(
            ["with the shim, parked" if managed else "without", str(len(runs))]
            + [str(counted[kind]) for kind in ("passed", "failure", "error", "skipped")]
            + [str(sum(run.parks for run in runs)), str(sum(run.resumes for run in runs))]
            + [str(sum(run.mended for run in runs))]
        )
    parks = sum(pair[True].parks for pair in pairs.values())
    mended = sum(pair[True].mended for pair in pairs.values())
    left_out = [module for module in wanted if module not in pairs]
    notes = [f"differs: {text}" for text in stay] + [f"differed once, not again: {text}" for text in passing]
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
    )


if __name__ == "__main__":
    sys.exit(main())

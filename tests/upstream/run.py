#!/usr/bin/env python3
"""Run other projects' own test suites with our provisioner as the default, and compare with a run without it.

`run.py jupyter_client nbclient …` takes the suites from the source distributions of the installed versions, which pip
downloads; `--source FOLDER` names an unpacked one instead. Each suite runs without us and then with us (`--only-ours`
leaves the first out). What is compared is the outcome of each test; the times are printed beside, as a ratio. The exit
status is 1 if a test that passes without us does not pass with us, or if no kernel with the shim was seen.

The kernels of the second run have the shim mapped, which the plugin beside this file looks up in /proc.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
# Plugins of our own test environment that a suite does not know, and whose presence its settings make an error.
SUITES = {
    "jupyter_client": ["-p", "no:asyncio"],
    "nbclient": [],
    "jupyter_server": ["-p", "no:asyncio"],
    "ipykernel": [],
}
DEFAULT_PROVISIONER = "JUPYTER_DEFAULT_PROVISIONER_NAME"


@dataclass
class Outcome:
    """What one run of a suite gave: "passed", "failed" or "skipped" by test, and the wall-clock time in seconds."""

    tests: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    with_shim: int = 0
    kernels: int = 0

    def count(self, outcome: str) -> int:
        """Return how many tests had this outcome."""
        return sum(1 for each in self.tests.values() if each == outcome)


def fetch(name: str, folder: Path) -> Path:
    """Download the source distribution of the installed version, unpack it and return its folder."""
    version = importlib.metadata.version(name)
    options = ["--quiet", "--no-deps", "--no-binary=:all:", "--dest", folder]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"], check=True)
    (archive,) = folder.glob(f"{name}-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)
    return archive.with_name(archive.name.removesuffix(".tar.gz"))


def run(source: Path, ours: bool, options: list[str], log: Path) -> Outcome:
    """Run the suite in `source` and return its outcome; everything it prints goes to `log`."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="affinode-upstream-") as folder:
        report, seen = Path(folder, "report.xml"), Path(folder, "kernels")
        env = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "AFFINODE_KERNELS_SEEN": str(seen),
            "XDG_RUNTIME_DIR": folder,
        }
        for name in [DEFAULT_PROVISIONER, *(name for name in env if name.startswith("PYTEST_"))]:
            env.pop(name, None)  # those of pytest: of the test that runs this
        if ours:
            env[DEFAULT_PROVISIONER] = "affinode-provisioner"
        options = ["-p", "kernels_seen", f"--junitxml={report}", *options]
        command = [sys.executable, "-m", "pytest", "tests", *options]
        began = time.monotonic()
        with log.open("w") as output:
            subprocess.run(command, cwd=source, env=env, stdout=output, stderr=subprocess.STDOUT, check=False)
        outcome.seconds = time.monotonic() - began
        if not report.exists():
            sys.exit(f"pytest made no report; it printed:\n{log.read_text()[-3000:]}")
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            bad = case.find("failure") is not None or case.find("error") is not None
            skipped = case.find("skipped") is not None
            outcome.tests[name] = "failed" if bad else "skipped" if skipped else "passed"
        lines = seen.read_text().split() if seen.exists() else []
        outcome.kernels, outcome.with_shim = len(lines), lines.count("shim")
    return outcome


def show(name: str, how: str, outcome: Outcome) -> None:
    """Print one line of the table."""
    counts = ", ".join(f"{outcome.count(each)} {each}" for each in ("passed", "failed", "skipped"))
    kernels = f"{outcome.with_shim} of {outcome.kernels} kernels with the shim"
    print(f"{name:16} {how:8} {counts}; {outcome.seconds:.0f} s; {kernels}", flush=True)


def compare(name: str, source: Path, args: argparse.Namespace, logs: Path) -> bool:
    """Run one suite as asked, print what came of it, and return whether all is as it should be."""
    options, plain = [*SUITES[name], "-p", "no:cacheprovider", "-q", *args.options], Outcome()
    if not args.only_ours:
        plain = run(source, False, options, logs / f"{name}-without.log")
        show(name, "without", plain)
    ours = run(source, True, options, logs / f"{name}-with.log")
    show(name, "with", ours)
    worse = [
        test
        for test, outcome in sorted(ours.tests.items())
        if outcome == "failed" and plain.tests.get(test, "passed") == "passed"
    ]
    missing = sorted(plain.tests.keys() - ours.tests.keys())
    for test in worse:
        print(f"{name:16} fails with us: {test}")
    for test in missing:
        print(f"{name:16} did not run with us: {test}")
    if plain.seconds:
        print(f"{name:16} time with us / without: {ours.seconds / plain.seconds:.2f}")
    if worse:
        text = (logs / f"{name}-with.log").read_text()
        print(re.sub(r"\x1b\[[0-9;]*m", "", text)[-6000:])
    return not worse and not missing and ours.with_shim > 0


def main() -> int:
    """Run the suites that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("suites", nargs="+", choices=SUITES, metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument(
        "--source", type=Path, help="an unpacked source distribution or checkout; for one suite"
    )
    parser.add_argument("--only-ours", action="store_true", help="do not run the suite without us first")
    parser.add_argument("--logs", type=Path, help="the folder for what the suites print")
    parser.add_argument("options", nargs="*", default=[], help="after --: options for pytest")
    args, rest = parser.parse_known_args(sys.argv[1 : _separator()])
    args.options = sys.argv[_separator() + 1 :]
    if rest or (args.source and len(args.suites) > 1):
        parser.error(f"not understood: {rest}" if rest else "--source is for one suite")
    with tempfile.TemporaryDirectory(prefix="affinode-upstream-") as folder:
        logs = args.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        sources = {name: args.source or fetch(name, Path(folder)) for name in args.suites}
        good = [compare(name, source.resolve(), args, logs.resolve()) for name, source in sources.items()]
    return 0 if all(good) else 1


def _separator() -> int:
    return sys.argv.index("--") if "--" in sys.argv else len(sys.argv)


if __name__ == "__main__":
    sys.exit(main())

"""Run the commands that the documentation shows, in a clean clone and in an environment with nothing of ours.

`python tests/docs/commands.py [REPOSITORY] [--places demo user clone …]` takes the better part of an hour and uses the
network for packages. It prints each command with its seconds and, at the end, a table of the pages. What is run where
stands in `shown_commands.py`. `newcomer`, `one_machine` and `binder` are scripts of their own, which are started, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "binder"))

from clean_place import REPOSITORY, blocks, plain_environment, temporary_folder, wait_until
from front_end import NotebookKernel, Server
from shown_commands import COMMANDS, PAGES, VENV, Command, Place, shown

HERE = Path(__file__).resolve().parent
SCRIPTS = {Place.NEWCOMER: "newcomer.py", Place.ONE_MACHINE: "one_machine.py", Place.BINDER: "binder.py"}
CUDA_HEADERS = next((str(path.parent) for path in Path("/usr/local").glob("cuda*/include/cuda.h")), "")
NOTEBOOK = "notes.ipynb"
TRACE = """session,start_s,gpu_s,bytes
ana,0,30,20000000000
bob,10,20,70000000000
ana,600,30,20000000000
"""


@dataclass
class Outcomes:
    """What became of each command: "passed", "failed", or nothing where it was not run."""

    of: dict[str, str] = field(default_factory=dict)
    only: Sequence[str] = ()  # parts of the commands that are wanted; none: all
    pages: dict[Path, list[str]] = field(
        default_factory=lambda: {page: list(dict.fromkeys(shown(page))) for page in PAGES}
    )

    def run(
        self, name: str, command: str, environment: dict[str, str], folder: Path, always: bool = False
    ) -> None:
        """Run a command and print how it went."""
        if not always and self.only and not any(part in name for part in self.only):
            return
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.of[name] = "failed" if done.returncode else "passed"
        print(f"{self.of[name]:7} {time.monotonic() - began:7.1f} s  {name}", flush=True)
        if done.returncode:
            print("\n".join(f"        | {line}" for line in done.stdout.splitlines()[-40:]), flush=True)

    def table(self) -> str:
        """Return a row for each page: how many of its commands were run, and which were not, and why."""
        rows = [f"{'page':38} shown  passed  failed  not run"]
        for page, commands in self.pages.items():
            if not commands:
                continue
            results = [self.of.get(command, "") for command in commands if not COMMANDS[command].because]
            reasons = {
                command: COMMANDS[command].because for command in commands if COMMANDS[command].because
            }
            counts = [len(commands), results.count("passed"), results.count("failed")]
            left = [f"{results.count('')} left out of this run"] if results.count("") else []
            rows.append(
                f"{page.relative_to(REPOSITORY)!s:38} {counts[0]:5}  {counts[1]:6}  {counts[2]:6}  "
                f"{len(reasons) + results.count('')} {'; '.join([*sorted(set(reasons.values())), *left])}"
            )
        return "\n".join(rows)


def of_place(place: Place) -> Iterator[tuple[str, Command]]:
    """Yield the commands that are run at a place."""
    return ((name, command) for name, command in COMMANDS.items() if command.place is place)


def in_scripts(outcomes: Outcomes, place: Place, repository: str) -> None:
    """Run the script that runs all commands of a place."""
    command = [sys.executable, str(HERE / SCRIPTS[place]), repository]
    outcome = "failed" if subprocess.run(command).returncode else "passed"
    outcomes.of |= {name: outcome for name, _ in of_place(place)} or {SCRIPTS[place]: outcome}


def in_clone(outcomes: Outcomes, place: Place, repository: str, folder: Path, clone: Path) -> None:
    """Run what is run in a clone: at once, or in its virtual environment."""
    environment = plain_environment(folder / "home") | {"CUDA_HEADERS": CUDA_HEADERS}
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", repository, clone], env=environment, check=True)
    for each, command in of_place(place):
        before = "" if place is Place.DEMO else f"make .venv/.test && {VENV} && "
        outcomes.run(each, before + (command.typed or each), environment, clone)
    if place is Place.CLONE:
        for each, command in of_place(Place.NOWHERE):
            if command.typed:
                outcomes.run(each, f"{VENV} && {command.typed}", environment, clone)


def of_user(outcomes: Outcomes, repository: str, folder: Path) -> None:
    """Run a user's commands beside a notebook that uses the simulated GPU."""
    environment = plain_environment(folder / "home")
    clone, venv = folder / "sources", folder / "venv"
    subprocess.run(["git", "clone", "--quiet", repository, clone], env=environment, check=True)
    subprocess.run(["python3", "-m", "venv", venv], env=environment, check=True)
    environment["PATH"] = f"{venv}/bin:{environment['PATH']}"
    subprocess.run(["pip", "install", "--quiet", "jupyterlab"], env=environment, check=True)
    mine = dict(of_place(Place.USER))
    outcomes.run("pip install .", "pip install .", environment, clone, always=True)
    work = folder / "work"
    work.mkdir()
    environment |= {
        "CLONE": str(clone),
        "NOTEBOOK": NOTEBOOK,
        "AFFINODE_SIM": "1",
        "AFFINODE_SIM_MEMORY": "4GiB",
        "AFFINODE_SIM_DIR": str(folder / "gpu"),
        "AFFINODE_SOCKET": str(folder / "node.sock"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    status = {"cell_type": "code", "id": "a", "metadata": {}, "source": "%gpu_status", "outputs": []}
    status["execution_count"] = None
    notebook = {"cells": [status], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (work / "status.ipynb").write_text(json.dumps(notebook))
    (work / "cells.csv").write_text(TRACE)
    with notebook_on_a_gpu(environment, venv, work):
        for each, command in mine.items():
            if each not in ("pip install .", "pip uninstall jupyter-affinode"):
                outcomes.run(each, command.typed or each, environment, work)
    outcomes.run(
        "pip uninstall jupyter-affinode", mine["pip uninstall jupyter-affinode"].typed, environment, work
    )


@contextlib.contextmanager
def notebook_on_a_gpu(environment: dict[str, str], venv: Path, work: Path) -> Iterator[None]:
    """Have a server with a notebook that has memory on the simulated GPU, and tell its user's processes of neither."""
    page = REPOSITORY / "docs" / "hub" / "one-machine.md"
    cell = next(block for block in blocks(page, "python") if "cuMemAlloc" in block)
    options = [f"--ServerApp.root_dir={work}", "--allow-root"]
    log = work.parent / "server.log"
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        Server.start(work, options, environment, log, str(venv / "bin" / "python"))
    )

    def is_named() -> bool:
        status = [venv / "bin" / "jupyter", "affinode", "status"]
        return NOTEBOOK in subprocess.run(status, env=environment, capture_output=True, text=True).stdout

    try:
        kernel = loop.run_until_complete(NotebookKernel.start(server, NOTEBOOK))
        loop.run_until_complete(kernel.execute(cell))
        # The server looks every two seconds which notebook a kernel belongs to; the commands go by that name.
        wait_until(is_named, f"kernel of {NOTEBOOK}", server.process, log)
        yield
    finally:
        server.stop()
        loop.close()


def main() -> int:
    """Return 0 if all that was run passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", nargs="?", default=str(REPOSITORY))
    names = [place.name.lower() for place in Place if place is not Place.NOWHERE]
    parser.add_argument("--places", nargs="+", choices=names, default=names)
    parser.add_argument("--clone", type=Path, help="one to go on with, for places `demo` and `clone`")
    parser.add_argument("--only", nargs="+", default=[], help="parts of the commands that are wanted")
    parser.add_argument("--results", type=Path, help="a file that adds up what several runs give")
    parser.add_argument("--keep", action="store_true", help="leave the folder there")
    arguments = parser.parse_args()
    outcomes = Outcomes(only=arguments.only)
    if arguments.results and arguments.results.exists():
        outcomes.of |= json.loads(arguments.results.read_text())
    os.umask(0o022)
    with temporary_folder(arguments.keep) as folder:
        folder.chmod(0o755)
        for place in (Place[name.upper()] for name in arguments.places):
            print(f"--- {place.value}", flush=True)
            if place in SCRIPTS:
                in_scripts(outcomes, place, arguments.repository)
            elif place is Place.USER:
                of_user(outcomes, arguments.repository, folder)
            else:
                in_clone(outcomes, place, arguments.repository, folder, arguments.clone or folder / "clone")
    if arguments.results:
        arguments.results.write_text(json.dumps(outcomes.of, indent=1))
    print(f"\n{outcomes.table()}")
    return int("failed" in outcomes.of.values())


if __name__ == "__main__":
    sys.exit(main())

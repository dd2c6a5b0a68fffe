"""A place like a machine on which nothing of ours was ever installed: a clone, a home folder, a plain environment."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INHERITED = re.compile(
    r"TERM|LANG|.*_proxy|.*_PROXY|.*CERT.*|.*CAINFO|.*CA_BUNDLE"
)  # how this machine reaches others
FOUND_OUT_S = 0.05
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


class Failed(AssertionError):
    """A step did not do what the page says; the message says what."""


def blocks(page: Path, language: str) -> Iterator[str]:
    """Yield a page's code blocks of a language, without their indentation."""
    for indent, found, text in FENCE.findall(page.read_text()):
        if found == language:
            yield "\n".join(line.removeprefix(indent) for line in text.splitlines())


def plain_environment(home: Path) -> dict[str, str]:
    """Return the environment of a user who has just logged in."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if INHERITED.fullmatch(name)}
    return {**kept, "HOME": str(home), "PATH": PATH, "SHELL": "/bin/bash", "USER": "root", "LANG": "C.UTF-8"}


@contextlib.contextmanager
def temporary_folder(keep: bool = False) -> Iterator[Path]:
    """Make a folder and remove it at the end, unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="affinode-docs-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(
    command: list[Any], log: Path, environment: Mapping[str, str], cwd: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a session of its own, until the end of the block; what it writes goes to a file."""
    with log.open("wb") as written:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def wait_until(
    found: Callable[[], Any], what: str, process: subprocess.Popen[bytes], log: Path, limit_s: float = 1800
) -> Any:
    """Return what is found as soon as it is true; Failed with the log's end if the process has ended or time is up."""
    deadline = time.monotonic() + limit_s
    while not (answer := found()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"no {what}\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(FOUND_OUT_S)
    return answer


class Steps:
    """The steps of a path, with how long each took."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.taken: list[tuple[str, float]] = []

    def done(self, what: str) -> None:
        """Print the step that has just ended."""
        now = time.monotonic()
        self.taken.append((what, now - self._last))
        print(f"{now - self._last:8.1f} s  {what}  (load {os.getloadavg()[0]:.0f})", flush=True)
        self._last = time.monotonic()

    def sum(self) -> float:
        """Return the seconds of all steps."""
        return sum(seconds for _, seconds in self.taken)


def report(path: Callable[[], float]) -> int:
    """Run a path and print how it ended; return an exit status."""
    try:
        print(f"{path():8.1f} s  in all")
        return 0
    except Failed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1

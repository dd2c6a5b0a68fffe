"""The whole story on a real GPU: `python tests/gpu/run.py [--cycles 20] [--output FILE]`.

Needs jupyter-affinode installed, ipykernel, PyTorch, CuPy and JAX, and an NVIDIA GPU with 12 GiB free. Prints a table;
exits with 1 if a row is not as it must be. RESULTS.md keeps what it printed on real machines.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

import overhead
import pynvml
import story
from workloads import PROGRAMS

from jupyter_affinode.environment import shim_path


def say(line: str) -> None:
    print(f"[{time.monotonic() - STARTED:7.1f} s] {line}", file=sys.stderr, flush=True)


STARTED = time.monotonic()


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def machine() -> str:
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{datetime.date.today().isoformat()}, {pynvml.nvmlDeviceGetName(device)}, driver"
        f" {pynvml.nvmlSystemGetDriverVersion()}, {os.cpu_count()} cores, {memory:.0f} GiB of RAM, Linux"
        f" {platform.release()}, Python {platform.python_version()}"
    )


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("torch", "cupy-cuda13x", "jax", "ipykernel", "jupyter_client", "jupyter-affinode"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5, help="processes each way for the shim's cost")
    parser.add_argument("--only", choices=list(PROGRAMS))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="affinode-gpu-"))
    os.environ["AFFINODE_SOCKET"] = str(folder / "node.sock")
    os.environ["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "affinode-provisioner"

    rows, lines, failed = [], [machine(), "", versions(), ""], False
    for framework in [options.only] if options.only else list(PROGRAMS):
        try:
            outcome = story.tell(framework, options.cycles, say)
            rows.append(outcome.row())
            failed |= not outcome.passed
            lines += [f"{framework}: {note}" for note in dict.fromkeys(outcome.notes)]
        except Exception:
            failed = True
            lines.append(f"{framework}: FAILED\n```\n{traceback.format_exc()}\n```")
            say(traceback.format_exc())
    lines += [table(story.HEADINGS, rows), ""]
    if options.rounds:
        say("the shim's cost")
        without, with_ = overhead.compare(str(shim_path()), options.rounds)
        lines.append(overhead.describe(without, with_))
    text = "\n".join(lines)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    say(f"controller's log: {folder / 'node.log'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

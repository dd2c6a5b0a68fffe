"""Programs that a private controller parks and resumes, and how the scripts of this folder tell what they found."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from waiting import wait_until

from jupyter_affinode import environment
from jupyter_affinode.bench.child_process import BenchProcess
from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from jupyter_affinode.client.starting import ensure_controller
from jupyter_affinode.provisioning import preload as launch_environment
from jupyter_affinode.settings.policy import GIB, MIB

NO_GPU_STATUS = 2
ANSWERS_WITHIN_S = 180.0
USUAL = ("--low-watermark=0", "--settle=0")
LOOK = """
import ctypes, json
driver = ctypes.CDLL("libcuda.so.1")
count, name = ctypes.c_int(), ctypes.create_string_buffer(128)
assert driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
assert driver.cuDeviceGetName(name, 128, 0) == 0
with open("/proc/self/maps") as maps:
    simulated = "libaffinode-sim-cuda" in maps.read()
print(json.dumps({"gpus": count.value, "gpu": name.value.decode(), "simulated": simulated}))
"""
_STARTED = time.monotonic()


def say(line: str) -> None:
    """Progress, on standard error."""
    print(f"[{time.monotonic() - _STARTED:7.1f} s] {line}", file=sys.stderr, flush=True)


def machine(gpus: int = 1, *, modules: Sequence[str] = ()) -> dict[str, Any]:
    """What runs here; ends the program kindly unless there are so many GPUs and all the Python modules."""
    env = environment.controller_environment()
    looked = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True)
    found = json.loads(looked.stdout) if looked.returncode == 0 else {"gpus": 0}
    if found["gpus"] < gpus:
        print(f"this needs {gpus} NVIDIA GPU(s); there are {found['gpus']} here.", file=sys.stderr)
        sys.exit(NO_GPU_STATUS)
    probe = "import importlib.util as u, sys; print([m for m in sys.argv[1:] if u.find_spec(m) is None])"
    missing = subprocess.run([sys.executable, "-c", probe, *modules], capture_output=True, text=True).stdout
    if modules and missing.strip() != "[]":
        print(f"this needs Python modules that are not installed: {missing.strip()}", file=sys.stderr)
        sys.exit(NO_GPU_STATUS)
    with contextlib.suppress(OSError):
        found["driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        **found,
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "host_bytes": memory,
        "linux": platform.release(),
        "python": platform.python_version(),
    }


def cuda_toolkit() -> Path | None:
    """The folder of an installed CUDA toolkit, where numba finds libNVVM if no package brings it."""
    compiler = shutil.which("nvcc")
    folders = [Path(compiler).resolve().parents[1]] if compiler else []
    return next(
        (folder for folder in [*folders, Path("/usr/local/cuda")] if (folder / "nvvm").is_dir()), None
    )


class Controlled:
    """A private controller, and the programs that were started under it; all end with the context."""

    def __init__(self, *settings: str, usual: Sequence[str] = USUAL) -> None:
        """`usual`: settings that most scripts have; () leaves all at what they are by default."""
        self.folder = Path(tempfile.mkdtemp(prefix="affinode-gpu-", dir="/tmp"))
        if "--system" in settings:
            self.folder.chmod(0o755)
        self.socket = self.folder / environment.SOCKET_NAME
        self._settings = (*usual, *settings)
        self.programs: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Controlled:
        with patch.dict(os.environ, AFFINODE_SOCKET=str(self.socket)):
            ensure_controller(self.socket, extra_args=self._settings, timeout_s=20)
        self.controller_pid = int(self.node()["controller"]["pid"])
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            program.kill()
        for program in self.programs:
            program.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.controller_pid, signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(
        self,
        command: Sequence[str],
        kernel_id: str | None,
        *,
        stdout: Any = subprocess.PIPE,
        stderr: Any = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a program with pipes, managed as `kernel_id`; None for the twin without the shim."""
        environ = environment.controller_environment()
        environ[environment.SOCKET] = str(self.socket)
        toolkit = cuda_toolkit()
        if toolkit is not None:
            environ.setdefault("CUDA_HOME", str(toolkit))
        environ.update(env or {})
        if kernel_id is not None:
            launch_environment.manage(environ, kernel_id, command, python=False)
        program = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            text=True,
            **options,
        )
        self.programs.append(program)
        return program

    def park(self, kernel_id: str) -> dict[str, Any] | None:
        """Park it; None if it would not be parked now (busy, not on the GPU)."""
        return self._ask("park", kernel_id)

    def resume(self, kernel_id: str) -> dict[str, Any] | None:
        """Bring it back; None if that was refused."""
        return self._ask("resume", kernel_id)

    def kernel(self, kernel_id: str) -> dict[str, Any] | None:
        """What the controller knows of it; None if nothing."""
        return self._ask("kernel", kernel_id)

    def node(self) -> dict[str, Any]:
        """What the controller says of the machine."""
        node = self._ask("node")
        assert node is not None
        return node

    def set_policy(self, **settings: Any) -> None:
        """Change settings of the controller."""
        asyncio.run(ControllerClient(self.socket).set_policy(**settings))

    def until(self, kernel_id: str, residency: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until every process of it is there. Raises NotInTime."""

        def there() -> dict[str, Any] | None:
            kernel = self.kernel(kernel_id)
            if kernel is None or kernel["residency"] != residency:
                return None
            is_there = all(process["residency"] in (residency, "none") for process in kernel["processes"])
            return kernel if is_there else None

        return wait_until(there, timeout_s, lambda: f"{residency}: {self.kernel(kernel_id)}", 0.01)

    def park_surely(self, kernel_id: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Park it, asking again while it is busy. Raises NotInTime."""

        def parked() -> dict[str, Any] | None:
            kernel = self.park(kernel_id)
            return kernel if kernel is not None and kernel["residency"] == "parked" else None

        return wait_until(parked, timeout_s, lambda: f"parked: {self.kernel(kernel_id)}")

    def log(self) -> str:
        """What the controller wrote."""
        path = self.socket.with_name("node.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def _ask(self, action: str, *arguments: Any) -> dict[str, Any] | None:
        """The controller's answer; None if it refuses, or nothing could be moved."""
        try:
            answer: dict[str, Any] = asyncio.run(getattr(ControllerClient(self.socket), action)(*arguments))
        except ControllerRefused:
            return None
        except ControllerUnavailable as error:
            raise RuntimeError(f"{error}\n{self.log()[-2000:]}") from None
        return None if (answer.get("nothing_moved") or {}).get("code") else answer


@contextlib.contextmanager
def ballast(leaves_bytes: int, gpu: str = "") -> Iterator[int]:
    """A program without the shim that holds all but so much of what is free of the first GPU, or of this one.

    How much that is.
    """
    with BenchProcess(variables={"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}) as child:
        size = max((int(child.ask("room")["free_bytes"]) - leaves_bytes) // (2 * MIB) * 2 * MIB, 0)
        if size:
            child.ask("hold", size=size, block=min(size, GIB))
        yield size


def compile_program(source: Path, folder: Path) -> Path:
    """Compile a program that finds the driver by itself."""
    program = folder / source.stem
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-Wall", "-o", program, source, "-ldl"], check=True)
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tell(program: subprocess.Popen[str], line: str) -> None:
    """Send a program a line."""
    assert program.stdin is not None
    program.stdin.write(line + "\n")
    program.stdin.flush()


def answer(program: subprocess.Popen[str]) -> str:
    """Return a program's next line, or what became of it."""
    assert program.stdout is not None
    if not select.select([program.stdout], [], [], ANSWERS_WITHIN_S)[0]:
        return f"no answer within {ANSWERS_WITHIN_S:.0f} s"
    return program.stdout.readline().strip() or f"ended with status {program.wait()}"


def ask(program: subprocess.Popen[str], line: str) -> str:
    """Send a program a line; its answer, or what became of it."""
    tell(program, line)
    return answer(program)


def options(description: str | None, *, time_s: float) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--time", metavar="S", type=float, default=time_s, help=f"stop after so long ({time_s:g} s)"
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="write what was found there, for results.py"
    )
    return parser


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [list(headings), ["---"] * len(headings), *map(list, rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def finish(
    script: str,
    where: Mapping[str, Any],
    json_file: Path | None,
    *,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    passed: bool,
    notes: Sequence[str] = (),
    **more: Any,
) -> int:
    """Print the table, write the JSON; the exit status."""
    found = {
        "script": script,
        "command": " ".join(["python tests/gpu", Path(sys.argv[0]).stem, *sys.argv[1:]]),
        "machine": dict(where),
        "seconds": round(time.monotonic() - _STARTED, 1),
        "passed": passed,
        "headings": list(headings),
        "rows": [list(row) for row in rows],
        "notes": list(notes),
        **more,
    }
    if where["simulated"]:
        print("SIMULATED: nothing here is GPU performance, and no framework ran on a GPU\n")
    print(table(headings, rows))
    for note in notes:
        print(f"- {note}")
    print("passed" if passed else "FAILED")
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if passed else 1

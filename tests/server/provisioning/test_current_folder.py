"""Nothing that we start imports from the caller's current folder, to which others may be able to write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_affinode.python_command import module_command

SCRIPT = Path(sys.executable).with_name("jupyter-affinode")
NAMES = ("argparse", "asyncio", "ctypes", "json", "logging", "runpy", "tornado", "jupyter_affinode")
PLANTED = "import sys\nwith open({trace!r}, 'a') as file:\n    print(__name__, sys.orig_argv, file=file)\n"
START = "from jupyter_affinode.client.starting import ensure_controller; ensure_controller(timeout_s=60)"


@pytest.fixture
def planted(machine):
    """The machine, whose current folder has modules of another user; at the end none of them was imported."""
    trace = machine.folder / "trace"
    for name in NAMES:
        (machine.work / f"{name}.py").write_text(PLANTED.format(trace=str(trace)))
    machine.environment["PYTHONDONTWRITEBYTECODE"] = "1"
    yield machine
    assert not trace.exists(), trace.read_text()


def run(machine, *command, **variables):
    """Run the installed script, or another command, in the planted folder."""
    env = {**machine.environment, **variables}
    words = [str(word) for word in command]
    return subprocess.run(words, env=env, cwd=machine.work, capture_output=True, text=True, timeout=60)


def test_run_imports_nothing_from_the_current_folder(native, planted, wait_until):
    done = run(planted, SCRIPT, "run", "--", "true", AFFINODE_KERNEL_ID="k")
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: planted.kernel("k"))


def test_run_introduces_a_kernel_at_a_socket_that_is_named_from_the_current_folder(
    native, planted, wait_until
):
    relative = os.path.relpath(planted.socket, planted.work)
    done = run(planted, SCRIPT, "run", "--", "true", AFFINODE_KERNEL_ID="k", AFFINODE_SOCKET=relative)
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: planted.kernel("k"))


def test_a_controller_of_a_simulated_gpu_imports_nothing_from_the_current_folder(native, planted, wait_until):
    planted.simulate()
    planted.start(str(SCRIPT), "node")
    wait_until(lambda: (planted.node() or {}).get("gpus"))
    assert planted.node()["simulated"]


def test_a_controller_that_a_client_starts_imports_nothing_from_the_current_folder(planted):
    (planted.folder / "start.py").write_text(START)
    done = run(planted, sys.executable, planted.folder / "start.py")
    assert done.returncode == 0, done.stderr
    assert planted.node() is not None


def test_a_wrapped_kernelspec_imports_nothing_from_the_current_folder(native, planted):
    made = run(planted, SCRIPT, "kernelspec", "wrap", "python3")
    assert made.returncode == 0, made.stderr
    path = Path(planted.environment["JUPYTER_DATA_DIR"], "kernels", "python3-affinode", "kernel.json")
    argv = json.loads(path.read_text())["argv"]
    done = run(planted, *argv[: argv.index("--") + 1], "true", AFFINODE_KERNEL_ID="k")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_doctor_imports_nothing_from_the_current_folder(native, planted):
    checks = json.loads(run(planted, SCRIPT, "doctor", "--json").stdout)["checks"]
    assert {check["name"]: check["level"] for check in checks}["shim"] == "ok"


@pytest.mark.long
def test_the_bench_imports_nothing_from_the_current_folder(native, planted):
    planted.simulate()
    done = run(planted, SCRIPT, "bench", "--sizes=0.0625", "--repeats=1", "--time=60")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("has_safe_path", [True, False])
def test_a_module_is_run_without_the_current_folder_and_with_the_users_own(planted, has_safe_path):
    if has_safe_path and sys.version_info < (3, 11):
        pytest.skip("this Python has no option -P")
    own = planted.folder / "own"
    own.mkdir()
    (own / "users_own.py").write_text("import argparse, sys; print(__name__, sys.argv[1:])")
    command = module_command("users_own", "-m", "two words", has_safe_path=has_safe_path)
    done = run(planted, *command, PYTHONPATH=str(own))
    assert done.stdout == "__main__ ['-m', 'two words']\n", done.stderr

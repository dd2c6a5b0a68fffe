"""What happens inside a kernel at its start: chaining PYTHONSTARTUP, registering magics, leaving no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from jupyter_affinode.kernel.magics import parse_duration, size_text
from jupyter_affinode.provisioning.preload import KERNEL_STARTUP

NAMES = "print(sorted(n for n in dir() if not n.startswith('_') or 'affinode' in n))"
LOCAL = {"kernel_provisioner": {"provisioner_name": "local-provisioner"}}
MINE = "import os\nmine = __file__\nchained = os.environ.get('PYTHONSTARTUP')\n"


def python_i(code: str, machine, executable: str = sys.executable, **variables: str):
    env = {**machine.environment, "PYTHONSTARTUP": str(KERNEL_STARTUP), **variables}
    env = {name: value for name, value in env.items() if value != "-"}
    return subprocess.run(
        [executable, "-i", "-q"],
        input=code,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=machine.work,
    )


def test_plain_python_only_runs_the_old_startup(machine):
    old = machine.work / "mine.py"
    old.write_text(MINE)
    done = python_i(f"print(mine, chained)\n{NAMES}\n", machine, AFFINODE_STARTUP_CHAIN=str(old))
    assert done.stdout.splitlines()[0] == f"{old} {old}"
    assert done.stdout.splitlines()[1] == "['chained', 'mine', 'os']"
    assert "Error" not in done.stderr


def test_without_an_old_startup_nothing_is_left(machine):
    done = python_i(f"{NAMES}\nimport os; print(os.environ.get('PYTHONSTARTUP'))\n", machine)
    assert done.stdout.split("\n")[:2] == ["[]", "None"]


def test_an_error_in_the_old_startup_is_shown_and_stops_nothing(machine):
    old = machine.work / "broken.py"
    old.write_text("1/0\n")
    done = python_i("print('alive')\n", machine, AFFINODE_STARTUP_CHAIN=str(old))
    assert "alive" in done.stdout and "ZeroDivisionError" in done.stderr


def test_children_get_the_old_startup_back_and_a_kernel_that_dies_is_started_as_before(
    machine, shared_server, new_kernel, kernelspec, wait_until
):
    old = machine.work / "mine.py"
    old.write_text(MINE)
    kernelspec("mine", shared_server.machine, env={"PYTHONSTARTUP": str(old)})
    kernel = new_kernel("mine")
    assert kernel.run("print(mine, chained)").text.split() == [str(old), str(old)]
    child = "import subprocess, sys; print(subprocess.run([sys.executable, '-i', '-q'], input='print(mine)', "
    assert kernel.run(child + "capture_output=True, text=True).stdout)").text.strip() == str(old)
    pid = kernel.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "restarting kernel" in shared_server.log())
    kernel.wait_for_ready()
    assert kernel.pid != pid
    assert kernel.environment()["AFFINODE_KERNEL_ID"] == kernel.id
    assert kernel.run("print(mine, chained)").text.split() == [str(old), str(old)]


@pytest.fixture(scope="module")
def kernel(shared_server):
    """An ordinary kernel, for tests that leave it as they find it."""
    made = shared_server.start_kernel()
    yield made
    made.shutdown()


def test_an_ipython_kernels_namespace_stays_clean(kernel):
    assert "affinode" not in kernel.run("print(dir())").text
    assert kernel.run("print(__doc__)").text.startswith("Automatically created module")
    assert "%gpu_park" in kernel.run("%lsmagic").text


@pytest.fixture
def foreign_python(machine) -> str:
    """A Python environment that has ipykernel and its dependencies, but not our package."""
    folder = machine.folder / "foreign"
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(
        subprocess.run(
            [folder / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    for item in Path(sysconfig.get_path("purelib")).iterdir():
        if "affinode" not in item.name and item.suffix != ".pth":
            (site / item.name).symlink_to(item)
    return str(folder / "bin" / "python")


def test_a_kernel_of_another_environment_with_an_error_in_its_old_startup_has_the_magics(
    machine, shared_server, new_kernel, kernelspec, foreign_python
):
    old = machine.work / "broken.py"
    old.write_text("before = 1\n1/0\n")
    argv = [foreign_python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    env = {"PYTHONPATH": "", "PYTHONSTARTUP": str(old)}
    kernelspec("foreign", shared_server.machine, argv=argv, env=env)
    kernel = new_kernel("foreign")
    assert kernel.run("print(before)").text == "1\n"
    assert kernel.run("import jupyter_affinode").error == "ModuleNotFoundError"
    assert "No GPU used" in kernel.run("%gpu_status").text
    assert kernel.environment()["LD_PRELOAD"].endswith("libaffinode.so")


def test_the_extension_loads_in_a_kernel_without_the_shim(shared_server, new_kernel, kernelspec):
    kernelspec("plain", shared_server.machine, metadata=LOCAL)
    kernel = new_kernel("plain")
    assert "UsageError" in kernel.run("%gpu_status").stderr + str(kernel.run("%gpu_status").error)
    loaded = kernel.run("%load_ext jupyter_affinode")
    assert loaded.status == "ok" and loaded.text == ""
    for line in ("%gpu_status", "%gpu_park", "%gpu_hold 1h", "%gpu_release"):
        ran = kernel.run(line)
        assert ran.status == "ok" and ran.stderr == "" and len(ran.text.splitlines()) == 1, line
        assert "without jupyter-affinode" in ran.text
    kernel.run("import os; os.environ['AFFINODE_LIBRARY'] = '/nonexistent/libaffinode.so'")
    assert "not loaded in this kernel" in kernel.run("%gpu_park").text


def test_the_cell_magic_runs_its_body_whether_or_not_the_gpu_was_freed(kernel):
    ran = kernel.run("%%gpu_park\nvalue = 40\nvalue + 2")
    assert ran.status == "ok" and ran.text.startswith("Not freed: ") and ran.text.endswith("42")
    assert kernel.run("print(value)").text == "40\n"
    assert kernel.run("%%gpu_park\nvalue + 3;").text.count("\n") == 1, "a semicolon hides the value"
    failed = kernel.run("%%gpu_park\n1/0")
    assert failed.status == "error" and failed.error == "ZeroDivisionError"


def test_a_hold_without_a_time_that_makes_sense_is_one_line(kernel):
    for argument in ("soon", "10", "1h later", "0s"):
        ran = kernel.run(f"%gpu_hold {argument}")
        assert ran.status == "ok" and ran.text.startswith("Not kept: ") and ran.text.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", None), ("90s", 90), ("30m", 1800), ("1h", 3600), ("1h30m", 5400), ("2D", 172800)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["10", "h", "1x", "-1h", "1h5", "1.5h"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError):
        parse_duration(text)


def test_sizes_in_words():
    words = [size_text(count) for count in (0, 1000, 2048, 300 * 2**20, 3 * 2**29, 12 * 2**30)]
    assert words == ["0 bytes", "1000 bytes", "2 KiB", "300 MiB", "1.5 GiB", "12 GiB"]


def test_importing_the_package_imports_nothing_of_the_server():
    code = "import sys, jupyter_affinode; print([m for m in sys.modules if m.split('.')[0] in "
    code += "('jupyter_server', 'tornado', 'traitlets', 'jupyter_client', 'IPython')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"

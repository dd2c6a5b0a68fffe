"""The command line, without a GPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_cells import SETUP
from live_server import ENDLESS, exists

from jupyter_affinode.cli import main
from jupyter_affinode.cli.kernel_argument import NoSuchKernel, find_kernel, short_id
from jupyter_affinode.cli.machine.doctor import doctor_text
from jupyter_affinode.cli.output import kernel_table
from jupyter_affinode.cli.programs.run import kernel_id_of
from jupyter_affinode.doctor.check import Check
from jupyter_affinode.doctor.checks import next_server_default
from jupyter_affinode.settings.policy import GIB

ID = "01234567-89ab-cdef-0123-456789abcdef"
SHOW = "import os, json; print(json.dumps(dict(os.environ, pid=os.getpid())))"


def kernel(kernel_id: str, **fields):
    return {
        "id": kernel_id,
        "name": "Python 3",
        "path": None,
        "residency": "none",
        "cell_open": False,
        "resident_bytes": 0,
        "parked_bytes": 0,
        "copy_bytes": 0,
        "retained_bytes": 0,
        "idle_s": None,
        "unmovable": [],
        **fields,
    }


@pytest.fixture
def command(here, capsys, monkeypatch):
    """`command("status", …)`: `jupyter affinode status …` on the test's machine, without a process of its own."""

    def run(*arguments, **variables):
        with monkeypatch.context() as changed:
            for name, value in variables.items():
                changed.setenv(name, value)
            try:
                status = main(arguments)
            except SystemExit as end:
                status = end.code
        written = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, written.out, written.err)

    return run


def test_ids_are_shown_short_and_told_apart():
    assert short_id(ID) == "01234567"
    assert short_id(f"uid-61001/{ID}") == "uid-61001/01234567"
    assert short_id("process-4242-1") == "process-4242-1"


def test_status_without_a_controller_says_so_and_starts_none(native, machine, command):
    done = command("status")
    assert done.returncode == 0 and "No GPU controller is running" in done.stdout
    assert "No GPU on this machine." in done.stdout
    machine.simulate(memory="1GiB")
    simulated = command("status", **machine.environment).stdout
    assert "No GPU controller is running" in simulated and "No GPU on this machine." not in simulated
    answer = json.loads(command("status", "--json").stdout)
    assert answer["available"] is False and answer["kernels"] == [] and answer["message"]
    assert machine.node() is None


@pytest.mark.parametrize("action", ["park", "resume", "hold", "release"])
def test_actions_without_a_controller_fail_in_one_line(action, command):
    done = command(action, "abc")
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    refused = command(action, "abc", "--json")
    assert refused.returncode == 1 and json.loads(refused.stdout)["error"] == "no-controller"


def test_wrong_use_is_2(command):
    for words in (["steal"], [], ["run", "--"], ["park", "--soon"], ["plan", "--gpus", "x"]):
        wrong = command(*words)
        assert wrong.returncode == 2 and wrong.stdout == ""
        assert wrong.stderr.count("\n") == 1 and "usage:" not in wrong.stderr, wrong.stderr
        assert wrong.stderr.startswith("jupyter affinode") and "--help" in wrong.stderr
    process = command("clean", "--process", "3")
    assert process.returncode == 2 and "--process needs a KERNEL" in process.stderr
    sizes = command("bench", "--sizes", "0.001")
    assert sizes.returncode == 2 and "not a multiple of 2 MiB" in sizes.stderr


def test_wrong_options_of_the_controller_are_one_line_too(machine):
    wrong = machine.affinode("node", "--bogus")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
    assert wrong.stderr.startswith("jupyter affinode node: argument --bogus")


def test_a_report_without_history_says_so(command):
    done = command("report")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "there is no history yet" in done.stderr and "cannot be read" not in done.stderr


def test_status_and_actions_with_a_controller(controller, command):
    empty = command("status").stdout
    assert "No GPU on this machine." in empty and "No kernels." in empty
    controller.ask("PUT", f"/kernels/{ID}", {"name": "Python 3", "path": "work/model.ipynb"})
    listed = command("status")
    assert "work/model.ipynb" in listed.stdout and "No GPU used" in listed.stdout
    assert json.loads(command("status", "--json").stdout)["kernels"][0]["id"] == ID
    parked = command("park", "model.ipynb")
    assert parked.returncode == 0
    assert parked.stdout.splitlines()[1] == "Nothing was moved: the kernel does not use the GPU."
    unknown = command("park", "nothing", "--json")
    assert unknown.returncode == 1 and json.loads(unknown.stdout)["error"] == "unknown-kernel"
    held = command("hold", ID[:4], "30m", "--json")
    assert held.returncode == 0 and 1200 < json.loads(held.stdout)["held_for_s"] <= 1800
    assert command("hold", ID, "soon").returncode == 1
    released = command("release", ID, "--json")
    assert json.loads(released.stdout)["held_for_s"] is None
    assert command("hold", ID, "23h").stdout.count("\n") == 1
    said = command("hold", ID, "48h").stdout.splitlines()
    assert said[1:] == ["48 h is more than this machine allows: the kernel is kept for 24 h."]
    inside = command("hold", "--json", AFFINODE_KERNEL_ID=ID)
    assert inside.returncode == 0 and json.loads(inside.stdout)["id"] == ID, "it need not be named there"
    controller.ask("PUT", f"/kernels/{ID}", {"path": "thèse.ipynb"})
    done = controller.affinode("status", env={**controller.environment, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "th\\xe8se.ipynb" in done.stdout, "characters that the terminal lacks"


def test_a_kernel_is_found_by_id_path_name_or_beginning():
    kernels = [kernel("aab1", path="a/one.ipynb"), kernel("aac2", path="b/one.ipynb", name="R"), kernel("b")]
    assert find_kernel(kernels, "aab1")["id"] == "aab1"
    assert find_kernel(kernels, "b")["id"] == "b"
    assert find_kernel(kernels, "aac")["id"] == "aac2"
    assert find_kernel(kernels, "b/one.ipynb")["id"] == "aac2"
    assert find_kernel(kernels, "R")["id"] == "aac2"
    for ambiguous in ("aa", "one.ipynb", "Python 3"):
        with pytest.raises(NoSuchKernel, match="could be any of 2"):
            find_kernel(kernels, ambiguous)
    for nothing in ("zz", "", None):
        with pytest.raises(NoSuchKernel, match=r"one\.ipynb"):
            find_kernel(kernels, nothing)


def test_status_says_what_a_hibernated_kernel_takes_on_disk_and_nothing_of_ram():
    size = {"parked_bytes": 12 * GIB, "disk_bytes": 12 * GIB}
    row, note = kernel_table(
        [kernel("aab1", path="a.ipynb", residency="hibernated", image_bytes=9 * GIB, **size)]
    ).splitlines()[1:]
    assert row.split() == ["aab1", "a.ipynb", "Hibernated", "-", "-", "-", "-"]
    assert note.strip() == "its image is 9 GiB on disk"


def test_the_table_names_what_stays_on_the_gpu_and_why_nothing_was_parked():
    fixed = [{"reason": "managed", "bytes": 2**30, "text": "managed memory"}]
    shown = kernel("aab1", path="a.ipynb", residency="parked", parked_bytes=12 * GIB, copy_bytes=12 * GIB)
    text = kernel_table(
        [kernel("b", idle_s=400.0), {**shown, "unmovable": fixed, "refusal": "host memory is short"}]
    )
    lines = text.splitlines()
    assert lines[1].split("  ")[0] == "aab1" and "GPU freed" in lines[1] and "12 GiB" in lines[1]
    assert lines[2:4] == ["  1 GiB stays on the GPU: managed memory", "  not freed: host memory is short"]
    assert lines[4].endswith("7 min")


def test_administrators_see_whose_a_kernel_is_within_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = "projects/vision/experiments/train-resnet-final.ipynb"
    own = kernel(ID, user="root", path=path, residency="resident", resident_bytes=12 * GIB, cell_open=True)
    other = kernel(
        f"uid-1001/1{ID[1:]}", user="bob", residency="queued", place=2, wait_reason="the GPU is full"
    )
    lines = kernel_table([own, other]).splitlines()
    assert lines[0].split()[:3] == ["KERNEL", "USER", "NOTEBOOK"]
    assert lines[1].split()[:2] == ["11234567", "bob"] and "Waiting: 2nd" in lines[1]
    assert lines[3].split()[:2] == ["01234567", "root"] and "final.ipynb  On the GPU" in lines[3]
    assert max(map(len, lines)) <= 80
    assert "USER" not in kernel_table([own]).splitlines()[0]
    assert find_kernel([own, other], "11234567") is other


def test_the_table_says_on_which_gpu_a_kernel_has_its_memory():
    def on(index, resident=0, parked=0):
        sizes = {"resident_bytes": resident, "parked_bytes": parked, "unmovable_bytes": 0}
        return {"uuid": "u", "index": index, **sizes}

    one = kernel("one", gpus=[on(0), on(3, resident=GIB)])
    two = kernel("two", gpus=[on(0, parked=GIB), on(1, resident=GIB)])
    lines = kernel_table([one, two, kernel("unused", gpus=[on(0)])]).splitlines()
    column = lines[0].index("GPU ")
    assert [line[column:].split(" ")[0] for line in lines[1:]] == ["3", "0,1", "-"]


def test_the_table_says_what_host_memory_a_kernel_takes_or_keeps():
    zeros = kernel("zeros", parked_bytes=64 * GIB, copy_bytes=3 * GIB)
    plain = kernel("plain", parked_bytes=GIB, copy_bytes=GIB)
    keeps = kernel("resident", resident_bytes=4 * GIB, retained_bytes=4 * GIB)
    lines = kernel_table([plain, keeps, zeros]).splitlines()
    assert [line for line in lines if line.startswith("  ")] == [
        "  4 GiB of RAM hold a copy for the next time",
        "  takes 3 GiB of RAM: the rest is zeros",
    ]


def test_run_becomes_the_command_managed(native, machine, wait_until):
    process = machine.start(
        sys.executable, "-m", "jupyter_affinode.cli", "run", "--", sys.executable, "-c",
        SHOW + "\nimport sys; sys.stdout.flush(); sys.stdin.read()",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    env = json.loads(process.stdout.readline())
    assert env["pid"] == process.pid, "no process in between"
    assert env["LD_PRELOAD"].endswith("libaffinode.so") and env["AFFINODE_LIBRARY"] == env["LD_PRELOAD"]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    assert children == "", "the command has no child that it did not start"
    found = wait_until(lambda: machine.kernel(env["AFFINODE_KERNEL_ID"]))
    assert found["id"] == env["AFFINODE_KERNEL_ID"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM


def test_runs_exit_status_is_the_commands(native, machine):
    run = ("run", "--", sys.executable, "-c")
    assert machine.affinode(*run, "raise SystemExit(7)").returncode == 7
    assert machine.affinode("run", "no-such-command").returncode == 127
    disabled = machine.affinode(*run, SHOW, env={**machine.environment, "AFFINODE_DISABLE": "1"})
    assert "AFFINODE_KERNEL_ID" not in json.loads(disabled.stdout)
    assert "not managed" in disabled.stderr


def test_run_knows_the_kernels_id():
    assert kernel_id_of(["python", "-f", f"/run/kernel-{ID}.json"], {}) == ID
    assert kernel_id_of(["python", f"/run/kernel-{ID}.json"], {"AFFINODE_KERNEL_ID": "set"}) == "set"
    assert kernel_id_of(["python"], {}) != kernel_id_of(["python"], {})


def test_a_wrapped_kernelspec_is_managed_by_any_front_end(shared_server, new_kernel, wait_until):
    machine = shared_server.machine
    made = machine.affinode("kernelspec", "wrap", "python3")
    assert made.returncode == 0, made.stderr
    path = Path(machine.environment["JUPYTER_DATA_DIR"], "kernels", "python3-affinode", "kernel.json")
    spec = json.loads(path.read_text())
    assert spec["argv"][spec["argv"].index("--") + 1] == sys.executable
    assert spec["metadata"]["kernel_provisioner"]["provisioner_name"] == "local-provisioner"
    assert (path.parent / "logo-64x64.png").exists() and "GPU shared" in spec["display_name"]
    kernel = new_kernel("python3-affinode")
    environ = kernel.environment()
    assert environ["AFFINODE_KERNEL_ID"] == kernel.id and environ["LD_PRELOAD"].endswith("libaffinode.so")
    assert "No GPU used" in kernel.run("%gpu_status").text
    wait_until(lambda: machine.kernel(kernel.id))
    message_id = kernel.begin(ENDLESS)
    wait_until(lambda: machine.kernel(kernel.id)["cell_open"])
    kernel.interrupt()
    assert kernel.wait(message_id).error == "KeyboardInterrupt"


def test_a_wrapped_kernelspec_starts_its_kernel_when_our_package_or_its_python_is_gone(machine, command):
    assert command("kernelspec", "wrap", "python3").returncode == 0
    path = Path(machine.environment["JUPYTER_DATA_DIR"], "kernels", "python3-affinode", "kernel.json")
    argv = json.loads(path.read_text())["argv"]
    words = [*argv[: argv.index("--") + 1], "sh", "-c", 'echo "$LD_PRELOAD:$1 $2"', "sh", "two words", "--"]
    for gone in (3, 4):
        without = [*words[:gone], f"{words[gone]}-gone", *words[gone + 1 :]]
        done = subprocess.run(without, env=machine.environment, capture_output=True, text=True)
        assert done.stdout == ":two words --\n"
        assert f"not managed: there is no {without[gone]} any more" in done.stderr


def test_a_wrapped_kernelspec_keeps_its_metadata_but_no_notes_on_the_command_that_it_replaces(
    kernelspec, machine, command
):
    """VS Code would start `interpreter` with our arguments, and hide the kernelspec named as the original."""
    notes = {
        "interpreter": {"path": sys.executable},
        "vscode": {"originalSpecFile": "/kernels/x/kernel.json", "originalDisplayName": "x"},
        "originalSpecFile": "/kernels/x/kernel.json",
        "originalDisplayName": "x",
    }
    kept = {"debugger": True, "affinode": {"priority": -1}, "conda_env_name": "base"}
    kernelspec("x", metadata={**notes, **kept})
    assert command("kernelspec", "wrap", "x").returncode == 0
    listed = json.loads((machine.folder / "data/kernels/x-affinode/kernel.json").read_text())
    ours = {"jupyter_affinode", "kernel_provisioner"}
    assert {name: value for name, value in listed["metadata"].items() if name not in ours} == kept
    assert listed["argv"][0] == "/bin/sh"


def test_wrapping_twice_or_over_something_else_is_refused(kernelspec, command):
    kernelspec("mine")
    kernelspec("remote", metadata={"kernel_provisioner": {"provisioner_name": "far-provisioner"}})
    assert command("kernelspec", "wrap", "python3").returncode == 0
    assert command("kernelspec", "wrap", "python3").returncode == 0, "again is an update"
    for words in (["python3-affinode"], ["python3", "--name", "mine"], ["remote"], ["nothing"]):
        refused = command("kernelspec", "wrap", *words)
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1, words
    assert command("kernelspec", "wrap", "python3", "--remove").returncode == 0
    kept = command("kernelspec", "wrap", "x", "--name", "mine", "--remove")
    assert kept.returncode == 1 and "not made by" in kept.stderr


def test_simulate_gives_a_machine_of_its_own_that_ends_with_the_command(native, machine, wait_until):
    inside = f"""{SETUP}
import asyncio, os
from jupyter_affinode.client.api import ControllerClient
from jupyter_affinode.client.starting import ensure_controller
Block(8).free()
ask = lambda: asyncio.run(ControllerClient(ensure_controller()).node())
while not (node := ask())["gpus"]:  # NVML has not been looked at yet
    pass
print(node["controller"]["pid"], node["simulated"], os.environ["AFFINODE_SIM_DIR"])
raise SystemExit(7)
"""
    own = {name: value for name, value in machine.environment.items() if not name.startswith("AFFINODE_")}
    done = machine.affinode("simulate", "--", sys.executable, "-c", inside, env=own)
    assert done.returncode == 7, done
    pid, simulated, folder = done.stdout.split()
    assert simulated == "True" and not Path(folder).exists()
    wait_until(lambda: not exists(int(pid)))
    assert machine.affinode("simulate", "--").returncode == 2


def test_doctor_names_every_part(native, machine):
    found = json.loads(machine.affinode("doctor", "--json").stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert set(checks) >= {
        "platform", "shim", "driver", "nvml", "controller", "host memory", "provisioner",
        "lab extension", "huge pages", "lots", "locked memory", "numa",
    }  # fmt: skip
    assert checks["platform"]["level"] == "ok" and checks["shim"]["level"] == "ok", checks
    assert all(check["advice"] for check in checks.values() if check["level"] != "ok")


def test_doctor_knows_which_provisioner_a_new_kernel_gets(here, factory, monkeypatch):
    assert next_server_default().is_ours
    config = Path(here.environment["JUPYTER_CONFIG_DIR"], "jupyter_server_config.py")
    config.write_text("c.KernelProvisionerFactory.default_provisioner_name = 'site-provisioner'\n")
    assert next_server_default().name == "site-provisioner"
    config.write_text("c.ServerApp.jpserver_extensions = {'jupyter_affinode': False}\n")
    assert "not enabled" in next_server_default().reason
    config.write_text("c.AffinodeExtension.enabled = False\n")
    assert "AffinodeExtension.enabled" in next_server_default().reason
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "local-provisioner")
    assert "JUPYTER_DEFAULT_PROVISIONER_NAME" in next_server_default().reason


def test_doctor_says_what_works_what_needs_you_and_the_details(native, controller, command):
    said = command("doctor", COLUMNS="80").stdout
    works, needs_you, details = said.split("\n\n")
    assert works.startswith("Works\n") and needs_you.startswith("Needs you\n")
    assert details.startswith("Details\n")
    assert "  controller     version 0.1.0 runs" in works and "numa" not in works
    assert "numa" in details and f"pid {controller.controller_pid()}," in details
    assert all(len(line) <= 80 or "/" in line for line in said.splitlines())


def test_what_keeps_kernels_from_being_managed_needs_you():
    findings = [
        Check("shim", "fail", "it does not load", "Reinstall it.", "/lib/libaffinode.so"),
        Check("numa", "ok", "one node", is_detail=True),
    ]
    works, needs_you, details = doctor_text([finding.as_json() for finding in findings]).split("\n\n")
    assert works == "Works\n  nothing"
    assert needs_you == "Needs you\n  shim  it does not load\n        Reinstall it."
    assert details == "Details\n  shim  /lib/libaffinode.so\n  numa  one node"


def test_a_command_imports_what_it_needs_alone(machine):
    code = "import sys; from jupyter_affinode.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", code, "systemd-unit"], capture_output=True, text=True, env=machine.environment
    )
    imported = set(ran.stderr.split())
    assert "jupyter_affinode.cli.machine.systemd_unit" in imported
    assert not imported & {"asyncio", "tornado", "jupyter_client", "jupyter_affinode.planner"}


def test_the_version_is_the_packages(command):
    assert command("--version").stdout.strip() == "0.1.0"
    package = Path(__file__).parents[3] / "package.json"
    assert json.loads(package.read_text())["version"] == "0.1.0"

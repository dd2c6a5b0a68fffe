"""Pods as mount and pid namespaces: the real controller, shim and init container's script, and a simulated GPU."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from gpu_cells import SETUP
from live_machine import Machine
from pods import Cluster, Node, Pod
from rendered_chart import controller, settings_file

HOLD = f"""{SETUP}
import sys
try:
    block = Block(int(sys.argv[1]))
    print("has it", flush=True)
except RuntimeError as error:
    print(error, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def asking_for(machine: Machine, mib: int, *prefix: str) -> Iterator[str]:
    """Start a program that asks the simulated GPU for so much and keeps it; what it says."""
    simulate = [sys.executable, "-m", "jupyter_affinode.cli", "simulate", "--"]
    process = machine.start(
        *prefix, *simulate, sys.executable, "-c", HOLD, str(mib),
        env={**machine.environment, "AFFINODE_DISABLE": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill() if prefix else process.stdin.close()
        process.wait(timeout=60)


def test_processes_of_other_pid_namespaces_keep_their_memory_of_the_simulated_gpu(
    gpu_machine, namespaces, wait_until
):
    """And it is free again when they are killed."""

    def said() -> str:
        with asking_for(gpu_machine, 700) as answer:
            return answer

    with asking_for(gpu_machine, 700, *namespaces) as answer:
        assert answer == "has it"
        assert said() == "CUDA_ERROR_OUT_OF_MEMORY"
    wait_until(lambda: said() == "has it", timeout=60)


CHART_VALUES = {
    "image": {"repository": "a/b"},
    "parkedMemoryGiB": 1,
    "grants": {"publicKeys": {"hub-1.pem": "-----BEGIN PUBLIC KEY-----\n"}},
    "settings": {"idle_timeout_s": 0.5, "contended_idle_timeout_s": 0.5, "settle_s": 0.1},
}


def prepare(pod: Pod, size: int) -> subprocess.CompletedProcess[str]:
    """Run the init container's script as it stands in the manifest."""
    from hub_spawner import kubernetes

    script = kubernetes.PREPARE.format(
        folder="/opt/affinode", shim="libaffinode.so", size=size, wait_s=20, limit_s=40
    )
    return pod.run("/bin/sh", "-c", script)


@pytest.mark.long
def test_the_users_of_two_nodes_share_gpus_from_pods_with_one_user_id(
    machine, native, namespaces, wait_until
):
    machine.folder.chmod(0o755)
    cluster = Cluster(machine)
    nodes = [Node(cluster, name) for name in ("node-1", "node-2")]
    daemons = [
        node.start_controller(controller(CHART_VALUES)["args"], settings_file(CHART_VALUES)) for node in nodes
    ]
    ana, ben, elsewhere = Pod(nodes[0], "ana"), Pod(nodes[0], "ben"), Pod(nodes[1], "ana")
    for node, daemon in zip(nodes, daemons, strict=True):
        sockets = node.folder / "run" / "node.sock"
        wait_until(
            lambda daemon=daemon, sockets=sockets: sockets.exists() or daemon.poll() is not None, timeout=100
        )
        assert daemon.poll() is None, node.log()

    prepared = prepare(ana, 1 << 20)
    assert (prepared.returncode, prepared.stderr) == (0, ""), prepared
    assert "room" in prepared.stdout and "not used" not in prepared.stdout
    hers = ana.start_kernel()
    assert hers.preloaded == "/opt/affinode/libaffinode.so"
    assert hers.cell("700") == "has it"
    assert ana.kernels() == {"k": "resident"}
    assert ben.kernels() == elsewhere.kernels() == {}

    prepared = prepare(ben, 600 << 20)  # her kernel is idle, so there is room when his pod has asked
    assert prepared.returncode == 0, prepared
    assert ana.kernels() == {"k": "parked"}, nodes[0].log()
    assert ana.ask("/node")["host"]["lots"]["given_bytes"] >= 700 << 20, "parked in the controller's memory"
    his = ben.start_kernel()
    assert his.cell("700") == "has it"
    assert ben.kernels() == {"k": "resident"}
    assert hers.cell("look") == "same"
    assert ben.kernels() == {"k": "parked"}
    assert his.cell("look") == "same"

    assert ben.ask("/kernels", grant=False)["error"] == "grant-required"
    assert elsewhere.kernels() == {}
    for each in (hers, his):
        each.close()
    for node in nodes:
        assert "Traceback" not in node.log(), node.log()


@pytest.mark.parametrize("missing", ["controller", "place for the shim", "everything of ours"])
def test_the_init_container_ends_well_whatever_is_missing(machine, native, namespaces, missing):
    machine.folder.chmod(0o755)
    pod = Pod(Node(Cluster(machine), "node"), "ana")
    shim = machine.folder / "node" / "ana" / "libaffinode.so"
    if missing == "place for the shim":
        shim.parent.chmod(0o555)
    if missing == "everything of ours":
        pod.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    assert prepare(pod, 1 << 20).returncode == 0
    assert shim.exists() is (missing == "controller")


NOISE = "ERROR: ld.so: object '/opt/site.so' from /etc/ld.so.preload cannot be preloaded: ignored."


@pytest.mark.parametrize("is_broken", [False, True], ids=["works", "is broken"])
def test_what_a_sites_own_preloading_prints_does_not_keep_the_shim_from_a_pod(native, tmp_path, is_broken):
    """Each program of the image prints a line on standard error, as with a broken /etc/ld.so.preload."""
    from hub_spawner import kubernetes

    folder, programs, brought = tmp_path / "affinode", tmp_path / "bin", tmp_path / "brought.so"
    folder.mkdir()
    programs.mkdir()
    brought.write_bytes(b"no library" if is_broken else (native / "libaffinode.so").read_bytes())
    for name, script in {
        "cat": f'echo "{NOISE}" >&2; exec /bin/cat "$@"',
        "python3": f"echo {brought}",
        "jupyter-affinode": "",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    script = kubernetes.PREPARE.format(folder=folder, shim="libaffinode.so", size=1, wait_s=1, limit_s=2)
    env = {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert (folder / "libaffinode.so").exists() is not is_broken
    if is_broken:
        assert "is not used: ERROR: ld.so: object" in done.stdout and NOISE not in done.stdout
    else:
        assert done.stdout == ""

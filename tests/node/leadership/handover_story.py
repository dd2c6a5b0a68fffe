"""A machine's controller appears while a user's own one serves two kernels; run by test_handover.py.

Runs in a mount namespace of its own, in which /run is empty, and in a pid namespace, with which everything ends. Prints
"done" when all is as it should be.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

import live_machine  # noqa: E402
from gpu_cells import KEEPER, contents  # noqa: E402
from waiting import wait_until  # noqa: E402

OWN = Path(os.environ.get("AFFINODE_FOLDER", "/")) / "node.sock"
MACHINES = Path("/run/affinode/node.sock")


def ask(socket: Path, method: str, path: str) -> object:
    """The JSON of one answer; None if no controller answers."""
    with (
        contextlib.closing(live_machine.UnixConnection(socket, timeout=60)) as connection,
        contextlib.suppress(OSError),
    ):
        return live_machine.ask(connection, method, f"/api/v1{path}", {} if method == "POST" else None)[1]
    return None


def residencies(socket: Path, owner: str = "") -> dict[str, str]:
    """Where the kernels are, as a controller says."""
    answer = ask(socket, "GET", "/kernels")
    kernels = answer["kernels"] if isinstance(answer, dict) else []
    return {kernel["id"].removeprefix(owner): kernel["residency"] for kernel in kernels if kernel["tracked"]}


def start_kernel(kernel_id: str) -> subprocess.Popen[str]:
    """A program that uses the GPU."""
    command = [sys.executable, "-m", "jupyter_affinode.cli", "run", "--", sys.executable, "-c", KEEPER, "64"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env={**os.environ, "AFFINODE_KERNEL_ID": kernel_id}, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


def start_machines() -> subprocess.Popen[bytes]:
    """The machine's controller."""
    return subprocess.Popen(
        [sys.executable, "-m", "jupyter_affinode.node", "--system", "--settle=0.2", "--ledger=none"]
    )


def main() -> None:
    """The story."""
    kernels = {name: start_kernel(name) for name in ("parked", "resident")}
    both = {"parked": "resident", "resident": "resident"}
    wait_until(lambda: residencies(OWN) == both, message="the user's controller knows both")
    ask(OWN, "POST", "/kernels/parked/park")
    before = {"parked": "parked", "resident": "resident"}
    assert residencies(OWN) == before, residencies(OWN)
    users = ask(OWN, "GET", "/node")["controller"]["pid"]
    locks = list(Path("/tmp").glob(f"affinode-{os.getuid()}/serves-*.lock"))
    machines = start_machines()
    wait_until(lambda: not OWN.exists(), message="the user's controller ends")
    wait_until(lambda: residencies(MACHINES) == before, message="the machine's knows both as they were")
    assert ask(MACHINES, "GET", "/node")["controller"]["pid"] == machines.pid != users
    ours = wait_until(
        lambda: {path.name for path in MACHINES.parent.glob("serves-*.lock")},
        message="the machine's controller has seen its GPU",  # shims may be quicker than NVML
    )
    assert ours <= {path.name for path in locks}, "it serves the user's GPU"
    assert contents(kernels["parked"]) == "same"
    wait_until(lambda: residencies(MACHINES)["parked"] == "resident", message="it was brought back")
    ask(MACHINES, "POST", "/kernels/resident/park")
    machines.send_signal(signal.SIGKILL)
    machines.wait()
    machines = start_machines()
    wait_until(
        lambda: residencies(MACHINES) == {"parked": "resident", "resident": "parked"}, message="it is back"
    )
    refused = subprocess.run(
        [sys.executable, "-m", "jupyter_affinode.node", "--settle=0.1", f"--socket={OWN.parent.parent}/own/node.sock"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert refused.returncode == 3 and "machine's own controller" in refused.stderr, refused
    assert contents(kernels["resident"]) == "same"
    for process in kernels.values():
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    machines.terminate()
    machines.wait(timeout=60)
    assert not MACHINES.exists()
    print("done", flush=True)


if __name__ == "__main__":
    main()

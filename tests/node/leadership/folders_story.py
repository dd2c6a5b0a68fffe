"""Another user has our folder in /tmp, and a socket of the machine's controller was left behind; run by test_start.py.

Runs as root in a mount namespace of its own, with an empty /run and /tmp, and in a pid namespace, with which everything
ends. Prints "done" when all is as it should be.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from gpu_cells import KEEPER, contents  # noqa: E402
from handover_story import MACHINES, ask, start_machines  # noqa: E402
from waiting import wait_until  # noqa: E402

from jupyter_affinode.client.starting import ensure_controller  # noqa: E402
from jupyter_affinode.node.system.peers import parent_of  # noqa: E402
from jupyter_affinode.provisioning.preload import manage  # noqa: E402

USUAL = Path(f"/tmp/affinode-{os.getuid()}")
SESSION = Path("/tmp/session")
HOME = Path("/tmp/home")


def leave_sockets() -> None:
    """What is left of the machine's controller, which will not come back."""
    MACHINES.parent.mkdir()
    for name, kind in (("node.sock", socket.SOCK_STREAM), ("link.sock", socket.SOCK_SEQPACKET)):
        with socket.socket(socket.AF_UNIX, kind) as left:
            left.bind(str(MACHINES.with_name(name)))


def start_kernel() -> subprocess.Popen[str]:
    """A kernel whose kernelspec names other folders than its server has."""
    command = [sys.executable, "-c", KEEPER, "64"]
    env = {**os.environ, "TMPDIR": "/tmp/a", "XDG_RUNTIME_DIR": "/tmp/b", "HOME": "/tmp/c"}
    manage(env, "k", command)
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def residency(path: Path, kernel_id: str = "k") -> str | None:
    """Where the kernel is, as a controller says."""
    answer = ask(path, "GET", f"/kernels/{kernel_id}")
    return answer.get("residency") if isinstance(answer, dict) else None


def main() -> None:
    """The story."""
    for folder in (SESSION, HOME, Path(os.environ["AFFINODE_SIM_DIR"])):
        folder.mkdir(mode=0o700, parents=True)
    os.environ.update(XDG_RUNTIME_DIR=str(SESSION), HOME=str(HOME))
    leave_sockets()
    USUAL.mkdir(mode=0o700)
    os.chown(USUAL, 12345, 12345)

    kernel = start_kernel()
    own = ensure_controller(timeout_s=60)
    assert own.is_relative_to(HOME), own
    wait_until(lambda: residency(own) == "resident", message="the kernel is managed all the same")
    shutil.rmtree(SESSION)  # the user logs out
    ask(own, "POST", "/kernels/k/park")
    wait_until(lambda: residency(own) == "parked", message="it is parked")
    assert contents(kernel) == "same"

    os.rmdir(USUAL)
    assert ensure_controller(timeout_s=60) == own, "there would be two"
    first = ask(own, "GET", "/node")["controller"]["pid"]
    for pid in (parent_of(first), first):  # its supervisor would start it again, where it was
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ask(own, "GET", "/node") is None, message="it is gone")
    second = ensure_controller(timeout_s=60)
    assert second.parent == USUAL, second
    wait_until(lambda: residency(second) == "resident", message="the kernel follows")
    assert contents(kernel) == "same"

    machines = start_machines()
    wait_until(lambda: not second.exists(), message="the user's controller gives way")
    wait_until(lambda: residency(MACHINES) == "resident", message="the kernel follows")
    assert contents(kernel) == "same"
    kernel.stdin.close()
    assert kernel.wait(timeout=60) == 0
    machines.terminate()
    machines.wait(timeout=60)
    print("done", flush=True)


if __name__ == "__main__":
    main()

"""Nodes and pods on one machine: folders stand for a node's disk, and mount and pid namespaces for its containers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_cells import SETUP
from live_machine import Machine
from namespaces import NAMESPACES

from jupyter_affinode.client.grant_signing import make_keys, sign_grant

UID = 1000  # of all users' pods
AUDIENCE = "affinode:cluster"
PYTHON = Path(sys.executable)
# $1 is the node's folder, $2 the pod's; what follows is the command. /tmp hides all other folders of the test.
MOUNTS = """\
set -e
mount -t tmpfs run /run
mkdir /run/affinode /run/gpu /run/pod /run/python
mount --bind "$1/run" /run/affinode
mount --bind "$1/gpu" /run/gpu
mount --bind "$2" /run/pod
{more}
mount -t tmpfs tmp /tmp
{opened}
shift 2
cd /tmp
exec "$@"
"""
USER_MOUNTS = """\
mount -o remount,bind,ro /run/affinode
mount -t tmpfs opt /opt
mkdir /opt/affinode
mount --bind "$2" /opt/affinode
"""
CONTROLLER_MOUNTS = "mount -o remount,bind,ro /"
REPOSITORY = Path(__file__).resolve().parents[2]
NO_CAPABILITIES = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]
AS_USER = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs", "--"]
PROGRAM = f"""{SETUP}
import os, sys
block, wanted = None, None
print(os.environ["LD_PRELOAD"], flush=True)
for line in sys.stdin:
    if line.strip().isdigit():
        block = Block(int(line), seed=os.getpid() + len(os.environ["AFFINODE_GRANT"]))
        wanted = block.checksum()
        print("has it", flush=True)
    else:
        print("same" if block.checksum() == wanted else "other", flush=True)
"""
ASK = """
import http.client, os, socket, sys
link = http.client.HTTPConnection("localhost")
link.sock = socket.socket(socket.AF_UNIX)
link.sock.connect("/run/affinode/node.sock")
grant = os.environ.get("AFFINODE_GRANT")
link.request("GET", "/api/v1" + sys.argv[1], headers={"Authorization": f"Bearer {grant}"} if grant else {})
print(link.getresponse().read().decode())
"""


def opened_folders() -> tuple[str, str]:
    """Return commands that open the way to the interpreter and to this project, in the namespace alone.

    They may lie in the home folder of root, where a pod's user may not go, or in /tmp. The first commands come before
    /tmp is hidden, the others after.
    """
    needed = list(dict.fromkeys([Path(sys.base_prefix), Path(sys.prefix), REPOSITORY]))
    closed = {_closed_above(path) for path in needed} - {None}
    before, after = [], [f"mount -t tmpfs -o mode=755 opened {folder}" for folder in sorted(map(str, closed))]
    for number, path in enumerate(needed):
        if _closed_above(path) is not None or path.is_relative_to("/tmp"):
            before.append(f"mkdir /run/python/{number}; mount --bind {path} /run/python/{number}")
            after.append(f"mkdir -p {path}; mount --bind /run/python/{number} {path}")
    return "\n".join(before), "\n".join(after)


def _closed_above(path: Path) -> Path | None:
    return next((each for each in reversed([path, *path.parents]) if not each.stat().st_mode & 1), None)


class Cluster:
    """The Hub's key, and the machine on which nodes are."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.private, self.public = make_keys()

    def grant(self, user: str) -> str:
        """Sign as the Hub does."""
        return sign_grant(self.private, "hub-1", user=user, audience=AUDIENCE)


class Node:
    """A node: its folder for the socket, its simulated GPU, its controller's pod."""

    def __init__(self, cluster: Cluster, name: str):
        self.cluster = cluster
        self.folder = cluster.machine.folder / name
        for each in ("run", "gpu", "controller"):
            (self.folder / each).mkdir(parents=True)
        (self.folder / "gpu").chmod(0o777)  # as the devices of a GPU
        (self.folder / "gpu" / "machine").touch()
        (self.folder / "gpu" / "machine").chmod(0o666)

    def container(
        self, pod: str, command: Sequence[str], more: str, environ: dict[str, str], **options: Any
    ) -> subprocess.Popen[str]:
        """Start a container of a pod."""
        (self.folder / pod).mkdir(exist_ok=True)
        simulated = {"AFFINODE_SIM": "1", "AFFINODE_SIM_DIR": "/run/gpu", "AFFINODE_SIM_MEMORY": "1GiB"}
        path = f"{PYTHON.parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        before, after = opened_folders()
        mounts = MOUNTS.format(more=f"{before}\n{more}", opened=after)
        script = ["sh", "-c", mounts, "sh", str(self.folder), str(self.folder / pod)]
        mark = {"AFFINODE_TEST": str(self.folder)}
        return self.cluster.machine.start(
            *NAMESPACES, *script, *command, env={"PATH": path, "HOME": "/tmp", **simulated, **mark, **environ},
            cwd="/", text=True, **options,
        )  # fmt: skip

    def start_controller(
        self, arguments: Sequence[str], settings: str, ip: str = "127.0.0.1"
    ) -> subprocess.Popen[str]:
        """Start the controller's pod as the chart describes it: the files of a ConfigMap are links.

        All containers here have one network: `ip` is the pod's address in it.
        """
        pod = self.folder / "controller"
        for kind, name, content in (
            ("settings", "jupyter_affinode_config.py", settings.encode()),
            ("keys", "hub-1.pem", self.cluster.public),
        ):
            version = pod / kind / "..2026"
            version.mkdir(parents=True)
            (version / name).write_bytes(content)
            (pod / kind / "..data").symlink_to("..2026")
            (pod / kind / name).symlink_to(f"..data/{name}")
        places = {
            "/etc/affinode-keys": "/run/pod/keys",
            "/var/lib/affinode": "/run/pod",
            "0.0.0.0": ip,
            "$(NODE_NAME)": self.folder.name,
        }
        moved = [_moved(each, places) for each in arguments]
        environ = {
            "JUPYTER_CONFIG_DIR": "/run/pod/settings",
            "JUPYTER_PLATFORM_DIRS": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        log = (self.folder / "controller.log").open("w")
        with log:
            return self.container(
                "controller", [*NO_CAPABILITIES, str(PYTHON), "-m", "jupyter_affinode.node", *moved],
                CONTROLLER_MOUNTS, environ, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self) -> str:
        """Return what the controller wrote."""
        return (self.folder / "controller.log").read_text()


def _moved(argument: str, places: dict[str, str]) -> str:
    for place, here in places.items():
        argument = argument.replace(place, here)
    return argument


class Pod:
    """A user's pod on a node."""

    def __init__(self, node: Node, user: str):
        self.node, self.user = node, user
        self.environ = {"AFFINODE_GRANT": node.cluster.grant(user)}
        (node.folder / user).mkdir()
        (node.folder / user).chmod(0o777)  # an emptyDir

    def run(self, *command: str, grant: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a container to its end."""
        environ = {name: value for name, value in self.environ.items() if grant or name != "AFFINODE_GRANT"}
        process = self.node.container(
            self.user, [*AS_USER, *command], USER_MOUNTS, environ,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        said, errors = process.communicate(timeout=100)
        return subprocess.CompletedProcess(command, process.returncode, said, errors)

    def kernels(self) -> dict[str, str]:
        """What the user sees in the controller: kernels' residencies by id."""
        return {each["id"]: each["residency"] for each in self.ask("/kernels")["kernels"]}

    def ask(self, path: str, *, grant: bool = True) -> Any:
        """Return the answer of the controller's API, asked from inside the pod."""
        asked = self.run(str(PYTHON), "-c", ASK, path, grant=grant)
        assert asked.returncode == 0, asked.stderr
        return json.loads(asked.stdout)

    def start_kernel(self) -> Kernel:
        """Start a kernel with the shim that the init container copied."""
        environ = {
            **self.environ,
            "AFFINODE_KERNEL_ID": "k",
            "AFFINODE_LIBRARY": "/opt/affinode/libaffinode.so",
        }
        run = ["-m", "jupyter_affinode.cli", "run", "--", str(PYTHON), "-c", PROGRAM]
        process = self.node.container(
            self.user, [*AS_USER, str(PYTHON), *run], USER_MOUNTS, environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return Kernel(process)


class Kernel:
    """A program in a pod that uses the GPU."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process
        self.preloaded = self._answer()

    def cell(self, text: str) -> str:
        """Run a cell: a number of MiB to be taken, or else a look at them."""
        assert self.process.stdin
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """End it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)

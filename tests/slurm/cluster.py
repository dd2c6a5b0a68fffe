"""A real Slurm on one machine: munge, slurmctld, slurmdbd with its database and slurmd, in namespaces of their own.

Slurm is unpacked, not installed: in the namespaces it is mounted over /usr. /run, the users and the host's name are the
cluster's own, and all that it starts ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_hub import user_python
from live_machine import Machine, new_machine
from live_server import exists, free_port
from namespaces import needs_namespaces
from waiting import wait_until

from jupyter_affinode.environment import SIM_LINKS, library_folder

REPOSITORY = Path(__file__).resolve().parents[2]
USERS = {"ana": 61011, "bob": 61012}
ACCOUNTS = {"ana": "physics", "bob": "biology"}
FREEZER = Path("/sys/fs/cgroup/freezer")
NAMESPACES = (
    "setpriv",
    "--pdeathsig=KILL",
    "unshare",
    "--mount",
    "--pid",
    "--uts",
    "--cgroup",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
# The first process of the namespaces notes the ends of processes, or their numbers stayed taken.
REAP = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
print("ready", flush=True)
while True:
    signal.sigwait([signal.SIGCHLD])
    while True:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                break
        except ChildProcessError:
            break
"""
ASK = """
import http.client, json, socket, sys
connection = http.client.HTTPConnection("localhost", timeout=60)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/affinode/node.sock")
connection.request(sys.argv[1], "/api/v1" + sys.argv[2], sys.argv[3] or None, {"Content-Type": "application/json"})
answer = connection.getresponse()
print(json.dumps([answer.status, json.loads(answer.read() or "null")]))
"""
SLURM = """
ClusterName=test
SlurmctldHost=node1(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/slurm/state
SlurmdSpoolDir={folder}/slurm/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurm/slurmctld.log
SlurmdLogFile={folder}/slurm/slurmd.log
SlurmdDebug=verbose
SlurmdParameters=config_overrides
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
DefMemPerCPU=1000
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStorageEnforce=associations,qos
AccountingStorageTRES=gres/gpu,gres/shard
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
PreemptType=preempt/qos
PreemptMode=REQUEUE
KillWait={kill_wait}
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName=node1 NodeAddr=127.0.0.1 CPUs=8 RealMemory=8000 Gres=gpu:1,shard:4 Features=affinode
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:1
"""
CGROUPS = """
CgroupPlugin=cgroup/v1
CgroupAutomount=no
"""
DATABASE = """
AuthType=auth/munge
DbdHost=localhost
DbdPort={dbd}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile={folder}/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""
CONTROLLER = """
c.NodeController.settle_s = 0.2
c.NodeController.margin_bytes = 16 << 20
c.NodeController.host_reserve_bytes = 1 << 28
c.NodeController.contended_idle_timeout_s = 0.5
c.NodeController.low_watermark = 0.0
"""


def fetched_slurm() -> Path:
    """The folder that is mounted over /usr; skips, with the reason, where Slurm cannot be had."""
    fetched = subprocess.run(
        [REPOSITORY / "binder" / "slurm.sh", REPOSITORY / "build" / "slurm"], capture_output=True, text=True
    )
    if fetched.returncode:
        pytest.skip(f"Slurm cannot be had: {fetched.stderr.strip()}")
    return Path(fetched.stdout.strip())


class Cluster:
    """One node with one simulated GPU in four shards, and the users of `USERS`."""

    def __init__(self, machine: Machine, gpu_memory: str = "128MiB", **site: str):
        """`site`: options of `jupyter affinode slurm files`."""
        if os.getuid() != 0:
            pytest.skip("Slurm's daemons run as root")
        self.machine, self.folder = machine, machine.folder
        self.slurm = fetched_slurm()
        if not FREEZER.is_dir():
            pytest.skip("Slurm keeps track of jobs by the freezer of cgroups, and that is not here")
        needs_namespaces(*NAMESPACES, "sh", "-c", self._mounts(probe=True))
        self.python = self.folder / "python"
        self.site_options = site
        self.gpu_memory = gpu_memory
        self.api_port = free_port()
        self.cgroup = FREEZER / self.folder.name
        self.init = 0
        self.kill_wait = 30
        self._slurmd: subprocess.Popen[Any] | None = None

    # ---- its start

    def start(self) -> Cluster:
        """Start it, and wait until its node takes jobs."""
        self._write()
        self.cgroup.mkdir()
        enter = ["sh", "-c", f'echo $$ > {self.cgroup}/cgroup.procs && exec "$@"', "sh"]
        words = [
            *enter,
            *NAMESPACES,
            "sh",
            "-c",
            f'{self._mounts()} && exec "$@"',
            "sh",
            user_python(),
            "-c",
            REAP,
        ]
        outside = self.machine.start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert outside.stdout is not None
        said = outside.stdout.readline()
        assert said == "ready\n", said + outside.stdout.read()
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        self.init = int(children[0])
        database = self.folder / "slurm" / "mysql"
        self.daemon(
            "munged",
            "--force",
            "--foreground",
            f"--key-file={self.folder}/slurm/munge.key",
            *(f"--{name}-file=/run/munge/{name}" for name in ("seed", "log", "pid")),
        )
        # An empty database, without what only users of it need. It names temporary files by its process's number, which
        # another cluster's may have.
        (self.folder / "slurm" / "tmp").mkdir()
        alone = ("env", f"TMPDIR={self.folder}/slurm/tmp")
        install = ("--no-defaults", "--user=root", f"--datadir={database}", "--skip-test-db")
        self.root(*alone, "mariadb-install-db", *install)
        self.daemon(
            *("mariadbd", "--no-defaults", "--user=root", f"--datadir={database}", "--skip-networking"),
            *("--skip-grant-tables", "--socket=/run/mysqld/mysqld.sock", "--pid-file=/run/mysqld/pid"),
            *("--innodb-buffer-pool-size=16M", f"--tmpdir={self.folder}/slurm/tmp"),
        )
        wait_until((self.inside("/run/mysqld/mysqld.sock")).exists, 60, self.log)
        wait_until((self.inside("/run/munge/munge.socket.2")).exists, 60, self.log)
        self.daemon("slurmdbd", "-D")
        self._wait_for("sacctmgr", "show", "cluster")
        for words in (
            "add cluster test",
            "add qos urgent Priority=100 Preempt=normal",
            "modify qos normal set Priority=10 GraceTime=60",
            "add account physics Fairshare=3",
            "add account biology Fairshare=1",
            *(f"add user {user} Account={ACCOUNTS[user]}" for user in USERS),
            "modify user ana set qos=normal,urgent",
            "modify user bob set qos=normal,urgent",
        ):
            self.root("sacctmgr", "--immediate", *words.split())
        self.daemon("slurmctld", "-D")
        self.start_slurmd()
        return self

    def start_slurmd(self) -> None:
        """Start the node's daemon, and wait until it takes jobs."""
        self._slurmd = self.daemon("slurmd", "-D", "-N", "node1")
        wait_until(lambda: self.node_state() in ("idle", "mixed", "allocated"), 60, self.log)

    def restart_slurmd(self) -> None:
        """Kill the node's daemon, and start it again."""
        assert self._slurmd is not None
        pid = int(self.inside("/run/slurmd.pid").read_text())
        self.root("kill", "-9", str(pid))
        self._slurmd.wait(timeout=60)
        self.start_slurmd()

    def _mounts(self, *, probe: bool = False) -> str:
        steps = [
            f"mount -t overlay overlay -o lowerdir={self.slurm}/usr:/usr /usr",
            "mount -t tmpfs -o mode=755 tmpfs /run",
        ]
        if not probe:
            steps += [
                f"mount --bind {self.folder}/etc/{name} /etc/{name}" for name in ("passwd", "group", "hosts")
            ]
            steps += ["mkdir -m 755 /run/munge /run/mysqld", "hostname node1"]
            steps += ["mount -t tmpfs tmpfs /sys/fs/cgroup", "mkdir /sys/fs/cgroup/freezer"]
            steps += ["mount -t cgroup -o freezer cgroup /sys/fs/cgroup/freezer"]
        return " && ".join(steps)

    def _write(self) -> None:
        folder = self.folder
        folder.chmod(0o755)
        for name in ("etc", "slurm/mysql", "slurm/state", "slurm/spool", "home", "gpu", "sim"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name).chmod(0o755)
        for name, row in (("passwd", "{0}:x:{1}:{1}::{2}/home/{0}:/bin/sh\n"), ("group", "{0}:x:{1}:\n")):
            rows = "".join(row.format(user, uid, folder) for user, uid in USERS.items())
            (folder / "etc" / name).write_text(Path(f"/etc/{name}").read_text() + rows)
        for user, uid in USERS.items():
            (folder / "home" / user).mkdir()
            os.chown(folder / "home" / user, uid, uid)
        (folder / "etc" / "hosts").write_text("127.0.0.1 localhost node1\n")
        key = folder / "slurm" / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        simulated = folder / "gpu" / "machine"
        simulated.touch()
        simulated.chmod(0o666)
        for name, ours in SIM_LINKS.items():
            (folder / "sim" / name).symlink_to(library_folder() / ours)
        device = folder / "gpu" / "nvidia0"
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
        packages = f"{REPOSITORY}:{sysconfig.get_path('purelib')}"
        self.python.write_text(
            "#!/bin/sh\n"
            f"export PYTHONPATH={packages} PYTHONDONTWRITEBYTECODE=1 AFFINODE_SIM=1 AFFINODE_SIM_DIR={folder}/gpu"
            f" AFFINODE_SIM_MEMORY={self.gpu_memory} AFFINODE_SIM_CONTEXT=4MiB\n"
            f"[ $(id -u) != 0 ] || export JUPYTER_CONFIG_DIR={folder}/etc\n"
            f'[ "$1" != -I ] || shift\nexec {user_python()} "$@"\n'
        )
        self.python.chmod(0o755)
        self.site = folder / "etc" / "site"
        made = self.machine.affinode(
            *("slurm", "files", str(self.site), f"--place={self.site}", f"--python={self.python}"),
            *("--nodes=node1", "--gpus=1", "--shards=4", f"--devices={device}"),
            *(f"--{name.replace('_', '-')}={value}" for name, value in self.site_options.items()),
        )
        assert made.returncode == 0, made.stderr
        ports = {name: free_port() for name in ("ctld", "slurmd", "dbd")}
        values = {"folder": folder, "kill_wait": self.kill_wait, **ports}
        ours = (self.site / "slurm.conf").read_text()
        (folder / "etc" / "slurm.conf").write_text(SLURM.format(**values) + ours)
        (folder / "etc" / "gres.conf").write_text("AutoDetect=off\n" + (self.site / "gres.conf").read_text())
        (folder / "etc" / "cgroup.conf").write_text(CGROUPS)
        (folder / "etc" / "slurmdbd.conf").write_text(DATABASE.format(**values))
        (folder / "etc" / "slurmdbd.conf").chmod(0o600)
        settings = (self.site / "jupyter_affinode_config.py").read_text() + CONTROLLER
        settings += f"c.NodeController.api_port = {self.api_port}\n"
        (folder / "etc" / "jupyter_affinode_config.py").write_text(settings)

    def _wait_for(self, *command: str) -> None:
        said: list[str] = []

        def succeeds() -> bool:
            with contextlib.suppress(subprocess.TimeoutExpired):
                words = self.words(*command)
                done = subprocess.run(words, capture_output=True, text=True, timeout=3, env=self.environment)
                said.append(done.stdout + done.stderr)
                return not done.returncode
            return False

        wait_until(succeeds, 60, lambda: f"{said}{self.log()}")

    # ---- commands in it

    @property
    def environment(self) -> dict[str, str]:
        """What a command starts with; Slurm passes it on to jobs."""
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "SLURM_CONF": str(self.folder / "etc" / "slurm.conf"),
            "LD_LIBRARY_PATH": str(self.folder / "sim"),
            "NO_COLOR": "1",
        }

    def words(self, *command: str, user: str = "") -> list[str]:
        """A command line that runs in the cluster, as root or as one of its users."""
        become = []
        if user:
            uid, home = str(USERS[user]), f"{self.folder}/home/{user}"
            become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
            become += ["env", "-C", home, f"HOME={home}", f"USER={user}"]
        return ["nsenter", f"--target={self.init}", "--mount", "--pid", "--uts", *become, *command]

    def daemon(self, *command: str) -> subprocess.Popen[Any]:
        """Start something that lives as long as the cluster."""
        with (self.folder / "slurm" / f"{command[0]}.out").open("ab") as log:
            return self.machine.start(
                *self.words(*command), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def root(self, *command: str, check: bool = True) -> str:
        """Run a command as root; what it prints."""
        return self._run(self.words(*command), check)

    def run(self, user: str, *command: str, check: bool = True) -> str:
        """Run a command as a user; what it prints."""
        return self._run(self.words(*command, user=user), check)

    def _run(self, words: list[str], check: bool) -> str:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=self.environment)
        assert not check or not done.returncode, f"{words}\n{done.stdout}\n{done.stderr}\n{self.log()}"
        return done.stdout if not done.returncode else done.stdout + done.stderr

    def start_job(self, user: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start `srun …` as a user, with a shard."""
        words = self.words("srun", "--gres=shard:1", *arguments, user=user)
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return self.machine.start(*words, env=self.environment, text=True, **options)

    def submit(self, user: str, script: str, *arguments: str) -> int:
        """Submit a batch job with a shard; its id."""
        path = self.folder / "home" / user / "job.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        said = self.run(user, "sbatch", "--parsable", "--gres=shard:1", *arguments, str(path))
        return int(said.strip().partition(";")[0])

    # ---- what it says

    def inside(self, path: str) -> Path:
        """A file of the cluster's, as it is seen from here."""
        return Path(f"/proc/{self.init}/root{path}")

    def node_state(self) -> str:
        """The node's state."""
        words = self.words("sinfo", "--noheader", "--format=%T")
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=self.environment)
        return done.stdout.strip().rstrip("*")

    def job(self, job_id: int) -> dict[str, str]:
        """A job as slurmctld knows it; {} for one that it has forgotten."""
        text = self.root("scontrol", "show", "job", "--oneliner", str(job_id), check=False)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask the machine's controller, as root."""
        sent = "" if body is None else json.dumps(body)
        status, answer = json.loads(self.root(str(self.python), "-c", ASK, method, path, sent))
        return status, answer

    def kernels(self) -> dict[str, dict[str, Any]]:
        """The controller's kernels by id."""
        status, answer = self.ask("GET", "/kernels")
        assert status == 200, answer
        return {kernel["id"]: kernel for kernel in answer["kernels"]}

    def has_frozen(self) -> bool:
        """Whether a job is stopped, as `scontrol suspend` does two seconds after SIGTSTP."""
        states = self.cgroup.rglob("freezer.state")
        return any(path.read_text().strip() == "FROZEN" for path in states)

    def job_folders(self) -> list[str]:
        """The jobs that have a folder on the node."""
        folder = self.inside("/run/affinode/slurm")
        return sorted(os.listdir(folder)) if folder.exists() else []

    def processes(self, user: str) -> dict[int, str]:
        """The processes of a user in the cluster, by their number outside of it."""
        found = {}
        namespace = os.readlink(f"/proc/{self.init}/ns/pid")
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if path.stat().st_uid == USERS[user] and os.readlink(path / "ns" / "pid") == namespace:
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return {pid: words for pid, words in found.items() if words and exists(pid)}

    def log(self) -> str:
        """What its daemons wrote last."""
        logs = sorted((self.folder / "slurm").glob("slurm*.log")) + sorted(
            (self.folder / "slurm").glob("*.out")
        )
        node = self.inside("/run/affinode/node.log")
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in [*logs, node]
            if path.exists() and "mariadb" not in path.name
        )

    def stop(self) -> None:
        """End all that is in it."""
        if self.init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
        wait_until(self._left_cgroup, 60)

    def _left_cgroup(self) -> bool:
        """Remove its cgroups, once its processes have ended; return whether that is done."""
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not self.cgroup.exists()


@contextlib.contextmanager
def slurm_cluster(gpu_memory: str = "128MiB", **site: str) -> Iterator[Cluster]:
    """A cluster that runs, for as long as the context lasts."""
    with new_machine() as machine:
        made = Cluster(machine, gpu_memory, **site)
        try:
            yield made.start()
        finally:
            made.stop()

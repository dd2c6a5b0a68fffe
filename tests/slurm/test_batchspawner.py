"""A real Hub whose servers are jobs of a real Slurm, by the real SlurmSpawner."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, slurm_cluster
from fetched_criu import criu_for_users
from gpu_cells import SETUP
from live_hub import Hub
from tab import run_in_tab
from user_servers import UserServer
from waiting import wait_until

pytestmark = pytest.mark.long

SINGLEUSER = """
import sys
from jupyterhub.singleuser import main
sys.exit(main())
"""
SPAWNER = """
import batchspawner
c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.BatchSpawnerBase.exec_prefix = "setpriv --reuid={{username}} --regid={{username}} --clear-groups"
c.BatchSpawnerBase.batchspawner_singleuser_cmd = {python!r} + " -m batchspawner.singleuser"
c.SlurmSpawner.req_gres = "shard:1"
c.SlurmSpawner.batch_script = '''#!/bin/bash
#SBATCH --job-name=spawner-jupyterhub --chdir={{{{homedir}}}} --output={{{{homedir}}}}/slurm-%j.out
#SBATCH --export={{{{keepvars}}}} --gres={{{{gres}}}} --time=60
trap 'echo SIGTERM received' TERM
{{{{srun}}}} {{{{cmd}}}}
'''
c.SlurmSpawner.gpu_controllers = "http://{{host}}:{port}"
c.Spawner.notebook_dir = ""
"""


@pytest.fixture(scope="module")
def cluster(native: Path) -> Iterator[Cluster]:
    """A cluster on which users can hibernate kernels."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="aff-") as folder:  # which users can enter
        os.chmod(folder, 0o755)
        criu = criu_for_users(Path(folder) / "criu")
        with slurm_cluster("2200MiB", images="~/images", criu=str(criu)) as made:
            yield made


@pytest.fixture(scope="module")
def hub(cluster: Cluster) -> Iterator[Hub]:
    """A Hub on the cluster's node, with ana and bob."""
    single = cluster.folder / "singleuser"
    single.write_text(SINGLEUSER)
    single.chmod(0o755)
    made = Hub(
        cluster.machine,
        "6",
        prefix=cluster.words(),
        cmd=[str(single)],
        args=["--ServerApp.jpserver_extensions=jupyter_affinode=True"],
        spawner={
            "gpu_memory": "1120MiB",
            "gpu_wait_s": 60,
            "grant_key": str(cluster.site / "slurm.key"),
            "keep_kernels": "hibernated",
        },
        environment={
            "SLURM_CONF": cluster.environment["SLURM_CONF"],
            "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
        },
        later=SPAWNER.format(python=str(cluster.python), port=cluster.api_port),
    )
    made.environment.update(SLURM_CONF=cluster.environment["SLURM_CONF"])
    made.start()
    made.add("ana", "bob")
    yield made
    for user in ("ana", "bob"):
        made.ask("DELETE", f"/users/{user}/server")
    made.stop()


class JobOfHub(UserServer):
    """A server that the Hub started as a job."""

    def __init__(self, cluster: Cluster, hub: Hub, user: str):
        super().__init__(hub, user)
        self.cluster = cluster
        home = cluster.folder / "home" / user
        self.machine.environment["JUPYTER_RUNTIME_DIR"] = str(
            home / ".local" / "share" / "jupyter" / "runtime"
        )

    def log(self) -> str:
        """What the Hub, the jobs and Slurm's daemons wrote."""
        outputs = sorted((self.cluster.folder / "home" / self.user).glob("*.out"))
        return "\n".join(
            [self.hub.log()[-6000:], *(path.read_text()[-4000:] for path in outputs), self.cluster.log()]
        )

    def start_job(self) -> list[str]:
        """Have the Hub start it; what the spawn page told."""
        self.hub.spawn(self.user)
        told = self.hub.follow(self.user).whole()
        wait_until(lambda: self.hub.server(self.user).get("ready"), 120, self.log)
        return told

    def job(self) -> dict[str, str]:
        """Its job, which runs."""
        listed = self.cluster.root("squeue", "--noheader", f"--user={self.user}", "--format=%i").split()
        return self.cluster.job(int(listed[0])) if listed else {}

    def run(self, kernel_id: str, code: str) -> Any:
        """What a cell of a tab prints."""
        return run_in_tab(self, kernel_id, code)


def test_servers_are_jobs_that_share_and_whose_kernels_outlive_them(cluster: Cluster, hub: Hub) -> None:
    ana, bob = (JobOfHub(cluster, hub, user) for user in ("ana", "bob"))
    told = ana.start_job()
    assert any("room" in message for message in told), told
    kernel = ana.start_kernel(path="work.ipynb")
    made = kernel.run(f"{SETUP}\nblock = Block(1120, seed=7); kept = 41; print(block.checksum(), kept)")
    assert made.error is None, made.traceback
    kernel.close()
    told = bob.start_job()
    # Its park may end after the job has started, and with that what the page tells.
    freed = ("1 idle kernel is being freed", "1 idle kernel was freed")
    assert any(words in message for message in told for words in freed), (told, bob.log())
    theirs = bob.start_kernel()
    assert theirs.run(f"{SETUP}\nblock = Block(1120, seed=9)").error is None, bob.log()
    both = {"hub:ana": "parked", "hub:bob": "resident"}  # the list is as of the controller's last look
    wait_until(lambda: {each["user"]: each["residency"] for each in cluster.kernels().values()} == both)
    theirs.close()
    hub.ask("DELETE", "/users/bob/server")
    wait_until(lambda: not hub.server("bob") and not cluster.processes("bob"), 120, bob.log)

    cluster.root("scontrol", "update", f"JobId={ana.job()['JobId']}", "TimeLimit=1")
    wait_until(lambda: not ana.job() and not hub.server("ana").get("ready"), 240, ana.log)
    assert not cluster.processes("ana") and not cluster.job_folders()
    ana.start_job()
    assert [each["id"] for each in ana.request("GET", "/api/kernels")[1]] == [kernel.id], ana.log()
    said = ana.run(kernel.id, "print(block.checksum(), kept)")
    assert said.endswith(made.text), said  # perhaps after a line that it waits

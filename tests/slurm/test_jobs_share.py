"""Jobs of a real Slurm share one simulated GPU."""

from __future__ import annotations

import os
import subprocess

import pytest
from cluster import Cluster
from gpu_cells import KEEPER, contents
from waiting import wait_until

SITE = {"qos": "urgent=3"}
OPTS_IN = "--comment=affinode"

pytestmark = pytest.mark.long  # Slurm's start takes some ten seconds


def keeper(cluster: Cluster, user: str, *arguments: str, mib: int = 75) -> subprocess.Popen[str]:
    """A job that keeps a block of GPU memory, once it has it."""
    job = cluster.start_job(user, *arguments, str(cluster.python), "-c", KEEPER, str(mib))
    assert job.stdout is not None
    said = job.stdout.readline()
    if said != "ready\n":
        job.kill()
        raise AssertionError(f"{said}{job.communicate()}{cluster.log()}")
    return job


def end(job: subprocess.Popen[str]) -> None:
    """End it, as at the end of its input."""
    assert job.stdin is not None
    job.stdin.close()
    assert job.wait(timeout=60) == 0


def residencies(cluster: Cluster) -> dict[str, str]:
    """Where each user's memory is."""
    return {each["user"]: each["residency"] for each in cluster.kernels().values()}


def test_slurm_itself_finds_the_files_right(cluster: Cluster) -> None:
    node = cluster.root("scontrol", "show", "node", "node1")
    assert "Gres=gpu:1,shard:4" in node and "gres/shard=4" in node and "State=IDLE" in node
    known = cluster.root("sh", "-c", "slurmd -G -N node1 2>&1")
    assert "Name=gpu" in known and "Name=shard" in known and "Count=4" in known, known
    assert "NodeName=node1" in cluster.root("slurmd", "-C")
    configuration = cluster.root("scontrol", "show", "config")
    for name in ("Prolog", "Epilog", "TaskProlog", "HealthCheckProgram"):
        (line,) = (line for line in configuration.splitlines() if line.split("=")[0].strip() == name)
        assert os.access(line.split("=", 1)[1].strip(), os.X_OK)
    assert "fix your gres.conf" not in known


def test_the_idle_one_of_two_jobs_parks_for_the_other_and_nothing_is_left(cluster: Cluster) -> None:
    ana = keeper(cluster, "ana", OPTS_IN, "--qos=urgent")
    bob = keeper(cluster, "bob", "--constraint=affinode")
    # The list of all kernels is as of the controller's last look.
    wait_until(lambda: residencies(cluster) == {"hub:ana": "parked", "hub:bob": "resident"})
    assert {each["user"]: each["priority"] for each in cluster.kernels().values()} == {
        "hub:ana": 3,
        "hub:bob": 0,
    }
    assert contents(ana) == "same"
    wait_until(lambda: residencies(cluster) == {"hub:ana": "resident", "hub:bob": "parked"})
    assert contents(bob) == "same"
    end(ana)
    end(bob)
    wait_until(lambda: not cluster.job_folders() and not cluster.kernels(), message=cluster.log)
    assert not cluster.processes("ana") and not cluster.processes("bob")


def test_quotas_and_reports_are_by_slurms_accounts_and_jobs(cluster: Cluster) -> None:
    command = [str(cluster.python), "-m", "jupyter_affinode.cli"]
    printed = cluster.root(*command, "slurm", "quotas", "--gpus=4", "--gpu-memory=80")
    assert printed == "c.NodeController.quotas = '@hub:biology=80GiB, @hub:physics=240GiB'\n"
    ana = keeper(cluster, "ana", OPTS_IN)
    job_id = cluster.root("squeue", "--noheader", "--user=ana", "--format=%i").strip()
    wait_until(lambda: f"\n{job_id}," in cluster.root(*command, "report", "--by=job", "--csv"))
    assert "\nphysics," in cluster.root(*command, "report", "--by=account", "--csv")
    end(ana)
    known = cluster.root(
        "sacct", "--noheader", "--parsable2", f"--jobs={job_id}", "--format=JobID,Account,User"
    )
    assert f"{job_id}|physics|ana" in known


def test_a_job_that_is_no_notebook_and_did_not_opt_in_is_left_alone(cluster: Cluster) -> None:
    job = cluster.start_job("ana", "env")
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 0 and "AFFINODE_GRANT" not in said and "LD_PRELOAD" not in said
    named = cluster.start_job("ana", "--job-name=Jupyter", "env")
    said, _ = named.communicate(timeout=60)
    assert "AFFINODE_GRANT_FILE=/run/affinode/slurm/" in said and "libaffinode.so" in said
    wait_until(lambda: not cluster.job_folders())


def test_jobs_go_on_while_slurmd_is_restarted_and_the_controller_killed(cluster: Cluster) -> None:
    ana = keeper(cluster, "ana", OPTS_IN)
    cluster.restart_slurmd()
    assert contents(ana) == "same"
    killed = cluster.ask("GET", "/node")[1]["controller"]["pid"]
    cluster.root("kill", "-9", str(killed))
    bob = keeper(cluster, "bob", OPTS_IN)
    assert cluster.ask("GET", "/node")[1]["controller"]["pid"] != killed
    wait_until(lambda: residencies(cluster) == {"hub:ana": "parked", "hub:bob": "resident"})
    assert contents(ana) == "same"
    assert contents(bob) == "same"
    end(ana)
    end(bob)
    wait_until(lambda: not cluster.job_folders() and not cluster.kernels(), message=cluster.log)


def test_a_drained_nodes_jobs_end_as_usual_and_leave_nothing(cluster: Cluster) -> None:
    ana = keeper(cluster, "ana", OPTS_IN)
    cluster.root("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=test")
    assert contents(ana) == "same"
    end(ana)
    wait_until(lambda: cluster.node_state() == "drained" and not cluster.job_folders())
    wait_until(lambda: not cluster.kernels())
    assert not cluster.processes("ana")
    cluster.root("scontrol", "update", "NodeName=node1", "State=RESUME")
    wait_until(lambda: cluster.node_state() == "idle")


def test_what_leaves_its_step_does_not_outlive_its_job(cluster: Cluster) -> None:
    left = "setsid sleep 600 </dev/null >/dev/null 2>&1 & sleep 0.1"
    job = cluster.start_job("ana", OPTS_IN, "sh", "-c", left, stdin=subprocess.DEVNULL)
    assert job.wait(timeout=60) == 0, f"{job.communicate()}{cluster.log()}"
    wait_until(lambda: not cluster.job_folders(), message=cluster.log)
    assert not cluster.processes("ana"), cluster.processes("ana")

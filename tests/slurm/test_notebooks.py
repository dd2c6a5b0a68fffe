"""Notebooks that are jobs of a real Slurm: they hibernate when their job ends, and are parked when it is suspended."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, slurm_cluster
from fetched_criu import criu_for_users
from gpu_cells import SETUP
from job_server import JobServer
from live_server import JupyterKernel
from tab import run_in_tab
from waiting import wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(native: Path) -> Iterator[Cluster]:
    """A cluster on which users can hibernate kernels."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="aff-") as folder:  # which users can enter
        os.chmod(folder, 0o755)
        criu = criu_for_users(Path(folder) / "criu")
        with slurm_cluster("4GiB", qos="urgent=3", images="~/images", criu=str(criu)) as made:
            yield made


@pytest.fixture
def ana(cluster: Cluster) -> Iterator[JobServer]:
    """A server of ana's, submitted."""
    server = JobServer(cluster, "ana").submit()
    yield server
    for kernel in server.kernels:
        kernel.close()
    for user in ("ana", "bob"):
        cluster.root("scancel", f"--user={user}")
    wait_until(lambda: not cluster.job_folders(), message=server.log)
    shutil.rmtree(cluster.folder / "home" / "ana" / "images", ignore_errors=True)


def filled(server: JobServer) -> tuple[JupyterKernel, str]:
    """A kernel with a variable and GPU memory, and what it prints of them."""
    kernel = server.start_kernel(path="work.ipynb")
    made = kernel.run(f"{SETUP}\nblock = Block(24, seed=7); kept = 41; print(block.checksum(), kept)")
    assert made.error is None, made.traceback
    return kernel, made.text


def state_of(cluster: Cluster, kernel: JupyterKernel) -> str | None:
    """Where the kernel's GPU memory is."""
    found = [each for kernel_id, each in cluster.kernels().items() if kernel_id.endswith(kernel.id)]
    return found[0]["residency"] if found else None


def test_a_job_that_reaches_its_limit_hibernates_and_the_next_one_has_its_notebooks(
    cluster: Cluster, ana: JobServer
) -> None:
    kernel, told = filled(ana)
    kernel.close()
    cluster.root("scontrol", "update", f"JobId={ana.job_id}", "TimeLimit=1")
    wait_until(lambda: ana.state() == "TIMEOUT", 200, ana.log)
    assert ana.images() == [kernel.id], ana.log()
    wait_until(lambda: not cluster.job_folders() and not cluster.processes("ana"), message=ana.log)
    ana.submit()
    ana.again(kernel)
    assert run_in_tab(ana, kernel.id, "print(block.checksum(), kept)").endswith(told)


def test_a_preempted_job_hibernates_in_its_grace_time_and_the_next_one_has_its_notebooks(
    cluster: Cluster, ana: JobServer
) -> None:
    kernel, told = filled(ana)
    running = kernel.begin("import time\nwhile True: time.sleep(0.05)")
    urgent = cluster.submit("bob", "sleep 600", "--qos=urgent", "--gres=shard:4")
    wait_until(lambda: cluster.job(urgent)["JobState"] == "RUNNING", 120, ana.log)
    interrupted = kernel.wait(running)
    assert interrupted.error == "KeyboardInterrupt", "a cell that runs would end with its kernel"
    kernel.close()
    assert ana.images() == [kernel.id], ana.log()
    assert not cluster.processes("ana")
    assert ana.state() == "COMPLETED", "one that ends by itself is not requeued"
    cluster.root("scancel", str(urgent))
    ana.submit().again(kernel)
    assert run_in_tab(ana, kernel.id, "print(block.checksum(), kept)").endswith(told)


def test_a_suspended_job_has_freed_its_gpu_and_goes_on_when_it_is_resumed(
    cluster: Cluster, ana: JobServer
) -> None:
    kernel, told = filled(ana)
    wait_until(lambda: state_of(cluster, kernel) == "resident")  # as of the controller's last look
    cluster.root("scontrol", "suspend", str(ana.job_id))
    wait_until(cluster.has_frozen, message=ana.log)
    assert ana.state() == "SUSPENDED"
    assert state_of(cluster, kernel) == "parked", ana.log()
    cluster.root("scontrol", "resume", str(ana.job_id))
    assert kernel.run("print(block.checksum(), kept)").text == told
    wait_until(lambda: state_of(cluster, kernel) == "resident")


def test_a_job_that_is_requeued_has_its_notebooks_again(cluster: Cluster, ana: JobServer) -> None:
    kernel, told = filled(ana)
    kernel.close()
    cluster.root("scontrol", "requeue", str(ana.job_id))
    wait_until(lambda: ana.state() == "PENDING", message=ana.log)
    assert ana.images() == [kernel.id] and not cluster.processes("ana")
    # By itself it waits for two minutes. Within two seconds it would run no Prolog: see `objection_to_task`.
    cluster.root("scontrol", "update", f"JobId={ana.job_id}", "StartTime=now+4seconds")
    wait_until(lambda: ana.state() == "RUNNING" and cluster.job(ana.job_id)["Restarts"] == "1", 120, ana.log)
    ana.is_up().again(kernel)
    assert run_in_tab(ana, kernel.id, "print(block.checksum(), kept)").endswith(told)


def test_two_jobs_of_a_user_do_not_take_each_others_images(cluster: Cluster, ana: JobServer) -> None:
    kernel, told = filled(ana)
    assert ana.affinode(f"kernels/{kernel.id}/hibernate", "POST", {})[0] == 200
    other = JobServer(cluster, "ana").submit()
    assert other.request("GET", "/api/kernels")[1] == []
    assert run_in_tab(ana, kernel.id, "print(block.checksum(), kept)").endswith(told)

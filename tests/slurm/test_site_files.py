"""What a site's Slurm is given, and what its scripts make of a job, without Slurm itself."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_affinode import environment
from jupyter_affinode.cli.machine import slurm as command
from jupyter_affinode.keeping.earlier_folder import stand_in_for
from jupyter_affinode.node.identity.grants import GrantRefused, GrantVerifier
from jupyter_affinode.slurm import hooks, user_folders
from jupyter_affinode.slurm.files import SCRIPTS, Nodes, gres_conf, script
from jupyter_affinode.slurm.job import Details, Job, NoJob, parse_details
from jupyter_affinode.slurm.quotas import quotas, shares_of
from jupyter_affinode.slurm.site import AUDIENCE, Site, SiteRefused, read_site

SLURMD = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "61011",
    "SLURM_JOB_GID": "61012",
    "SLURM_JOB_USER": "ana",
    "SLURM_JOB_ACCOUNT": "physics",
}
JOB = Job(7, 61011, 61012, "ana", "physics")
NOTEBOOK = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "sys/dashboard/Jupyter",
    "SLURM_JOB_USER": "ana",
    "HOME": "/h",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site's folder, as the command writes it."""
    folder = tmp_path / "site"
    words = ["--nodes=n[1-2]", "--gpus=2", "--shards=3", "--qos=urgent=3", "--memory-per-shard=10GiB"]
    assert write(folder, *words, "--images=~/images/{user}") == 0
    return folder


def write(folder: Path, *words: str) -> int:
    """Run `jupyter affinode slurm files`."""
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    arguments = parser.parse_args(["slurm", "files", str(folder), *words])
    return int(arguments.command(arguments))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a node's jobs."""
    monkeypatch.setattr(hooks, "JOBS", tmp_path / "jobs")
    yield tmp_path / "jobs"
    for path in hooks.JOBS.glob("*"):
        user_folders.remove(path)


def test_the_folder_has_what_slurm_and_the_controllers_need(site: Path) -> None:
    names = {path.name for path in site.iterdir()}
    assert names == {
        *SCRIPTS,
        *("gres.conf", "slurm.conf", "jupyter_affinode_config.py", "site.json", "keys", "slurm.key"),
    }
    assert "Name=shard Count=6" in (site / "gres.conf").read_text()
    assert "Prolog=/etc/affinode/slurm/prolog" in (site / "slurm.conf").read_text()
    assert (site / "slurm.key").stat().st_mode & 0o777 == 0o600
    assert read_site(site) == Site(qos={"urgent": 3}, bytes_per_shard=10 << 30, images="~/images/{user}")


def test_writing_again_keeps_the_keys_by_which_jobs_that_run_are_known(site: Path) -> None:
    before = (site / "slurm.key").read_bytes()
    assert write(site, "--nodes=n1", "--gpus=1", "--shards=2") == 0
    assert (site / "slurm.key").read_bytes() == before
    assert "Count=2" in (site / "gres.conf").read_text()


def test_what_makes_no_sense_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word, said in (
        ("--qos=urgent", "written NAME=CLASS"),
        ("--qos=urgent=9", "from -5 to 5"),
        ("--memory-per-shard=lots", "lots"),
    ):
        assert write(tmp_path / "no", "--nodes=n1", "--gpus=1", "--shards=2", word) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_file_that_users_can_write_decides_nothing(site: Path) -> None:
    (site / "site.json").chmod(0o666)
    with pytest.raises(SiteRefused, match="others than root"):
        read_site(site)


def test_scripts_are_correct_shell_for_any_path(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not here: pip install --group apart")
    paths = []
    for verb in SCRIPTS:
        paths.append(tmp_path / verb)
        paths[-1].write_text(script(verb, "/opt/it's here/python", Path("/etc/a b")))
    fetch = Path(__file__).resolve().parents[2] / "binder" / "slurm.sh"
    done = subprocess.run([shellcheck, *paths, fetch], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_shards_are_counted_over_all_gpus_of_a_node() -> None:
    assert gres_conf(Nodes("n[1-2]", 4, 3, "a100")) == (
        "NodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3]\nNodeName=n[1-2] Name=shard Count=12\n"
    )


def test_a_job_is_what_slurmd_says() -> None:
    assert Job.of(SLURMD) == JOB
    assert Job.of({**SLURMD, "SLURM_JOB_COMMENT": "a,affinode"}).opts_in
    assert Job.of({**SLURMD, "SLURM_JOB_CONSTRAINTS": "x&affinode"}).opts_in
    assert not Job.of({**SLURMD, "SLURM_JOB_COMMENT": "no-affinode-please"}).opts_in
    for changed in ({"SLURM_JOB_ID": "../8"}, {"SLURM_JOB_UID": "-1"}, {"SLURM_JOB_ID": ""}):
        with pytest.raises(NoJob):
            Job.of({**SLURMD, **changed})


def test_details_are_read_by_column() -> None:
    line = f"{'urgent':64}{'2030-01-01T00:00:00':32}{'2':16}{'cpu=2,mem=2000M,gres/shard=4':512}\n"
    details = parse_details(line)
    assert (details.qos, details.shards, details.uses_gpus) == ("urgent", 2, True)
    assert details.ends_at is not None and details.ends_at > time.time()
    assert parse_details(f"{'N/A':64}{'N/A':32}{'1':16}{'cpu=1,mem=1M':512}") == Details("", False, 0, None)


def test_a_jobs_grant_names_its_account_and_is_good_for_its_user_alone(site: Path) -> None:
    grant = hooks.grant_of(JOB, Details("urgent", True, 2), read_site(site), site)
    verifier = GrantVerifier(site / "keys", [AUDIENCE])
    claims = verifier.verify(grant, 61011)
    assert (claims.user, claims.account, claims.job, claims.priority) == ("ana", "physics", "7", 3)
    assert claims.groups == ("physics", "qos-urgent") and claims.caps == {"gpu_bytes": 20 << 30}
    with pytest.raises(GrantRefused):
        verifier.verify(grant, 61012)


def needs_root() -> None:
    """Skip where this process cannot give files away."""
    if os.getuid() != 0:
        pytest.skip("Prolog and Epilog run as root")


def test_a_requeued_job_begins_anew_and_an_epilog_follows_no_link(jobs: Path, tmp_path: Path) -> None:
    needs_root()
    folder, others = jobs / "7", tmp_path / "others"
    others.mkdir()
    (others / "file").touch()
    for grant in ("first", "second"):
        hooks.make_job_folder(folder, JOB, grant, opts_in=grant == "first")
        (folder / "own" / "link").symlink_to(others)
    assert (folder / "grant").read_text() == "second\n" and not (folder / "opts-in").exists()
    status = (folder / "grant").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (61011, 61012, 0o400)
    hooks.remove_job_folder(folder)
    assert not folder.exists() and (others / "file").exists()


def test_only_notebooks_and_jobs_that_opted_in_are_managed(site: Path, jobs: Path) -> None:
    chosen = read_site(site)

    def variables(**environ: str) -> dict[str, str]:
        return hooks.task_environment({**NOTEBOOK, **environ}, chosen, site)

    assert variables() == {}, "its node knows nothing of it"
    assert hooks.objection_to_task(NOTEBOOK, chosen) is None, "it has no GPU"
    assert "Prolog" in (hooks.objection_to_task({**NOTEBOOK, "CUDA_VISIBLE_DEVICES": "0"}, chosen) or "")
    (jobs / "7").mkdir(parents=True)
    links = jobs / f"user-{os.getuid()}"
    links.mkdir()
    (jobs / "7" / "grant").touch()
    assert hooks.objection_to_task({**NOTEBOOK, "CUDA_VISIBLE_DEVICES": "0"}, chosen) is None
    found = variables(LD_PRELOAD="/lib/other.so")
    shim = str(environment.shim_path({}))
    assert found[environment.GRANT_FILE] == str(links / "7" / "grant")
    assert (links / "7" / "grant").samefile(jobs / "7" / "grant")
    assert found["LD_PRELOAD"] == f"{shim}:/lib/other.so" and found[environment.LIBRARY] == shim
    assert found[environment.HIBERNATE_DIR] == "/h/images/ana"
    assert environment.KERNEL_ID not in found
    assert environment.HIBERNATE_DIR not in variables(AFFINODE_HIBERNATE_DIR="/mine"), (
        "the user's choice stays"
    )
    assert variables(SLURM_JOB_NAME="train") == {}
    assert variables(SLURM_JOB_NAME="train", JUPYTERHUB_API_TOKEN="x")
    assert variables(SLURM_JOB_ID="../7") == {}
    (jobs / "7" / "opts-in").touch()
    found = variables(SLURM_JOB_NAME="train", SLURM_STEP_ID="2", SLURM_PROCID="1")
    assert found[environment.KERNEL_ID] == "slurm-7.2.1" and environment.HIBERNATE_DIR not in found


def test_a_script_of_a_broken_site_succeeds_and_says_why(tmp_path: Path) -> None:
    for verb in SCRIPTS:
        if verb == "health-check":
            continue  # it would start a controller
        words = [sys.executable, "-m", "jupyter_affinode.slurm", verb, str(tmp_path)]
        done = subprocess.run(words, env={**SLURMD}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert verb == "epilog" or "site.json cannot be read" in done.stdout + done.stderr


def test_what_outlives_its_job_is_killed_and_no_other_process(tmp_path: Path) -> None:
    own = tmp_path / "own"
    marked = {"PATH": os.environ["PATH"], environment.FOLDER: str(own)}
    left = subprocess.Popen(["sleep", "600"], env=marked)
    other = subprocess.Popen(["sleep", "600"], env={**marked, environment.FOLDER: f"{own}2"})
    try:
        job = Job(7, os.getuid(), 0, "me", "")
        wait = time.monotonic() + 60
        killed: list[int] = []
        while not killed and time.monotonic() < wait:  # Popen returns before the environment is in place
            killed = hooks.end_processes(job, own)
        assert killed == [left.pid] and left.wait(timeout=60) != 0
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_quotas_follow_from_the_accounts_shares() -> None:
    told = "root||\n root|root|1\n physics||3\n  optics||1\n  physics|ana|1\n biology||1\n  biology|bob|1\n"
    assert shares_of(told) == {"physics": 0.75, "optics": 0.75, "biology": 0.25}
    told = told.replace("optics||1", "optics||1\n  theory||2").replace("  optics||1", "  optics||1")
    assert shares_of(told)["optics"] == 0.25 and shares_of(told)["theory"] == 0.5
    told = "root||\n physics||3\n biology||1\n"
    assert quotas(shares_of(told).items(), 320) == "@hub:biology=80GiB, @hub:physics=240GiB"


def test_the_planner_says_how_many_jobs_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_affinode.slurm import shards

    asked = []

    def most_users(plan: object, wait_s: float, say: object) -> dict[str, object]:
        asked.append((plan, wait_s))
        return {"ways": {"affinode": {"users_per_gpu": 5.5}}}

    monkeypatch.setattr(shards, "most_users", most_users)
    assert shards.shards_per_gpu(2, 80, 512, 30, lambda text: None) == 5
    ((plan, wait_s),) = asked
    assert isinstance(plan, shards.Plan) and plan.ways == ("affinode",) and wait_s == 30
    assert (plan.machine.gpu_bytes, plan.machine.host_bytes, plan.machine.gpus) == (80 << 30, 512 << 30, 2)


def test_a_users_links_go_with_the_users_last_job(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_root()
    for number in (7, 8):
        hooks.make_job_folder(jobs / str(number), Job(number, 61011, 61011, "ana", ""), "x", opts_in=False)
    status = (jobs / "user-61011").stat()
    assert (status.st_uid, status.st_mode & 0o777) == (61011, 0o700)
    for number, left in ((7, {"8", "user-61011"}), (8, set())):
        for name, value in {**SLURMD, "SLURM_JOB_ID": str(number)}.items():
            monkeypatch.setenv(name, value)
        hooks.epilog()
        assert {path.name for path in jobs.iterdir()} == left


def test_a_kernel_that_wakes_in_the_next_job_finds_that_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "user-1"
    links.mkdir()
    for job in ("8", "9"):
        (tmp_path / job / "own").mkdir(parents=True)
        (links / job).symlink_to(tmp_path / job)
    monkeypatch.setenv(environment.FOLDER, str(links / "8" / "own"))
    for _ in range(2):  # also where it led to a job that has ended
        stand_in_for(str(links / "7" / "own"))
        assert (links / "7" / "own").samefile(tmp_path / "8" / "own")
        (links / "7").unlink()
        (links / "7").symlink_to(tmp_path / "gone")
    stand_in_for(str(links / "9" / "own"))
    assert (links / "9" / "own").samefile(tmp_path / "9" / "own"), "a job that runs has its own"
    stand_in_for("/elsewhere/7/own")
    stand_in_for("")

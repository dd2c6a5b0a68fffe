"""What Slurm's scripts do: Prolog and Epilog as root on the node of a job, TaskProlog as the job's user.

None of them fails: Slurm drains a node whose Prolog or Epilog does. What is missing is said in slurmd's log, and the
job starts as it would without us.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import environment, private_folders
from ..client.errors import ControllerUnavailable
from ..client.grant_signing import CannotSign, sign_grant
from ..client.starting import start_machines_controller
from ..others_environ import environs_of
from . import user_folders
from .job import Details, Job, NoJob, details_of
from .site import AUDIENCE, KEY_NAME, Site, SiteRefused, private_key, read_site

JOBS = environment.NODE_SOCKET.parent / "slurm"  # a folder for each job on this node, and one for each user
GRANT_NAME, OPTS_IN_NAME, OWN_NAME = "grant", "opts-in", "own"
NO_LIMIT_S = 400 * 86400.0  # a job without a time limit
LATE_S = 86400.0  # a job may end later than its limit says: OverTimeLimit, a limit that was raised
ENDS_WITHIN_S = 5.0
ALONE_WITHIN_S = 10.0
# What a user can put on /run: in a file system of its own for each job, and one for the links to the jobs.
JOBS_ROOM = user_folders.Room(64 << 20, 4096)
LINKS_ROOM = user_folders.Room(256 << 10, 1024)
KEY_BYTES_MAX = 1 << 16
HUBS_GRANT = (environment.GRANT, environment.GRANT_URL)  # the job's own says more
TASK_VARIABLES = (environment.HIBERNATE_DIR, environment.KEEP_KERNELS, environment.CRIU)


def say(text: str) -> None:
    """Say something in slurmd's log, which has what scripts write to standard error."""
    print(f"affinode: {text}", file=sys.stderr, flush=True)


def prolog(folder: Path) -> None:
    """See to the machine's controller, and make the job's folder, with its grant."""
    try:
        job, site = Job.of(os.environ), read_site(folder)
    except (NoJob, SiteRefused) as refused:
        return say(str(refused))
    try:
        details = details_of(job)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"job {job.id} gets no priority of its QOS, since slurmctld does not answer: {error}")
        details = Details()
    if not details.uses_gpus:
        return
    see_to_controller()
    try:
        make_job_folder(JOBS / str(job.id), job, grant_of(job, details, site, folder), opts_in=job.opts_in)
    except (OSError, CannotSign) as error:
        say(f"the GPU of job {job.id} is not managed: {error}")


def see_to_controller() -> None:
    """Start the machine's controller if it does not answer."""
    try:
        start_machines_controller()
    except ControllerUnavailable as error:
        say(f"{socket.gethostname()} shares no GPU: {error}")


def grant_of(job: Job, details: Details, site: Site, folder: Path) -> str:
    """Return what the job's processes show to the controller. Raises OSError and CannotSign.

    It is good for processes of the job's user alone. Rules of the controller know the account as the group
    `@hub:ACCOUNT` and the QOS as `@hub:qos-QOS`.
    """
    groups = [name for name in (job.account, details.qos and f"qos-{details.qos}") if name]
    most = site.bytes_per_shard * details.shards
    ends_in_s = NO_LIMIT_S if details.ends_at is None else details.ends_at - time.time() + LATE_S
    return sign_grant(
        private_folders.read_file(private_key(folder), KEY_BYTES_MAX),
        KEY_NAME,
        user=job.user,
        uid=job.uid,
        audience=AUDIENCE,
        lifetime_s=min(max(ends_in_s, LATE_S), NO_LIMIT_S),
        priority=site.qos.get(details.qos, 0),
        caps={"gpu_bytes": most} if most else None,
        groups=groups,
        account=job.account or None,
        job=str(job.id),
    )


def make_job_folder(folder: Path, job: Job, grant: str, *, opts_in: bool) -> None:
    """Make a job's folder, anew if it was requeued: its grant, which its user can read, and a folder of the user's.

    `opts_in`: its programs are managed, though it is no notebook.
    """
    folder.parent.mkdir(mode=0o755, exist_ok=True)
    private_folders.verify_folder(folder.parent, private_folders.KEYS)
    remove_job_folder(folder)
    with _alone_in(folder.parent):
        folder.mkdir(mode=0o755)
        links = folder.parent / links_name(job.uid)
        if not links.exists():
            links.mkdir(mode=0o700)
            _give_room(links, LINKS_ROOM, "0700", job)
            os.chown(links, job.uid, job.gid)
    _give_room(folder, JOBS_ROOM, "0755", job)
    descriptor = os.open(folder / GRANT_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "w") as file:
        file.write(grant + "\n")
        os.fchown(descriptor, job.uid, job.gid)
    if opts_in:
        (folder / OPTS_IN_NAME).touch()
    own = folder / OWN_NAME
    own.mkdir(mode=0o700)
    os.chown(own, job.uid, job.gid)


def _give_room(folder: Path, room: user_folders.Room, mode: str, job: Job) -> None:
    """Bound what the job's user can put into a folder. In a container that may mount nothing there is no bound."""
    try:
        user_folders.mount(folder, room, mode)
    except OSError as error:
        say(f"what job {job.id} puts into {folder} has no bound, since nothing can be mounted there: {error}")


def links_name(uid: int) -> str:
    """Return the name of a user's own folder beside those of the jobs.

    It has a link to each job's folder, and the jobs' environment names these: a kernel that is woken in the user's next
    job has the environment of its first, so its keeper leads that job's link to the next one's folder.
    """
    return f"user-{uid}"


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep the Prologs and Epilogs of other jobs of this node waiting. Raises OSError where one comes to no end.

    The lock is a file that root alone can open: any user can lock what that user can open, as the folder itself.
    """
    descriptor = os.open(folder.with_name(f"{folder.name}.lock"), environment.LOCK_FLAGS, 0o600)
    deadline = time.monotonic() + ALONE_WITHIN_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError("another job's Prolog or Epilog has not come to an end") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _remove_links(job: Job) -> None:
    """Remove the user's folder of links after the last of the user's jobs on this node."""
    with _alone_in(JOBS):
        if not any(_owner_of(path / OWN_NAME) == job.uid for path in JOBS.iterdir() if path.name.isdecimal()):
            remove_job_folder(JOBS / links_name(job.uid))


def _owner_of(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):  # another job's Epilog has removed it
        return path.lstat().st_uid
    return None


def remove_job_folder(folder: Path) -> None:
    """Remove a job's folder, the grant first. A part of it is the user's: no link in it is followed."""
    with contextlib.suppress(FileNotFoundError):
        revoke(folder)
        user_folders.remove(folder)


def revoke(folder: Path) -> None:
    """Remove a job's grant, whatever else is in the job's folder."""
    with contextlib.suppress(FileNotFoundError):
        (folder / GRANT_NAME).unlink()


def epilog() -> None:
    """Leave nothing of a job: its grant, processes that left its step, its sockets."""
    try:
        job = Job.of(os.environ)
    except NoJob as refused:
        return say(str(refused))
    folder = JOBS / str(job.id)
    if not folder.exists():
        return
    for what in (
        revoke,
        lambda folder: _end_left(job, folder),
        remove_job_folder,
        lambda _: _remove_links(job),
    ):
        try:
            what(folder)
        except OSError as error:
            say(f"{folder} cannot be removed: {error}")
    user_folders.remove_left(JOBS)


def _end_left(job: Job, folder: Path) -> None:
    for pid in end_processes(job, JOBS / links_name(job.uid) / folder.name / OWN_NAME):
        say(f"process {pid} of job {job.id} had not ended, and was killed")


def end_processes(job: Job, own: Path) -> list[int]:
    """Kill the job's processes that have outlived it, and return which; none where Slurm tracks them by cgroup.

    They have the job's folder in their environment. A user can only have processes of the user's own be killed by that.
    """
    deadline, killed = time.monotonic() + ENDS_WITHIN_S, []
    while found := list(_left(job, own)):
        for pid, descriptor in found:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                killed.append(pid)
            os.close(descriptor)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return sorted(set(killed))


def _left(job: Job, own: Path) -> Iterator[tuple[int, int]]:
    """Yield the processes of a job that live, each with a descriptor that can mean no other process."""
    opened: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == job.uid:
                opened[int(path.name)] = os.pidfd_open(int(path.name))
    environs = environs_of(opened)
    mark = f"{environment.FOLDER}={own}".encode()
    for pid, descriptor in opened.items():
        if mark in environs.get(pid, ()):
            yield pid, descriptor
        else:
            os.close(descriptor)


def task_prolog(folder: Path) -> None:
    """Print what a task's environment gets: lines that Slurm reads from a TaskProlog."""
    try:
        site = read_site(folder)
        variables = task_environment(os.environ, site, folder)
        for name, value in variables.items():
            print(f"export {name}={value}")
        for name in HUBS_GRANT if variables else ():
            print(f"unset {name}")
        if why := objection_to_task(os.environ, site):
            print(f"print affinode: {why}")
    except SiteRefused as refused:
        print(f"print affinode: {refused}")


def task_environment(environ: Mapping[str, str], site: Site, folder: Path) -> dict[str, str]:
    """Return the variables of a task; none where the job is no notebook and has not opted in, or its node knows nothing
    of it.
    """
    job = JOBS / environ.get("SLURM_JOB_ID", "")
    if not environ.get("SLURM_JOB_ID", "").isdecimal() or not (job / GRANT_NAME).exists():
        return {}
    is_notebook = _is_notebook(environ, site)
    if not is_notebook and not (job / OPTS_IN_NAME).exists():
        return {}
    link = JOBS / links_name(os.getuid()) / job.name
    with contextlib.suppress(FileExistsError):  # an earlier task's
        link.symlink_to(job)
    variables = {
        environment.GRANT_FILE: str(link / GRANT_NAME),
        environment.FOLDER: str(link / OWN_NAME),
    }
    shim = Path(site.shim) if site.shim else environment.shim_path({})
    if shim is not None:
        variables[environment.LIBRARY] = str(shim)
        others = [
            each for each in environ.get("LD_PRELOAD", "").replace(":", " ").split() if each != str(shim)
        ]
        variables["LD_PRELOAD"] = ":".join([str(shim), *others])
    if not is_notebook:
        # All processes of a task are parked together.
        step, task = environ.get("SLURM_STEP_ID", "0"), environ.get("SLURM_PROCID", "0")
        variables[environment.KERNEL_ID] = f"slurm-{job.name}.{step}.{task}"
    elif site.images:
        user = environ.get("SLURM_JOB_USER", "")
        images = site.images.replace("{user}", user)
        variables[environment.HIBERNATE_DIR] = images.replace("~", environ.get("HOME", "~"), 1)
        variables[environment.KEEP_KERNELS] = "hibernated"
        if site.criu:
            variables[environment.CRIU] = site.criu
    chosen = {name for name in TASK_VARIABLES if environ.get(name)}
    return {name: value for name, value in variables.items() if name not in chosen}


def objection_to_task(environ: Mapping[str, str], site: Site) -> str | None:
    """Return why a notebook with a GPU is not managed, though it should be; None if it is.

    Slurm before 23.02 looks only every two seconds for jobs that it has forgotten, so it runs no Prolog for one that
    begins anew within two seconds of its end: `_clear_expired_job_states` in src/common/slurm_cred.c of 22.05.
    """
    has_gpu = environ.get("CUDA_VISIBLE_DEVICES") and _is_notebook(environ, site)
    if not has_gpu or (JOBS / environ.get("SLURM_JOB_ID", "") / GRANT_NAME).exists():
        return None
    return (
        "the GPU of this job is not managed, and its notebooks of before are not here: this node's Prolog made nothing"
        " for it. slurmd's log says why; if it says nothing and the job was requeued, requeue it once more"
    )


def _is_notebook(environ: Mapping[str, str], site: Site) -> bool:
    """Return whether a job is a Hub's, or is called like a notebook's."""
    name = environ.get("SLURM_JOB_NAME", "").lower()
    return bool(environ.get("JUPYTERHUB_API_TOKEN")) or any(
        fnmatch.fnmatchcase(name, pattern.lower()) for pattern in site.notebooks
    )

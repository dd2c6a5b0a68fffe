"""A Jupyter server that is a job, and its kernels, as a front end uses them."""

from __future__ import annotations

from types import SimpleNamespace

from cluster import Cluster
from live_server import JupyterKernel, JupyterServer, free_port
from waiting import wait_until

# What jobs' servers do without a spawner.
OPTIONS = (
    "--ServerApp.jpserver_extensions=jupyter_affinode=True",
    "--KernelManager.transport=tcp",
    "--ServerApp.port_retries=0",
)


class JobServer(JupyterServer):
    """A user's server; each job of it has the same port and folder."""

    def __init__(self, cluster: Cluster, user: str):
        home = cluster.folder / "home" / user
        runtime = str(home / ".local" / "share" / "jupyter" / "runtime")
        super().__init__(SimpleNamespace(environment={"JUPYTER_RUNTIME_DIR": runtime}, folder=home))  # type: ignore[arg-type]
        self.cluster, self.user, self.port = cluster, user, free_port()
        self.job_id = 0

    def log(self) -> str:
        """What the job wrote, and Slurm's daemons."""
        outputs = (self.cluster.folder / "home" / self.user).glob("slurm-*.out")
        said = "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-6000:]}" for path in sorted(outputs)
        )
        return f"{said}\n{self.cluster.log()}"

    def submit(self, *arguments: str) -> JobServer:
        """Submit a job with the server, and wait until it answers."""
        options = [f"--ServerApp.port={self.port}", f"--IdentityProvider.token={self.token}", *OPTIONS]
        script = f"exec srun {self.cluster.python} -m jupyter_server {' '.join(options)}"
        self.job_id = self.cluster.submit(self.user, script, "--job-name=jupyter", "--requeue", *arguments)
        return self.is_up()

    def is_up(self) -> JobServer:
        """Wait until it answers."""
        wait_until(self._job_answers, 120, self.log)
        return self

    def _job_answers(self) -> bool:
        assert self.state() in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED"), self.log()
        try:
            return bool(self.request("GET", "/api/status", timeout=5)[0] == 200)
        except OSError:
            return False

    def state(self) -> str:
        """The job's state."""
        return self.cluster.job(self.job_id).get("JobState", "")

    def again(self, kernel: JupyterKernel) -> JupyterKernel:
        """A kernel of an earlier job, which this one's server has."""
        wait_until(
            lambda: kernel.id in {each["id"] for each in self.request("GET", "/api/kernels")[1]}, 60, self.log
        )
        return kernel

    def images(self) -> list[str]:
        """The user's images of hibernated kernels."""
        folder = self.cluster.folder / "home" / self.user / "images"
        return sorted(path.name for path in folder.glob("[!.]*"))

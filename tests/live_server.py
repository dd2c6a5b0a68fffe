"""A real Jupyter server in its own process, and its kernels as a front end would use them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.blocking.client import BlockingKernelClient
from live_machine import decoded, environment_of_started
from waiting import wait_until

if TYPE_CHECKING:
    from live_machine import Machine


# What else is installed and enabled here only costs a plain server's start time.
UNUSED = {
    "jupyterlab": False,
    "jupyter_lsp": False,
    "notebook": False,
    "notebook_shim": False,
    "jupyter_server_terminals": False,
}
ENABLED = '{"ServerApp": {"jpserver_extensions": {"jupyter_affinode": true}}}'
# On SIGUSR2 a server says what its threads do, also where its loop is blocked, and what its tasks wait for.
RUN = """
import asyncio, faulthandler, runpy, signal, sys
signal.signal(signal.SIGUSR2, lambda *_: [task.print_stack() for task in asyncio.all_tasks()])
faulthandler.register(signal.SIGUSR2, chain=True)
sys.argv[:] = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

# A cell that runs until it is interrupted. One long sleep may miss the signal: between Python's last look for
# signals and the system call, it interrupts nothing.
ENDLESS = "import time\nwhile True:\n    time.sleep(0.05)"


# Grants what `JupyterServer.allow` wrote last.
AUTHORIZER = """
import json, os
from jupyter_server.auth import Authorizer

class AsTheFileSays(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        with open(os.path.join(os.environ["JUPYTER_CONFIG_DIR"], "allowed.json")) as file:
            return [action, resource] in json.load(file) or not handler.request.path.startswith("/affinode")

c.ServerApp.authorizer_class = AsTheFileSays
"""


@dataclass
class Execution:
    """What one execute_request gave."""

    status: str  # ok, error or aborted
    text: str  # stdout and results
    stderr: str
    error: str | None  # the exception's name
    duration_s: float
    traceback: list[str] = field(default_factory=list)
    displays: list[str] = field(default_factory=list)  # each text of an updatable display, in order


class JupyterServer:
    """`jupyter server` (or another application, "lab") on a machine."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.token = secrets.token_hex(16)
        self.process: subprocess.Popen[Any] | None = None
        self.port = 0
        # Of ports that are looked for before a kernel binds them, another program may get one.
        self.transport = "ipc"
        self.root: Path | None = None  # its folder of notebooks, where that is not the machine's
        self.log_path = machine.folder / f"server-{self.token[:6]}.log"
        self.kernels: list[JupyterKernel] = []

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def start(
        self, *arguments: str, application: str = "jupyter_server", port: int = 0, timeout: float = 240
    ) -> JupyterServer:
        """Start it and wait until it answers; at a port of its own unless one is given."""
        self.port = port or free_port()
        with self.log_path.open("ab") as log:
            self.process = self.machine.start(
                sys.executable,
                "-c",
                RUN,
                application,
                "--no-browser",
                "--allow-root",
                "--ServerApp.ip=127.0.0.1",
                f"--ServerApp.port={self.port}",
                "--ServerApp.port_retries=0",
                f"--KernelManager.transport={self.transport}",
                f"--IdentityProvider.token={self.token}",
                f"--ServerApp.root_dir={self.root or self.machine.work}",
                *([f"--ServerApp.jpserver_extensions={UNUSED}"] if application == "jupyter_server" else []),
                *arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, timeout, lambda: f"the server: {self.log()}")
        return self

    def _answers(self) -> bool:
        """Whether it serves. Raises AssertionError if it has ended."""
        assert self.process is not None and self.process.poll() is None, self.log()
        with contextlib.suppress(OSError, AssertionError):
            return bool(self.request("GET", "/api/status"))
        return False

    def enable_extension(self) -> None:
        """Enable our extension also where the package is on the path, and not installed. Call it before the start."""
        folder = Path(self.machine.environment["JUPYTER_CONFIG_DIR"], "jupyter_server_config.d")
        folder.mkdir(exist_ok=True)
        (folder / "affinode.json").write_text(ENABLED)

    def allow(self, *actions: str) -> None:
        """Let users only do these to kernels through our REST API: "read", "write". Call it before the start, too."""
        folder = Path(self.machine.environment["JUPYTER_CONFIG_DIR"])
        (folder / "jupyter_server_config.py").write_text(AUTHORIZER)
        (folder / "allowed.json").write_text(json.dumps([(action, "kernels") for action in actions]))

    def stop(self) -> None:
        """End it as a person's Ctrl-C does, kernels included."""
        for kernel in self.kernels:
            kernel.close()
        self.terminate()

    def terminate(self) -> None:
        """End its process as a Hub does."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGUSR2)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=2)
                self.process.kill()
                self.process.wait(timeout=60)
                if not self._waits_for_worker_thread():
                    raise AssertionError(
                        f"the server did not stop within 60 s:\n{self.log()[-12000:]}"
                    ) from None

    def _waits_for_worker_thread(self) -> bool:
        """Whether a server that had ended its kernels and its loop waits for ever for one of AnyIO's threads, which a
        task was to end that the loop no longer runs (jupyterlab issue 10442). Nothing of ours can hold it there.
        """
        stacks = self.log().rpartition("Shutting down")[2].partition("(most recent call first)")[2]
        waits = "in _shutdown" in stacks and "anyio/_backends/_asyncio.py" in stacks
        return waits and "jupyter_affinode/" not in stacks

    def kill(self) -> None:
        """SIGKILL it; its kernels live on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)

    def log(self) -> str:
        """What the server and its kernels wrote."""
        return self.log_path.read_text(errors="replace")

    def request(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, timeout: float = 70
    ) -> tuple[int, Any]:
        """One authenticated REST request: (status, JSON or text)."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token if token is None else token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, decoded(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, decoded(error.read())

    def affinode(self, path: str = "status", method: str = "GET", body: Any = None) -> tuple[int, Any]:
        """One request to our REST API: `affinode("kernels/<id>/park", "POST", {})`."""
        return self.request(method, f"/affinode/api/{path}", body)

    def start_kernel(self, name: str = "python3", path: str | None = None) -> JupyterKernel:
        """Start a kernel, with a session when a notebook path is given, and wait until it answers."""
        if path is None:
            status, model = self.request("POST", "/api/kernels", {"name": name})
        else:
            body = {"name": path, "path": path, "type": "notebook", "kernel": {"name": name}}
            status, model = self.request("POST", "/api/sessions", body)
            model = model["kernel"] if status == 201 else model
        assert status == 201, (model, self.log())
        kernel = JupyterKernel(self, model["id"])
        self.kernels.append(kernel)
        return kernel


class JupyterKernel:
    """One kernel of a server; executes over its ZMQ channels, everything else over the server's REST API."""

    def __init__(self, server: JupyterServer, kernel_id: str):
        self.server = server
        self.id = kernel_id
        runtime = Path(server.machine.environment["JUPYTER_RUNTIME_DIR"])
        self.client = BlockingKernelClient(connection_file=str(runtime / f"kernel-{kernel_id}.json"))
        self.client.load_connection_file()
        self.client.start_channels()
        self.wait_for_ready()

    def wait_for_ready(self, timeout: float = 120) -> None:
        """Wait until it answers; a heartbeat that is missed while it starts is no death."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.client.wait_for_ready(timeout=max(deadline - time.monotonic(), 1))
                return
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise

    def listen_again(self, timeout: float = 30) -> None:
        """Hear its output again after it was away.

        A subscription is sent anew only when the program next reads, as libzmq does it; what comes before is lost.
        """
        end = time.monotonic() + timeout
        while not self.client.iopub_channel.socket.poll(50):
            assert time.monotonic() < end, f"nothing is heard of the kernel: {self.server.log()}"
            self.client.kernel_info()
        while self.client.iopub_channel.socket.poll(100):
            self.client.get_iopub_msg(timeout=1)

    @property
    def path(self) -> str:
        """Its REST path."""
        return f"/api/kernels/{self.id}"

    @property
    def pid(self) -> int:
        """The pid of the kernel's process (Python kernels only)."""
        return int(self.run("import os; print(os.getpid())").text)

    def run(self, code: str, timeout: float = 120) -> Execution:
        """Execute a cell and wait for its end."""
        return self.wait(self.submit(code), timeout)

    def submit(self, code: str) -> str:
        """Send a cell; its message id, for `wait`. ipykernel is not to abort what is sent right after its error."""
        return self.client.execute(code, allow_stdin=False, stop_on_error=False)

    def begin(self, code: str, timeout: float = 120) -> str:
        """Send a cell and wait until its code runs (only then an interrupt reaches it); its message id.

        An interrupt reaches code that looks for signals again and again, as `ENDLESS`.
        """
        message_id = self.submit(f"print('begun', flush=True)\n{code}")
        self._output(message_id, "stream", timeout)
        return message_id

    def wait_for_display(self, message_id: str, timeout: float = 120) -> str:
        """Wait until a submitted cell shows an updatable display; its text."""
        return str(self._output(message_id, "display_data", timeout)["data"]["text/plain"])

    def _output(self, message_id: str, kind: str, timeout: float) -> dict[str, Any]:
        """The content of a submitted cell's next iopub message of that kind."""
        deadline = time.monotonic() + timeout
        while True:
            message = self._message("iopub", deadline - time.monotonic())
            if message["parent_header"].get("msg_id") == message_id and message["msg_type"] == kind:
                return message["content"]

    def wait(self, message_id: str, timeout: float = 120) -> Execution:
        """Wait for the reply and the idle of a submitted cell; AssertionError after `timeout` seconds."""
        began = time.monotonic()
        text, stderr, error, traceback, displays = [], [], None, [], []
        while True:
            left = timeout - (time.monotonic() - began)
            message = self._message("iopub", left)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                (text if content["name"] == "stdout" else stderr).append(content["text"])
            elif content.get("transient", {}).get("display_id"):
                displays.append(content["data"]["text/plain"])
            elif kind in ("execute_result", "display_data"):
                text.append(content["data"].get("text/plain", ""))
            elif kind == "error":
                error, traceback = content["ename"], content["traceback"]
            elif kind == "status" and content["execution_state"] == "idle":
                break
        while True:
            reply = self._message("shell", timeout - (time.monotonic() - began))
            if reply["parent_header"].get("msg_id") == message_id:
                duration = time.monotonic() - began
                return Execution(
                    reply["content"]["status"],
                    "".join(text),
                    "".join(stderr),
                    error,
                    duration,
                    traceback,
                    displays,
                )

    def _message(self, channel: str, left: float) -> dict[str, Any]:
        from queue import Empty

        try:
            return getattr(self.client, f"get_{channel}_msg")(timeout=max(left, 0.001))
        except Empty:
            raise AssertionError(
                f"no {channel} message in time; the server's log:\n{self.server.log()[-4000:]}"
            ) from None

    def interrupt(self) -> None:
        """Interrupt it through the server, as the stop button does."""
        status, answer = self.server.request("POST", f"{self.path}/interrupt")
        assert status == 204, answer

    def restart(self) -> None:
        """Restart it through the server and wait until it answers again."""
        status, answer = self.server.request("POST", f"{self.path}/restart")
        assert status == 200, answer
        self.wait_for_ready()

    def shutdown(self) -> None:
        """Shut it down through the server."""
        self.close()
        status, answer = self.server.request("DELETE", self.path)
        assert status == 204, answer

    def close(self) -> None:
        """Close the channels; the kernel lives on."""
        self.client.stop_channels()

    def state(self) -> dict[str, Any]:
        """The kernel as our server extension describes it."""
        status, answer = self.server.affinode(f"kernels/{self.id}")
        assert status == 200, answer
        return answer

    def environment(self) -> dict[str, str]:
        """The environment the kernel's process was started with."""
        raw = environment_of_started(self.pid).decode()
        return dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)

    def alive(self) -> bool:
        """Whether the server still has it."""
        return self.server.request("GET", self.path)[0] == 200


_given: deque[int] = deque(maxlen=100)  # ports that may not be listened on yet


def free_port() -> int:
    """A port for a server that listens a second later: none that the system gives to kernels and connections, nor
    another of pytest's workers to a server of its own.

    Browsers refuse some ports of other protocols; the highest is 10080.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 10_081 + secrets.randbelow(20_000)
        if port % workers != worker % workers or port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.append(port)
            return port


def exists(pid: int) -> bool:
    """Whether a process lives (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False

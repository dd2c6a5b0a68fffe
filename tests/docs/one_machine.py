"""Follow docs/hub/one-machine.md as an administrator: its commands, its configuration, its five steps.

`python tests/docs/one_machine.py [--rounds N] [REPOSITORY]`, as root. The machine stays as it is: /etc, /home, /opt and
other folders are a layer over this machine's, in a namespace, with a loopback network of its own once all is installed.
The users are told apart by name, cookies and kernels as for two browsers, without one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "binder"))

import requests
from clean_place import (
    REPOSITORY,
    Failed,
    Steps,
    blocks,
    plain_environment,
    report,
    running,
    temporary_folder,
    wait_until,
)
from front_end import CellFailed, NotebookKernel, Server, ServerFailed

LAYERED = ("etc", "home", "opt", "srv", "var", "root")
PAGE = REPOSITORY / "docs" / "hub" / "one-machine.md"
SERVICE = PAGE.with_name("service.md")
CONFIG = Path("/opt/jupyterhub/jupyterhub_config.py")
HUB = "http://127.0.0.1:8000"
PARKED = re.compile(
    "There is room for 600 MiB, 1 idle kernel was freed|Your server starts; its first GPU cell waits"
)
NAVIGATE = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}  # as browsers send it
WAIT_S = 300.0
CLONE_NEWNET = 0x40000000
INSIDE = "AFFINODE_DOCS_INSIDE"


class Shell:
    """A terminal: what a block changes of folder and environment holds for the next one."""

    def __init__(self, folder: Path, home: Path):
        self.environment = plain_environment(home)
        self._cwd, self._state = folder, home / "state"

    def run(self, text: str) -> None:
        """Type a block; Failed where one of its commands does."""
        script = f"set -e\n{text}\nenv -0 > {self._state}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            env=self.environment,
            cwd=self._cwd,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise Failed(f"{text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        self.environment = dict(
            entry.split("=", 1) for entry in self._state.read_text().split("\0") if "=" in entry
        )
        self._cwd = Path(self.environment["PWD"])


class User:
    """A user of the Hub in a browser of their own."""

    def __init__(self, name: str, hub: subprocess.Popen[bytes]):
        self.name, self._hub = name, hub
        self._browser = requests.Session()
        self._browser.headers.update(NAVIGATE)
        page = self._browser.get(f"{HUB}/hub/login?next=/hub/home", timeout=WAIT_S)
        form = {"username": name, "password": "x", "_xsrf": xsrf(page.text)}
        home = self._browser.post(page.url, data=form, timeout=WAIT_S)
        if not home.ok or "/hub/login" in home.url:
            raise Failed(f"{name} cannot log in: {home.status_code}")

    def start_server(self) -> list[str]:
        """Start the server as the spawn page does, and return what that page says."""
        self._browser.get(f"{HUB}/hub/spawn/{self.name}", timeout=WAIT_S)
        address = f"{HUB}/hub/api/users/{self.name}/server/progress"
        said = []
        with self._browser.get(
            address, stream=True, timeout=WAIT_S, headers={"X-XSRFToken": self._xsrf()}
        ) as told:
            for line in told.iter_lines():
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    said.append(event["message"])
                    if event.get("failed"):
                        raise Failed(f"the server of {self.name} did not start: {said}")
        return said

    async def notebook(self) -> NotebookKernel:
        """Open a notebook."""
        address = f"{HUB.removeprefix('http://')}/user/{self.name}/"
        return await NotebookKernel.start(Server(self._hub, address, self.token()), f"{self.name}.ipynb")

    def token(self) -> str:
        """Return a new token for programs."""
        answer = self._browser.post(
            f"{HUB}/hub/api/users/{self.name}/tokens",
            json={},
            headers={"X-XSRFToken": self._xsrf()},
            timeout=WAIT_S,
        )
        return str(answer.json()["token"])

    def stop_server(self) -> None:
        """Stop the server and wait until the Hub says that it has ended."""
        address = f"{HUB}/hub/api/users/{self.name}"
        headers = {"X-XSRFToken": self._xsrf()}
        self._browser.delete(f"{address}/server", headers=headers, timeout=WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while self._browser.get(address, headers=headers, timeout=WAIT_S).json()["server"] is not None:
            if time.monotonic() > deadline:
                raise Failed(f"the server of {self.name} does not stop")
            time.sleep(0.2)

    def page(self, path: str) -> str:
        """Return the text of a page."""
        answer = self._browser.get(f"{HUB}{path}", timeout=WAIT_S)
        if not answer.ok:
            raise Failed(f"{path}: {answer.status_code}")
        return answer.text

    def _xsrf(self) -> str:
        return xsrf(self.page("/hub/home"))


def xsrf(page: str) -> str:
    """Return the token that the Hub's page gives to its scripts and forms."""
    found = re.search(r'(?:xsrf_token:|name="_xsrf"\s+value=)\s*"([^"]+)"', page)
    if found is None:
        raise Failed(f"no XSRF token:\n{page[:1000]}")
    return found[1]


def expect(words: str, text: str) -> None:
    """Say Failed where a text does not have what the page promises."""
    if words not in text:
        raise Failed(f"not said: {words!r}, but:\n{text[-2000:]}")


async def until(words: str, look: Callable[[], Awaitable[str]]) -> None:
    """Wait until what is looked at has the words; Failed with the last of it after a while."""
    deadline = time.monotonic() + WAIT_S
    while words not in (seen := await look()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {WAIT_S:g} s: {words!r}, but:\n{seen[-2000:]}")
        await asyncio.sleep(0.5)


async def story(hub: subprocess.Popen[bytes], steps: Steps) -> None:
    """Do the page's five steps."""
    cell = next(block for block in blocks(PAGE, "python") if "cuMemAlloc" in block)
    again = "check(cuda.cuMemsetD32_v2(memory, 9, words)); check(cuda.cuCtxSynchronize())"
    expect(again, PAGE.read_text())
    async with served(hub, "gina") as (gina, told):
        expect("There is room for 600 MiB (simulated GPU)", "\n".join(told))
        steps.done("gina's server is ready")
        hers = await gina.notebook()
        await hers.execute(cell)
        steps.done("gina's cell has 600 MiB on the GPU")
        async with served(hub, "hugo") as (hugo, told):
            # Which of the page's sentences are said first depends on how long gina's kernel has been idle by then.
            if not PARKED.search("\n".join(told)):
                raise Failed(f"gina's kernel was not parked: {told}")
            steps.done(f"hugo's server is ready: {told[-3]}")
            his = await hugo.notebook()
            await his.execute(cell)
            steps.done("hugo's cell has 600 MiB on the GPU")
            expect("GPU freed, 600 MiB safe in RAM", await hers.execute("%gpu_status"))
            await hers.execute(again)
            await until("GPU freed, 600 MiB safe in RAM", functools.partial(his.execute, "%gpu_status"))
            steps.done("gina's next call has its memory back, hugo's is parked for it")
            asked = next(block for block in blocks(SERVICE, "sh") if block.startswith("curl"))
            environment = {**os.environ, "JUPYTERHUB_API_TOKEN": hugo.token()}
            answer = subprocess.run(["sh", "-c", asked], env=environment, capture_output=True, text=True)
            expect('"text": "GPU: ', answer.stdout)
            root = User("root", hub)
            shown = root.page("/services/affinode/")
            for words in ("gina", "hugo", "600 MiB"):
                expect(words, shown)
            steps.done("a program is told about free room, root's page shows both users")


@contextlib.asynccontextmanager
async def served(hub: subprocess.Popen[bytes], name: str) -> AsyncIterator[tuple[User, list[str]]]:
    """Log a user in and start their server; it is stopped at the end."""
    user = User(name, hub)
    told = await asyncio.to_thread(user.start_server)
    try:
        yield user, told
    finally:
        user.stop_server()


def install(repository: str, shell: Shell, steps: Steps) -> None:
    """Type the page's first block, and write its configuration."""
    shell.run(next(blocks(PAGE, "sh")).replace("REPOSITORY", repository))
    CONFIG.write_text(next(blocks(PAGE, "python")))
    steps.done("clone, virtual environment, installation, proxy, users")


def serve(environment: dict[str, str], folder: Path) -> float:
    """Start the Hub as the page says, and do its steps; return how many seconds they took."""
    command = next(block for block in blocks(PAGE, "sh") if "--all-users" in block)
    log, steps = folder / "hub.log", Steps()
    with running(["bash", "-c", f"exec env {command}"], log, environment, folder) as hub:
        wait_until(answers, "answer of the Hub", hub, log, WAIT_S)
        steps.done("the Hub answers")
        try:
            asyncio.run(story(hub, steps))
        except (CellFailed, ServerFailed) as error:
            raise Failed(f"{error}\n{log.read_text(errors='replace')[-4000:]}") from None
        hub.send_signal(signal.SIGTERM)
        hub.wait()
    return steps.sum()


def answers() -> bool:
    """Whether the Hub and its page about GPUs do."""
    with contextlib.suppress(requests.RequestException):
        here = requests.get(f"{HUB}/hub/login", timeout=WAIT_S)
        return here.ok and requests.get(f"{HUB}/services/affinode/room", timeout=WAIT_S).status_code == 401
    return False


def afterwards(shell: Shell, steps: Steps) -> None:
    """Type the blocks about a real GPU and about uninstalling, but for what only a machine that systemd runs can do."""
    for block in list(blocks(PAGE, "sh"))[2:]:
        lines = [line for line in block.splitlines() if not line.startswith("systemctl ")]
        text = "\n".join(lines).replace("pip uninstall", "pip uninstall --yes")
        unit = "/etc/systemd/system/affinode.service"
        if f"> {unit}" in text:
            text += f"\nsystemd-analyze verify {unit}"
        else:
            shell.run("mkdir -p /var/lib/affinode")  # as the unit makes it
        shell.run(text)
    steps.done("unit, doctor, uninstalled")


def inside(repository: str, rounds: int, folder: Path) -> float:
    """Lay folders over this machine's, install, and go on in a network of its own."""
    for name in LAYERED:
        upper, work = folder / name, folder / f"{name}.work"
        upper.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        options = f"lowerdir=/{name},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, f"/{name}"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    home = Path("/home/administrator")
    shell, steps = Shell(Path("/srv"), home), Steps()
    if CONFIG.exists():
        shell.run(next(line for line in next(blocks(PAGE, "sh")).splitlines() if line.startswith("export ")))
    else:
        install(repository, shell, steps)
    # The users' folders in /tmp, and the ports, would be those of other programs.
    subprocess.run(["mount", "--bind", folder, "/mnt"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/tmp"], check=True)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        taken = serve(shell.environment, Path("/mnt"))
    afterwards(shell, Steps())
    return taken


def main() -> int:
    """Return 0 if each step did what the page says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", nargs="?", default=str(REPOSITORY))
    parser.add_argument(
        "--rounds", type=int, default=1, help="how often the Hub is started and the five steps are done"
    )
    parser.add_argument("--folder", type=Path, help="where to install, or to go on after a failure")
    arguments = parser.parse_args()
    if folder := os.environ.pop(INSIDE, ""):
        return report(lambda: inside(arguments.repository, arguments.rounds, Path(folder)))
    with temporary_folder() if arguments.folder is None else contextlib.nullcontext(arguments.folder) as made:
        made.mkdir(mode=0o755, exist_ok=True)
        made.chmod(0o755)
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        command = [*namespaces, sys.executable, __file__, *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, INSIDE: str(made)}).returncode


if __name__ == "__main__":
    sys.exit(main())

"""What the machine's controller costs while nothing happens: `python tests/node/bench_quiet.py [--shims 300]`.

Starts a controller as `--system`, connects so many shims to it that do as idle kernels' do (a heartbeat a second, a
page that is written ten times a second, nothing else), and as many servers' streams of events as a tenth of that;
then prints which part of one core the controller used over `--seconds`. Its quiet is the usual state of a machine
full of notebooks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "support"), str(Path(__file__).parents[1])]

import fake_shim  # noqa: E402
from fake_shim import MIB, FakePage, hello, message, send  # noqa: E402
from live_machine import UnixConnection  # noqa: E402
from people import as_user  # noqa: E402

GPUS = [bytes([number] * 16) for number in range(8)]
FIRST_USER = 61000  # of thirty, if we may become others; one person alone may have 256 processes
BEAT_S, SAMPLE_S = 1.0, 0.1


class QuietShims:
    """Many idle kernels' ends of the link, on one thread."""

    def __init__(self, folder: Path, count: int, users: int):
        self._selector = selectors.DefaultSelector()
        self._pages = [FakePage() for _ in range(count)]
        self._links = []
        for number, page in enumerate(self._pages):
            page.memory = {GPUS[number % len(GPUS)]: [300 * MIB, 0, 5 * MIB]}
            page.write()
            with as_user(FIRST_USER + number % users) if users else contextlib.nullcontext():
                link = fake_shim.connect(folder / "link.sock")
            send(link, hello(f"kernel-{number}"), page.descriptor)
            link.setblocking(False)
            self._selector.register(link, selectors.EVENT_READ)
            self._links.append(link)
        self._beat_at = self._sample_at = time.monotonic()

    def run(self, seconds: float) -> None:
        """Be idle for so long."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if now >= self._beat_at:
                self._beat_at = now + BEAT_S
                for link in self._links:
                    link.send(message(fake_shim.HEARTBEAT, b""))
            if now >= self._sample_at:
                self._sample_at = now + SAMPLE_S
                for page in self._pages:
                    page.write()
            for key, _ in self._selector.select(0.05):
                if not key.fileobj.recv(4096):
                    raise SystemExit("the controller hung up")


def stream(path: Path) -> socket.socket:
    """A server's stream of events; what comes is left unread, which is little while it is quiet."""
    connection = UnixConnection(path)
    connection.request("GET", "/api/v1/events")
    return connection.sock


def kernels(path: Path) -> list[dict]:
    """What the controller knows."""
    connection = UnixConnection(path)
    connection.request("GET", "/api/v1/kernels")
    known = json.loads(connection.getresponse().read())["kernels"]
    connection.close()
    return known


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(shims: int, streams: int, seconds: float) -> float:
    """The part of one core that a controller uses."""
    with tempfile.TemporaryDirectory(prefix="aff-", dir="/tmp") as folder:
        path = Path(folder) / "node.sock"
        environ = {**os.environ, "AFFINODE_SOCKET": str(path)}
        command = [sys.executable, "-m", "jupyter_affinode.node", "--system", "--settle=0.1"]
        with (Path(folder) / "out.log").open("w") as log:
            controller = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            os.chmod(folder, 0o755)
            users = 30 if os.getuid() == 0 else 0
            while not (path.exists() and path.with_name("link.sock").exists()):
                if controller.poll() is not None:
                    raise SystemExit((Path(folder) / "out.log").read_text())
                time.sleep(0.05)
            quiet = QuietShims(Path(folder), shims, users)
            open_streams = [stream(path) for _ in range(streams)]
            while sum(kernel["tracked"] for kernel in kernels(path)) < shims:
                quiet.run(0.2)
            quiet.run(2)
            before, began = cpu_s(controller.pid), time.monotonic()
            quiet.run(seconds)
            used, took = cpu_s(controller.pid) - before, time.monotonic() - began
            assert sum(kernel["tracked"] for kernel in kernels(path)) == shims
            del open_streams
            return used / took
        finally:
            controller.send_signal(signal.SIGTERM)
            controller.wait(timeout=60)


def main() -> None:
    """Print the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shims", type=int, default=300)
    parser.add_argument("--streams", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    streams = arguments.shims // 20 if arguments.streams is None else arguments.streams
    part = measure(arguments.shims, streams, arguments.seconds)
    print(f"{arguments.shims} quiet shims, {streams} streams of events: {100 * part:.1f} % of one core")


if __name__ == "__main__":
    main()

"""As much of Docker's API, on a Unix socket, as DockerSpawner asks for: a container is a process of this machine."""

from __future__ import annotations

import json
import os
import re
import socketserver
import subprocess
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

VERSION = {"ApiVersion": "1.43", "MinAPIVersion": "1.24", "Version": "24.0.0"}


class FakeDocker(socketserver.ThreadingUnixStreamServer):
    """Serves at `path`; `created` are the requests for containers, by name. A container runs `command` as `uid`."""

    daemon_threads = True

    def __init__(self, path: Path, command: Sequence[str], packages: str):
        super().__init__(str(path), Handler)
        self.command, self.packages = list(command), packages
        self.created: dict[str, dict[str, Any]] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def start(self, name: str) -> None:
        """Run a container: with its own environment alone, and what the packages of tests need."""
        asked = dict(entry.split("=", 1) for entry in self.created[name]["Env"])
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": self.packages, **asked}
        self.running[name] = subprocess.Popen(self.command, env=env)

    def remove(self, name: str) -> None:
        """End a container, and forget it."""
        process = self.running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()
        self.created.pop(name, None)

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what Docker says of a container."""
        process = self.running.get(name)
        is_running = process is not None and process.poll() is None
        port = next(iter(self.created[name]["ExposedPorts"]))
        binding = {"HostIp": "127.0.0.1", "HostPort": port.partition("/")[0]}
        return {
            "Id": name,
            "Config": {"Image": self.created[name]["Image"]},
            "State": {"Status": "running" if is_running else "exited", "Running": is_running, "ExitCode": 0},
            "NetworkSettings": {"Ports": {port: [binding]}, "Networks": {}},
        }

    def close(self) -> None:
        """End it and its containers."""
        self.shutdown()
        self.server_close()
        for name in list(self.created):
            self.remove(name)


class Handler(BaseHTTPRequestHandler):
    """One request of docker's client."""

    server: FakeDocker

    def do_GET(self) -> None:
        """Answer what is asked about."""
        path = urlsplit(self.path).path
        if path.endswith("/version"):
            return self.answer(200, VERSION)
        if "/images/" in path:
            return self.answer(200, {"Config": {"Cmd": ["jupyterhub-singleuser"]}})
        name = self.container(path)
        return (
            self.answer(200, self.server.inspect(name)) if name else self.answer(404, {"message": "no such"})
        )

    def do_POST(self) -> None:
        """Create, start or stop a container."""
        url = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else {}
        if url.path.endswith("/containers/create"):
            (name,) = parse_qs(url.query)["name"]
            self.server.created[name] = body
            return self.answer(201, {"Id": name})
        name = self.container(url.path)
        if name and url.path.endswith("/start"):
            self.server.start(name)
        elif name:
            self.server.remove(name)
        return self.answer(204)

    def do_DELETE(self) -> None:
        """Remove a container."""
        self.server.remove(self.container(urlsplit(self.path).path) or "")
        self.answer(204)

    def container(self, path: str) -> str | None:
        """Return the container that a path is of; None where there is none."""
        found = re.search(r"/containers/([^/]+)", path)
        return found[1] if found and found[1] in self.server.created else None

    def answer(self, status: int, body: Any = None) -> None:
        """Send JSON."""
        raw = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def address_string(self) -> str:
        """Return who asks: a Unix socket's client has no address."""
        return "docker's client"

    def log_message(self, *words: object) -> None:
        """Say nothing."""

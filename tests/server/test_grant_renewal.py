"""A server that a Hub started keeps its grant good, and its kernels read the newest."""

from __future__ import annotations

import json
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from live_server import JupyterServer

from jupyter_affinode.client.grant_signing import make_keys, sign_grant

TOKEN = "the-servers-own"


class Service:
    """The Hub's service as a server meets it: signs grants of two seconds, or fails as it is told."""

    def __init__(self):
        self.key, _ = make_keys()
        self.shown: list[str | None] = []
        self.signed: list[str] = []
        self.fails_with = b""

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):
                self.shown.append(handler.headers["Authorization"])
                answer = self.fails_with or json.dumps({"grant": self.sign(), "lifetime_s": 2}).encode()
                handler.send_response(200)
                handler.end_headers()
                handler.wfile.write(answer)

            def do_GET(handler):  # the Hub's API: whose token is it?
                handler.send_response(200)
                handler.end_headers()
                handler.wfile.write(b'{"name": "ana"}')

            def log_message(self, *words):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/affinode/grant"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def sign(self):
        """A grant unlike the others."""
        number = str(len(self.signed))
        self.signed.append(
            sign_grant(self.key, "hub-1", user="ana", server=number, audience="a", lifetime_s=2)
        )
        return self.signed[-1]


@pytest.fixture
def service():
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_grant_is_renewed_before_it_expires_and_survives_a_service_that_fails(machine, service, wait_until):
    machine.environment.update(
        AFFINODE_GRANT=service.sign(), AFFINODE_GRANT_URL=service.url, JUPYTERHUB_API_TOKEN=TOKEN
    )
    server = JupyterServer(machine).start()
    (path,) = Path(machine.environment["JUPYTER_RUNTIME_DIR"]).glob("affinode-grant-*")
    assert path.stat().st_mode & 0o777 == 0o600
    wait_until(lambda: path.read_text().strip() in service.signed[1:])
    assert set(service.shown) == {f"token {TOKEN}"}
    kernel = server.start_kernel()
    assert kernel.run("import os; print(os.environ['AFFINODE_GRANT_FILE'])").text.strip() == str(path)

    service.fails_with = b'{"grant": "no grant at all", "lifetime_s": 9}'
    asked = len(service.shown)
    wait_until(lambda: len(service.shown) >= asked + 2)
    assert path.read_text().strip() == service.signed[-1]
    service.fails_with = b""
    signed = len(service.signed)
    wait_until(
        lambda: len(service.signed) > signed and path.read_text().strip() in service.signed[signed:], 60
    )
    wait_until(lambda: "The grant was renewed." in server.log())
    assert server.log().count("The grant could not be renewed") == 1
    server.stop()
    assert not path.exists()


@pytest.mark.long
def test_the_grant_of_a_kernel_that_outlives_its_server_is_renewed_and_is_the_next_servers(
    machine, service, wait_until
):
    hub = {"JUPYTERHUB_USER": "ana", "JUPYTERHUB_API_TOKEN": TOKEN, "JUPYTERHUB_API_URL": service.url}
    machine.environment |= hub
    machine.environment.update(
        AFFINODE_GRANT=service.sign(),
        AFFINODE_GRANT_URL=service.url,
        AFFINODE_FOLDER=str(machine.folder / "own"),
    )
    server = JupyterServer(machine).start("--AffinodeExtension.keep_kernels=all")
    kernel = server.start_kernel()
    path = Path(kernel.run("import os; print(os.environ['AFFINODE_GRANT_FILE'])").text.strip())
    server.process.terminate()
    server.process.wait(timeout=60)
    signed = len(service.signed)
    wait_until(lambda: path.read_text().strip() in service.signed[signed:])
    assert set(service.shown) == {f"token {TOKEN}"}
    server.start("--AffinodeExtension.keep_kernels=all", port=server.port)
    signed = len(service.signed)
    wait_until(lambda: path.read_text().strip() in service.signed[signed:])
    pid = kernel.pid
    kernel.close()
    server.process.terminate()
    server.process.wait(timeout=60)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not path.exists())


@pytest.mark.long
def test_without_an_address_the_environments_grant_is_left_alone(machine, service):
    machine.environment.update(AFFINODE_GRANT=service.sign(), JUPYTERHUB_API_TOKEN=TOKEN)
    server = JupyterServer(machine).start()
    kernel = server.start_kernel()
    assert kernel.run("import os; print(os.environ.get('AFFINODE_GRANT_FILE'))").text.strip() == "None"
    assert service.shown == []
    server.stop()

"""The service's process: its settings, and the web application that the Hub's proxy leads to."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuth
from jupyterhub.utils import make_ssl_context
from tornado.httpserver import HTTPServer
from tornado.web import Application as WebApplication
from traitlets import Dict, Float, List, Unicode, default
from traitlets.config import Application

from ..nodes import Nodes
from ..room import controller_socket
from .handlers import handlers

FOLDER = Path(__file__).resolve().parent


class AffinodeService(Application):
    """Shows the machines' GPUs to administrators. Started by the Hub, which says where in JUPYTERHUB_SERVICE_URL."""

    name = "hub_spawner.service"
    description = "The JupyterHub service of jupyter-affinode."

    nodes = Dict(
        per_key_traits=None,
        value_trait=Unicode(),
        key_trait=Unicode(),
        help="""The machines whose controllers are shown: a name for users and the path of the controller's socket.
        By default this machine. The socket of another machine can be brought here, by `ssh -L` for example.
        `http://HOST:PORT` are all controllers at the addresses of a host name that serve the API there
        (`NodeController.api_port`), as a headless Service of Kubernetes has them; `grant_key` signs the requests.

        Example: c.AffinodeService.nodes = {"gpu1": "/run/affinode/node.sock", "gpu2": "/run/affinode/gpu2.sock"}""",
    ).tag(config=True)
    grant_key = Unicode(
        help="""The file of the private key that signs servers' new grants; empty: servers get none here. Set it where
        the spawner signs grants, to the same file."""
    ).tag(config=True)
    grant_audience = List(
        Unicode(), help="The site's names for its controllers, in the grants that are signed here."
    ).tag(config=True)
    grant_lifetime_s = Float(3600.0, help="For how many seconds a new grant is good.").tag(config=True)
    ip = Unicode(
        help="""Address to listen at, where it is not that of JUPYTERHUB_SERVICE_URL: "0.0.0.0" in a pod whose Service
        has that name."""
    ).tag(config=True)
    config_file = Unicode(help="A configuration file, in Python.").tag(config=True)

    aliases = {  # noqa: RUF012  # traitlets' own way
        "config": "AffinodeService.config_file",
        "node": "AffinodeService.nodes",
        "ip": "AffinodeService.ip",
        "grant-key": "AffinodeService.grant_key",
        "grant-audience": "AffinodeService.grant_audience",
        "log-level": "Application.log_level",
    }

    @default("nodes")
    def _this_machine(self) -> dict[str, str]:
        return {socket.gethostname(): str(controller_socket(""))}

    @default("log_level")
    def _usual_log_level(self) -> int:
        return 20

    def machines(self) -> Nodes:
        """Return the machines that are shown."""
        return Nodes(self.nodes, self.grant_key)

    def initialize(self, argv: Any = None) -> None:
        """Read the command line and the configuration file. Called by `launch_instance`."""
        super().initialize(argv)
        if self.config_file:
            self.load_config_file(Path(self.config_file).name, str(Path(self.config_file).resolve().parent))
            self.update_config(self.cli_config)

    def start(self) -> None:
        """Serve until SIGTERM. Called by `launch_instance`."""
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """Serve at JUPYTERHUB_SERVICE_URL until SIGTERM or SIGINT."""
        url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
        auth = HubOAuth.instance(parent=self)
        server = HTTPServer(self.web_application(auth), ssl_options=_internal_ssl(auth))
        server.listen(url.port or 80, self.ip or url.hostname or "127.0.0.1")
        self.log.info("The page about GPUs is at %s", auth.base_url)
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await ended.wait()
        server.stop()

    def web_application(self, auth: HubOAuth) -> WebApplication:
        """Return the application under the service's prefix."""
        return WebApplication(
            handlers(auth.base_url),
            service=self,
            template_path=str(FOLDER / "templates"),
            static_path=str(FOLDER / "static"),
            static_url_prefix=f"{auth.base_url}static/",
            # After a restart, users who were logged in are sent to the Hub and back; it asks them nothing.
            cookie_secret=secrets.token_bytes(32),
            xsrf_cookies=True,
        )


def _internal_ssl(auth: HubOAuth) -> ssl.SSLContext | None:
    """Return what to serve with where the Hub has internal TLS; None elsewhere."""
    if not auth.certfile:
        return None
    context: ssl.SSLContext = make_ssl_context(
        auth.keyfile, auth.certfile, cafile=auth.client_ca, purpose=ssl.Purpose.CLIENT_AUTH
    )
    return context

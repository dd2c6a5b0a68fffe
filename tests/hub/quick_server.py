"""As little of a single-user server as the Hub wants to see: it answers, and ends at SIGTERM."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import jupyterhub


class Handler(BaseHTTPRequestHandler):
    """Tells its environment to the tests."""

    def do_GET(self) -> None:
        """Answer anything."""
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", jupyterhub.__version__)
        self.end_headers()
        self.wfile.write(json.dumps({**os.environ, "uid": os.getuid()}).encode())

    def log_message(self, *words: object) -> None:
        """Say nothing."""


where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
ThreadingHTTPServer((where.hostname or "127.0.0.1", where.port or 0), Handler).serve_forever()

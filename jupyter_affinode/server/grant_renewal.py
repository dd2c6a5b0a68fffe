"""Keeps the server's grant good: shows it to the Hub's service before it expires, and gets a newer one.

A JupyterHub's spawner gives a server its grant in the environment (AFFINODE_GRANT) and names the address that gives
out newer ones (AFFINODE_GRANT_URL). The server puts it into a file of its own and names that to its kernels
(AFFINODE_GRANT_FILE); shims and clients read it for each connection. Without the address nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from logging import Logger
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from .. import environment
from ..client.grant_request import grant_in, left_s
from ..client.grant_signing import write_grant

API_TOKEN = "JUPYTERHUB_API_TOKEN"  # the server's own token, by which the Hub knows the server
REQUEST_TIMEOUT_S = 20.0
PART = 0.5  # of a grant's lifetime, after which the next is fetched
RETRY_S = (1.0, 60.0)  # at first, and at most
SHORTEST_S = 1.0


class GrantRenewal:
    """One server's grant, from the extension's start to its stop."""

    def __init__(self, runtime_folder: str, log: Logger):
        """Write the environment's grant to a file, if there is an address that renews it."""
        self._log = log
        self._url = os.environ.get(environment.GRANT_URL, "")
        self._task: asyncio.Task[None] | None = None
        self._own: Path | None = None
        grant = environment.grant()
        if not self._url or not os.environ.get(API_TOKEN) or grant is None:
            self._url = ""
        elif not os.environ.get(environment.GRANT_FILE):
            # The next server of this name goes on with it, since kernels that outlive this one have its name.
            name = (
                f"{os.environ['JUPYTERHUB_USER']}-{os.environ.get('JUPYTERHUB_SERVER_NAME', '')}"
                if os.environ.get("JUPYTERHUB_USER")
                else str(os.getpid())
            )
            path = Path(runtime_folder) / f"affinode-grant-{quote(name, safe='')}"
            try:
                write_grant(path, grant)
            except OSError as error:
                self._log.warning("The grant is not renewed: %s cannot be written: %s", path, error)
                self._url = ""
                return
            self._own = path
            os.environ[environment.GRANT_FILE] = str(path)

    def start(self) -> None:
        """Begin to renew the grant; called when the server's loop runs."""
        if self._url:
            self._task = asyncio.ensure_future(self._renew())

    async def stop(self, removes: bool = True) -> None:
        """Stop renewing, and remove the file: the environment's grant is used from then on.

        Where kernels outlive this server the file stays, and their keeper renews it.
        """
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._own is not None:
            os.environ.pop(environment.GRANT_FILE, None)
            if removes:
                with contextlib.suppress(OSError):
                    self._own.unlink()

    async def _renew(self) -> None:
        """Fetch the next grant whenever half of the last one's lifetime is over, until cancelled."""
        good_s, _ = left_s(environment.grant() or "", time.time())
        while True:
            await asyncio.sleep(max(good_s * PART, SHORTEST_S))
            good_s = await self._fetched()

    async def _fetched(self) -> float:
        """Fetch a grant, and try again until one comes; return for how many seconds it is good."""
        pause_s, most_s = RETRY_S
        is_said = False
        while True:
            try:
                answer = await self._ask()
                write_grant(Path(os.environ[environment.GRANT_FILE]), grant_in(answer))
                if is_said:
                    self._log.info("The grant was renewed.")
                return float(answer["lifetime_s"])
            except (OSError, HTTPClientError, ValueError, KeyError, TypeError) as error:
                if not is_said:
                    self._log.warning(
                        "The grant could not be renewed at %s, trying again: %s", self._url, error
                    )
                    is_said = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, most_s)

    async def _ask(self) -> dict[str, Any]:
        """Send one request to the Hub's service. Raises the errors after which `_fetched` tries again."""
        request = HTTPRequest(
            self._url,
            method="POST",
            body=json.dumps({"grant": environment.grant() or ""}),
            headers={"Authorization": f"token {os.environ.get(API_TOKEN, '')}"},
            request_timeout=REQUEST_TIMEOUT_S,
        )
        return dict(json.loads((await AsyncHTTPClient().fetch(request)).body))

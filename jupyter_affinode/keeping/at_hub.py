"""What a kept kernel's JupyterHub says of its user, and the kernel's grant: a server would see to both.

The keeper asks with the token of the server that had the kernel, which the Hub keeps for the next server. A user that
the Hub does not know any more, or knows by another name, has no server that could adopt the kernel.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..client.grant_request import grant_in, left_s
from ..client.grant_signing import write_grant

ASK_EVERY_S = 30.0
REQUEST_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 1 << 20
DENIED = (401, 403)
DENIALS = 2  # in a row, before the user counts as gone
RENEWED_BELOW = 0.5  # of a grant's lifetime


@dataclass(frozen=True)
class AtHub:
    """A server's place at its Hub. It is in the keeper's memory alone: it has the server's token."""

    user: str
    api_url: str
    token: str
    grant_url: str = ""  # of the Hub's service, where it renews grants
    grant_file: str = ""

    def said_of_user(self) -> bool | None:
        """Return whether the Hub knows the server's user by this name; None if it does not answer."""
        try:
            model = self._answer(urllib.request.Request(f"{self.api_url.rstrip('/')}/user"))
            return bool(model["name"] == self.user)
        except urllib.error.HTTPError as error:
            with error:
                return False if error.code in DENIED and _is_hubs(error) else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def renew_grant(self) -> None:
        """Replace the grant in the file, once half of its lifetime is over. Raises OSError and ValueError."""
        if not self.grant_url or not self.grant_file:
            return
        path = Path(self.grant_file)
        last = path.read_text(encoding="ascii").strip()
        left, lifetime = left_s(last, time.time())
        if left > lifetime * RENEWED_BELOW:
            return
        request = urllib.request.Request(self.grant_url, data=json.dumps({"grant": last}).encode())
        write_grant(path, grant_in(self._answer(request)))

    def _answer(self, request: urllib.request.Request) -> Any:
        request.add_header("Authorization", f"token {self.token}")
        context = ssl.create_default_context() if request.type == "https" else None
        # As the server asks its Hub: not by a proxy, which would get the token.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return json.loads(answer.read(ANSWER_BYTES_MAX))


def _is_hubs(error: urllib.error.HTTPError) -> bool:
    """Return whether it is the Hub that says so, and no program between the Hub and here."""
    try:
        return bool(json.loads(error.read(ANSWER_BYTES_MAX))["status"] == error.code)
    except (OSError, ValueError, LookupError, TypeError):
        return False

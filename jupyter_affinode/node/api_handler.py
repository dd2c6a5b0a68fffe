"""What every handler of the API shares: JSON in, JSON out, errors in words."""

from __future__ import annotations

import json
import time
from typing import Any

from tornado.web import HTTPError, RequestHandler

from .controller import Controller
from .peers import peer_of
from .records import KernelRecord

KERNELS_MAX = 4096
TEXT_MAX = 4096


class ApiError(Exception):
    """A request that is not served; becomes the JSON error."""

    def __init__(self, status: int, slug: str, message: str):
        super().__init__(message)
        self.status, self.slug, self.message = status, slug, message


class Handler(RequestHandler):
    """JSON in, JSON out."""

    controller: Controller
    _counted = False

    def initialize(self) -> None:
        """Called by tornado."""
        self.controller = self.settings["controller"]

    def prepare(self) -> None:
        """A request under way keeps the controller; called by tornado."""
        self._counted = True
        self.controller.api_requests_open += 1
        self.controller.needed_at = self.now()

    def on_finish(self) -> None:
        """Called by tornado, also when the client hung up."""
        if self._counted:
            self._counted = False
            self.controller.api_requests_open -= 1

    def on_connection_close(self) -> None:
        """The client hung up in the middle; called by tornado."""
        self.on_finish()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Every error is JSON; called by tornado."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, ApiError):
            self.set_status(error.status)
            self.finish({"error": error.slug, "message": error.message})
            return
        if not isinstance(error, HTTPError):
            self.finish({"error": "internal", "message": "the controller failed; its log has the error"})
            return
        slug = {404: "not-found", 405: "not-allowed"}.get(status_code, "bad-request")
        self.finish({"error": slug, "message": self._reason})

    def log_exception(self, kind: Any, value: Any, traceback: Any) -> None:
        """Only surprises are logged; called by tornado."""
        if not isinstance(value, ApiError | HTTPError):
            self.controller.log.error("a request failed", exc_info=(kind, value, traceback))

    def body(self, **allowed: tuple[type, ...]) -> dict[str, Any]:
        """The request's JSON object, each member of one of its allowed types; {} without a body."""
        try:
            body = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            raise ApiError(400, "bad-request", "the body is not JSON") from None
        if not isinstance(body, dict):
            raise ApiError(400, "bad-request", "the body must be a JSON object")
        for name, value in body.items():
            if name not in allowed:
                known = ", ".join(allowed) or "none"
                raise ApiError(400, "bad-request", f"{name!r} is not known here; known are: {known}")
            good = isinstance(value, allowed[name]) and (bool in allowed[name] or not isinstance(value, bool))
            if not good or (isinstance(value, str) and len(value) > TEXT_MAX):
                raise ApiError(400, "bad-request", f"{name!r} has a value of the wrong type or size")
        return body

    def kernel(self, kernel_id: str) -> KernelRecord:
        """A known kernel, or 404."""
        kernel = self.controller.state.kernels.get(kernel_id)
        if kernel is None:
            raise ApiError(404, "unknown-kernel", f"there is no kernel {kernel_id}")
        self.controller.look(self.now())
        return kernel

    def made_known(self, kernel_id: str) -> KernelRecord:
        """A kernel that a server speaks of, known from now on if it was not."""
        state = self.controller.state
        if kernel_id not in state.kernels and len(state.kernels) >= KERNELS_MAX:
            raise ApiError(429, "too-many-kernels", f"this controller knows {KERNELS_MAX} kernels already")
        return state.kernel(kernel_id, self.now())

    def now(self) -> float:
        """The moment, for the state."""
        return time.monotonic()

    def speaker(self) -> int:
        """The pid of the client."""
        stream = getattr(self.request.connection, "stream", None)
        return peer_of(stream.socket).pid if stream is not None and stream.socket is not None else 0

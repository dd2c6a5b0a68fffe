"""What every handler of the API shares: JSON in, JSON out, errors in words."""

from __future__ import annotations

import json
import time
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from .access import NotAllowed
from .clients import Clients, TooMuch
from .controller import Controller
from .identity import Identity
from .records import KernelRecord
from .views import kernel_view

KERNELS_MAX = 4096
KERNEL_ID_MAX = 256
TEXT_MAX = 4096


class ApiError(Exception):
    """A request that is not served; becomes the JSON error."""

    def __init__(self, status: int, slug: str, message: str):
        super().__init__(message)
        self.status, self.slug, self.message = status, slug, message


class Handler(RequestHandler):
    """JSON in, JSON out."""

    controller: Controller
    identity: Identity  # from prepare() on
    _counted = False

    def initialize(self) -> None:
        """Called by tornado."""
        self.controller = self.settings["controller"]

    def prepare(self) -> None:
        """Learn who asks. A request under way keeps the controller; called by tornado."""
        self._counted = True
        self.controller.api_requests_open += 1
        self.controller.needed_at = self.now()
        clients: Clients = self.settings["clients"]
        scheme, _, grant = self.request.headers.get("Authorization", "").partition(" ")
        try:
            self.identity = clients.introduce(
                getattr(self.request.connection, "stream", None),
                grant.strip() if scheme.lower() == "bearer" else None,
            )
        except NotAllowed as refused:
            raise ApiError(401, refused.slug, str(refused)) from None
        except TooMuch as refused:
            raise ApiError(429, "too-many-requests", str(refused)) from None

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
        """Only surprises are logged, and that a client hung up is none; called by tornado."""
        if not isinstance(value, ApiError | HTTPError | StreamClosedError):
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
        kernels = self.controller.state.kernels
        kernel = kernels.get(self.identity.scoped(kernel_id))
        if kernel is None and self.identity.is_admin:
            kernel = kernels.get(kernel_id)  # another's, with the owner's name before it
        if kernel is None:
            raise ApiError(404, "unknown-kernel", f"there is no kernel {kernel_id}")
        self.controller.look_at(kernel, self.now())
        return kernel

    def made_known(self, kernel_id: str) -> KernelRecord:
        """A kernel that a server speaks of, known from now on if it was not."""
        state = self.controller.state
        if self.identity.is_admin and kernel_id in state.kernels:
            return state.kernels[kernel_id]
        scoped = self.identity.scoped(kernel_id)
        if scoped not in state.kernels:
            most = self.controller.access.limits.kernels
            if len(kernel_id) > KERNEL_ID_MAX:
                raise ApiError(400, "bad-request", f"a kernel's id has at most {KERNEL_ID_MAX} characters")
            if state.count_of(self.identity.payer) >= most:
                raise ApiError(
                    429, "too-many-kernels", f"this controller knows {most} kernels of yours already"
                )
            if len(state.kernels) >= KERNELS_MAX:
                raise ApiError(
                    429, "too-many-kernels", f"this controller knows {KERNELS_MAX} kernels already"
                )
        kernel = state.kernel(scoped, self.now())
        self.identity.mark(kernel)
        return kernel

    def kernel_json(self, kernel: KernelRecord) -> dict[str, Any]:
        """A kernel as who asks may see it."""
        return kernel_view(self.identity, self.controller.kernel_json(kernel), kernel.owner)

    def for_admins(self, what: str) -> None:
        """403 unless an administrator asks, who alone may change `what`."""
        if not self.identity.is_admin:
            raise ApiError(403, "forbidden", f"only administrators may change {what}")

    def now(self) -> float:
        """The moment, for the state."""
        return time.monotonic()

    def speaker(self) -> int:
        """The pid of the client."""
        clients: Clients = self.settings["clients"]
        return clients.pid_of(getattr(self.request.connection, "stream", None))

"""What every handler of the API shares: JSON in, JSON out, errors in words."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from ...printable import TEXT_MAX, is_printable
from ..controller import Controller
from ..identity.access import NotAllowed
from ..identity.identity import Identity
from ..identity.rate_limits import BYTES_A_REQUEST, Account
from ..model.reasons import Refusal
from ..state.records.kernel import KernelRecord
from ..state.records.ownership import owner_of
from ..views.visibility import kernel_view
from .audit import audit_row
from .clients import Clients, TooMuch
from .errors import ApiError
from .request_check import body_of

KERNELS_MAX = 4096
PIECE_BYTES = 32 * 1024  # of a long answer; the next is made when the client has taken it
UNREAD_S = 30.0  # a client that does not read for so long is dropped
REFUSED_AFTER_S = 1.0  # a client that asks too often, or has no good grant, waits so long for the refusal

Json = dict[str, Any]


class Handler(RequestHandler):
    """JSON in, JSON out."""

    controller: Controller
    identity: Identity  # from prepare() on
    account: Account | None = None  # from prepare() on
    gone: asyncio.Future[None]  # done when the client hangs up
    subject: KernelRecord | None = None  # the kernel that the request is about
    _counted = False
    _outcome = "unanswered"

    def initialize(self) -> None:
        self.controller = self.settings["controller"]
        self.gone = asyncio.get_running_loop().create_future()

    async def prepare(self) -> None:  # type: ignore[override]  # tornado awaits it
        """Identify the client. A request under way keeps the controller alive."""
        self._counted = True
        self.controller.api_requests_open += 1
        self.controller.needed_at = self.now()
        try:
            self._introduce()
        except ApiError:
            await asyncio.wait({self.gone}, timeout=REFUSED_AFTER_S)
            raise
        if not all(len(word) <= TEXT_MAX and is_printable(word) for word in self.path_args):
            raise ApiError(
                400, Refusal.BAD_REQUEST, f"a kernel's id is {TEXT_MAX} printable characters at most"
            )

    def _introduce(self) -> None:
        stream = getattr(self.request.connection, "stream", None)
        if stream is None or stream.closed():
            # It has hung up, and this request was left in the buffer.
            self.gone.set_result(None)
            raise ApiError(401, Refusal.GONE, "the connection is closed")
        clients: Clients = self.settings["clients"]
        scheme, _, grant = self.request.headers.get("Authorization", "").partition(" ")
        try:
            bearer = grant.strip() if scheme.lower() == "bearer" else None
            self.identity = clients.introduce(stream, bearer)
        except NotAllowed as refused:
            raise ApiError(401, refused.slug, str(refused)) from None
        except TooMuch as refused:
            raise ApiError(429, Refusal.TOO_MANY_REQUESTS, str(refused)) from None
        self.account = self.controller.accounts.of(self.identity.charged_user)

    def on_finish(self) -> None:
        """Count the request as done, also when the client hung up."""
        if self._counted:
            self._counted = False
            self.controller.api_requests_open -= 1
            self._audit()

    def acts_for_others(self) -> bool:
        """Return whether the request changes what is not the client's own."""
        is_change = self.request.method not in ("GET", "HEAD")
        return is_change and self.subject is not None and self.subject.account.owner != self.identity.owner

    def _audit(self) -> None:
        """Record what an administrator did."""
        ledger, access = self.controller.history.ledger, self.controller.access
        if ledger is None or not access.is_shared or not hasattr(self, "identity"):
            return
        if self.identity.is_admin and self.acts_for_others():
            subject = self.subject
            ledger.audit(
                audit_row(
                    time.time(),
                    self.request,
                    self.identity,
                    self.speaker(),
                    kernel_id="" if subject is None else subject.id,
                    user="" if subject is None else owner_of(subject),
                    outcome=self._outcome,
                )
            )

    def on_connection_close(self) -> None:
        """Note that the client hung up in the middle."""
        if not self.gone.done():
            self.gone.set_result(None)
        self.on_finish()

    def finish(self, chunk: str | bytes | Json | None = None) -> asyncio.Future[None]:
        """Answer. The answer counts by its length, and a client that does not read it is dropped."""
        if self.get_status() < 400:
            self._outcome = "ok"
        if isinstance(chunk, dict):
            self.set_header("Content-Type", "application/json; charset=UTF-8")
            chunk = json.dumps(chunk)
        self._charge(len(chunk or ""))
        sent = super().finish(chunk)
        if not sent.done():
            late = asyncio.get_running_loop().call_later(UNREAD_S, self.drop_unread)
            sent.add_done_callback(lambda _: late.cancel())
        return sent

    async def send(self, piece: bytes) -> bool:
        """Send a part of the answer and wait until the client has taken it; return False if it has hung up or was
        dropped.
        """
        if self.gone.done():
            return False
        try:
            self.write(piece)
            await asyncio.wait_for(self.flush(), UNREAD_S)
        except StreamClosedError:
            return False
        except asyncio.TimeoutError:
            self.drop_unread()
            return False
        return True

    async def send_kernels(self, begin: str, kernels: Iterable[Json], end: str) -> bool:
        """Send a list of kernels between two texts, piece by piece; return False as `send` does.

        So neither many kernels nor a client that reads slowly take memory, and other users' requests come between.
        """
        assert self.account is not None
        remaining, piece, separator = iter(kernels), begin, ""
        while piece:
            if not await self.send(piece.encode()):
                return False
            async with self.account.turn:
                piece = ""
                for kernel in remaining:
                    piece += separator + json.dumps(kernel)
                    separator = ", "
                    if len(piece) >= PIECE_BYTES:
                        break
                await asyncio.sleep(0)
            self._charge(len(piece))
        return await self.send(end.encode())

    def seen_kernels(self) -> Iterator[Json]:
        """Yield the kernels that the user may see, each as it is when it is sent."""
        for kernel in self.controller.each_kernel_json(self.identity):
            yield kernel_view(self.identity, kernel, self.controller.owner_of(kernel["id"]))

    def drop_unread(self) -> None:
        """End the connection of a client that does not read."""
        self.settings["drops"].drop("an API client", f"it has not read its answer within {UNREAD_S:g} s")
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            stream.close()

    def _charge(self, size: int) -> None:
        """Count an answer as so many requests as making it takes; administrators' are not counted, since all users'
        kernels are in them.
        """
        if self.account is not None and not self.identity.is_admin:
            self.account.requests.spend(size / BYTES_A_REQUEST)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer every error as JSON."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, ApiError):
            self.set_status(error.status)
            self._outcome = error.slug
            self.finish({"error": error.slug, "message": error.message})
            return
        if not isinstance(error, HTTPError):
            self._outcome = "internal"
            self.finish(
                {"error": Refusal.INTERNAL, "message": "the controller failed; its log has the error"}
            )
            return
        slug = {404: Refusal.NOT_FOUND, 405: Refusal.NOT_ALLOWED}.get(status_code, Refusal.BAD_REQUEST)
        self._outcome = slug
        self.finish({"error": slug, "message": self._reason})

    def log_exception(self, kind: Any, value: Any, traceback: Any) -> None:
        """Log only unexpected errors; a client that hung up is none."""
        if not isinstance(value, ApiError | HTTPError | StreamClosedError):
            self.controller.log.error("a request failed", exc_info=(kind, value, traceback))

    def body(self) -> dict[str, Any]:
        """Return the request's JSON object, {} without a body. Raises ApiError unless it is as the API describes it."""
        return body_of(self.request.method or "", self.request.path, self.request.body)

    def kernel(self, kernel_id: str) -> KernelRecord:
        """Return a known kernel. Raises ApiError 404."""
        kernel = self.find_kernel(kernel_id)
        if kernel is None:
            raise ApiError(404, Refusal.UNKNOWN_KERNEL, f"there is no kernel {kernel_id}")
        return kernel

    def find_kernel(self, kernel_id: str) -> KernelRecord | None:
        """Return a kernel; None for one that is not known."""
        kernels = self.controller.state.kernels
        kernel = kernels.get(self.identity.scoped(kernel_id))
        if kernel is None and self.identity.is_admin:
            kernel = kernels.get(kernel_id)  # another's, with the owner's name before it
        if kernel is not None:
            self.controller.read_pages_of(kernel, self.now())
            self.subject = kernel
        return kernel

    def made_known(self, kernel_id: str) -> KernelRecord:
        """Return a kernel that a server describes; make its record if there is none."""
        state = self.controller.state
        if self.identity.is_admin and kernel_id in state.kernels:
            self.subject = state.kernels[kernel_id]
            return self.subject
        scoped = self.identity.scoped(kernel_id)
        if scoped not in state.kernels:
            most = self.controller.access.limits.kernels
            if state.count_of(self.identity.charged_user) >= most:
                raise ApiError(
                    429, Refusal.TOO_MANY_KERNELS, f"this controller knows {most} kernels of yours already"
                )
            if len(state.kernels) >= KERNELS_MAX:
                raise ApiError(
                    429, Refusal.TOO_MANY_KERNELS, f"this controller knows {KERNELS_MAX} kernels already"
                )
        kernel = state.kernel(scoped, self.now())
        kernel.account.take_identity(self.identity)
        return kernel

    def kernel_json(self, kernel: KernelRecord) -> Json:
        """Return a kernel as the client may see it."""
        return kernel_view(self.identity, self.controller.kernel_json(kernel), kernel.account.owner)

    def for_admins(self, what: str, verb: str = "change") -> None:
        """Raise ApiError 403 unless an administrator asks: no other user may change (or `verb`) `what`."""
        if not self.identity.is_admin:
            raise ApiError(403, Refusal.FORBIDDEN, f"only administrators may {verb} {what}")

    def now(self) -> float:
        """Return the present moment, for the state."""
        return time.monotonic()

    def speaker(self) -> int:
        """Return the pid of the client."""
        clients: Clients = self.settings["clients"]
        return clients.pid_of(getattr(self.request.connection, "stream", None))

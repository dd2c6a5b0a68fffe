"""What a program that starts kernels tells the controller about each.

A first kernel waits for all that its provisioner imports, and tornado's HTTP client takes as long to import as all else
that is done for it. So this is plain HTTP on a socket: no event loop, and the standard library's client neither.
"""

from __future__ import annotations

import contextlib
import json
import socket as sockets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ..printable import fitting
from .controller_socket import (
    authorization,
    connect_in_line,
    refuse_other_sockets,
    refuse_peer,
    socket_or_default,
)
from .errors import ControllerRefused, ControllerUnavailable, refusal, why

REQUEST_TIMEOUT_S = 15.0
UNAWAITED_TIMEOUT_S = 10.0  # then the connection of a message is closed unanswered
PARK_TIMEOUT_S = 120.0  # the controller answers when it is done or refused
HIBERNATE_TIMEOUT_S = (
    1800.0  # the controller answers when the disk is done, or has made no progress for a while
)
PIECE_BYTES = 64 * 1024


class PlacedOn(NamedTuple):
    """The GPUs that a new kernel should see, the best first, as CUDA names them."""

    uuids: list[str]
    numbers: list[int] | None  # the same by number; None where CUDA's numbers are not sure
    gpu_count: int  # of the machine


class KernelMessages:
    """Speaks of one kernel to the controller at `socket`, by default the one that `environment.socket_path` finds.

    All raise ControllerUnavailable if no controller answers. Those that begin with `tell` never block; the controller's
    answer to them is not awaited.
    """

    def __init__(self, kernel_id: str, socket: Path | None = None):
        self._socket = socket_or_default(socket)
        self._kernel_id = kernel_id

    def describe(self, **description: Any) -> Any:
        """Describe the kernel as `ControllerClient.register` does; return the kernel as the controller knows it.

        Raises ControllerRefused if that is refused.
        """
        return ask(self._socket, "PUT", kernel_path(self._kernel_id), description_body(description))

    def place(self) -> PlacedOn:
        """Return the GPUs that the kernel should see when it starts, the best first. Raises ControllerRefused."""
        answer = ask(self._socket, "POST", kernel_path(self._kernel_id, "place"), {})
        return PlacedOn(answer["visible_devices"], answer.get("numbers"), answer.get("gpu_count", 0))

    def park(self) -> None:
        """Have the kernel's GPU memory moved to host memory, and wait for that. Raises ControllerRefused."""
        ask(self._socket, "POST", kernel_path(self._kernel_id, "park"), {}, timeout_s=PARK_TIMEOUT_S)

    def hibernate(self, folder: Path) -> int:
        """Have all that the kernel has on the GPU, or had, written to files in a folder, and its processes leave the
        controller; return how many of them use CUDA. Raises ControllerRefused: then everything is as before, or parked.
        """
        body = {"folder": str(folder)}
        path = kernel_path(self._kernel_id, "hibernate")
        answer = ask(self._socket, "POST", path, body, timeout_s=HIBERNATE_TIMEOUT_S)
        return int(answer["processes"])

    def refuse_to_hibernate(self, why: str) -> None:
        """Say that what the controller asked for (`hibernate_asked`) cannot be done. Raises ControllerRefused."""
        path = kernel_path(self._kernel_id, "hibernate-refused")
        ask(self._socket, "POST", path, {"text": fitting(why)})

    def count_processes(self) -> int:
        """Return how many of its processes that use CUDA the controller knows; 0 also for a kernel that it does not."""
        try:
            known = ask(self._socket, "GET", kernel_path(self._kernel_id), {})
        except ControllerRefused as refused:
            if refused.status == 404:
                return 0
            raise
        return sum(process["residency"] != "none" for process in known["processes"])

    def residency(self) -> tuple[str, int]:
        """Return where the kernel's GPU memory is, and how many of its processes are connected.

        Raises ControllerRefused if it is not known.
        """
        known = ask(self._socket, "GET", kernel_path(self._kernel_id), {})
        return str(known["residency"]), len(known["processes"])

    def tell_cancel(self, process_group: int | None = None) -> None:
        """The kernel was interrupted: calls that wait for the GPU fail, in the processes of that group."""
        self._tell("cancel", process_group)

    def tell_dying(self, process_group: int | None = None) -> None:
        """The processes of that group are about to be ended: their calls that wait for the GPU, now or later, fail."""
        self._tell("dying", process_group)

    def tell_cell(self, is_open: bool) -> None:
        """Whether a cell runs."""
        send_only(
            self._socket, "POST", kernel_path(self._kernel_id, "cell"), {"open": is_open, "cell_id": None}
        )

    def tell_forget(self) -> None:
        """The kernel has been shut down."""
        send_only(self._socket, "DELETE", kernel_path(self._kernel_id))

    def _tell(self, what: str, process_group: int | None) -> None:
        send_only(self._socket, "POST", kernel_path(self._kernel_id, what), {"process_group": process_group})


def kernel_path(kernel_id: str, action: str | None = None) -> str:
    """Return the path of a kernel, or of something that can be done with it, in the API."""
    path = f"/kernels/{quote(kernel_id, safe='')}"
    return path if action is None else f"{path}/{action}"


def description_body(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernel's description as the controller takes it."""
    return {
        name: fitting(value, keeps_end=name == "path") if isinstance(value, str) else value
        for name, value in description.items()
    }


def ask(
    path: Path, method: str, target: str, body: dict[str, Any], *, timeout_s: float = REQUEST_TIMEOUT_S
) -> Any:
    """Send one request and return the answer's JSON, None if it has none.

    Raises ControllerUnavailable, also if nothing came for `timeout_s`, and ControllerRefused.
    """
    with _connected(path, wait_s=timeout_s) as connected:
        try:
            connected.settimeout(timeout_s)
            connected.sendall(_request(method, target, body))
            head, _, raw = b"".join(iter(lambda: connected.recv(PIECE_BYTES), b"")).partition(b"\r\n\r\n")
        except OSError as error:
            raise ControllerUnavailable(f"the controller at {path} does not answer: {why(error)}") from None
    try:
        status = int(head.split(maxsplit=2)[1])
        if status >= 400:
            raise refusal(status, raw)
        return None if status == 204 else json.loads(raw)
    except (IndexError, ValueError, RecursionError):
        raise ControllerUnavailable(
            f"the controller at {path} hung up in the midst of an answer, or it is no controller"
        ) from None


def send_only(path: Path, method: str, target: str, body: dict[str, Any] | None = None) -> None:
    """Send one request: the answer is not awaited, and the call does not block.

    For callers whose event loop stops right afterwards, or must not be kept. A controller that is stopped reads the
    request when it goes on. Raises ControllerUnavailable if it could not be sent.
    """
    connected = _connected(path)
    try:
        connected.sendall(_request(method, target, body or {}))
    except OSError as error:
        connected.close()
        raise ControllerUnavailable(f"no controller answers at {path}: {why(error)}") from None
    # The controller drops what it has not read yet of a client that hung up.
    try:
        threading.Thread(target=_hang_up, args=(connected,), name="affinode-answer", daemon=True).start()
    except RuntimeError:  # no more threads, or the interpreter ends
        connected.close()


def _connected(path: Path, *, wait_s: float = 0.0) -> sockets.socket:
    """Connect; wait so long for a place in the line at the socket."""
    refuse_other_sockets(path)
    try:
        connected = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_NONBLOCK)
    except OSError as error:  # no more descriptors
        raise ControllerUnavailable(f"no controller answers at {path}: {why(error)}") from None
    try:
        connect_in_line(connected, path, wait_s)
        refuse_peer(connected, path)
    except OSError as error:
        connected.close()
        raise ControllerUnavailable(f"no controller answers at {path}: {why(error)}") from None
    except ControllerUnavailable:
        connected.close()
        raise
    return connected


def _request(method: str, target: str, body: dict[str, Any]) -> bytes:
    """Return a request whose answer ends with the connection: by HTTP/1.0 it comes in one piece, without counts."""
    payload = json.dumps(body).encode()
    headers = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Content-Length": str(len(payload)),
        **authorization(),
    }
    lines = [f"{method} /api/v1{target} HTTP/1.0", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + payload


def _hang_up(connected: sockets.socket) -> None:
    """Close a connection once the controller has answered; the body of a thread."""
    with connected, contextlib.suppress(OSError):
        connected.settimeout(UNAWAITED_TIMEOUT_S)
        while connected.recv(4096):
            pass

"""The controller's API for programs with an event loop: `node/api/openapi.json` as methods.

Used by the server extension, the command line and the Hub's service. A provisioner uses `kernel_messages`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import urlencode

from ..printable import fitting
from .errors import ControllerRefused as ControllerRefused  # raised by nearly every method
from .errors import ControllerUnavailable as ControllerUnavailable
from .http_requests import ControllerRequests
from .kernel_messages import description_body
from .kernel_messages import kernel_path as _kernel

MOVE_TIMEOUT_S = 75.0  # the controller answers a park or resume within 60 s


class ControllerClient(ControllerRequests):
    """One controller's API; every method is one request."""

    async def node(self) -> dict[str, Any]:
        """The controller, the GPUs, the host's memory, settings and the queue."""
        return await self._json("GET", "/node")

    async def kernels(self) -> list[dict[str, Any]]:
        """Every kernel the controller knows."""
        return (await self._json("GET", "/kernels"))["kernels"]

    async def kernel(self, kernel_id: str) -> dict[str, Any]:
        """One kernel."""
        return await self._json("GET", _kernel(kernel_id))

    async def activity(self, kernel_id: str) -> dict[str, Any]:
        """Return a kernel's CUDA calls by class and by entry point; they are counted for the next seconds, too."""
        return await self._json("GET", _kernel(kernel_id, "activity"))

    async def register(self, kernel_id: str, **description: Any) -> dict[str, Any]:
        """Describe a kernel (`name`, `path`, `language`, `server`, and of its kernelspec `priority` and
        `may_park`); fields that are not named keep their values.
        """
        return await self._json("PUT", _kernel(kernel_id), description_body(description))

    async def forget(self, kernel_id: str) -> None:
        """Say that the kernel has been shut down."""
        await self._json("DELETE", _kernel(kernel_id))

    async def park(self, kernel_id: str, wait: bool = True) -> dict[str, Any]:
        """Free the kernel's GPU now; with `wait`, return when that is done."""
        return await self._json("POST", _kernel(kernel_id, "park"), {"wait": wait}, MOVE_TIMEOUT_S)

    async def resume(self, kernel_id: str, wait: bool = True) -> dict[str, Any]:
        """Get the kernel's GPU back; with `wait`, return when it is back, or after 60 s in the queue."""
        return await self._json("POST", _kernel(kernel_id, "resume"), {"wait": wait}, MOVE_TIMEOUT_S)

    async def hold(self, kernel_id: str, duration_s: float | None = None) -> dict[str, Any]:
        """Keep the kernel on the GPU, for the controller's default time if none is named."""
        return await self._json("POST", _kernel(kernel_id, "hold"), {"duration_s": duration_s})

    async def release(self, kernel_id: str) -> dict[str, Any]:
        """End a hold."""
        return await self._json("POST", _kernel(kernel_id, "release"), {})

    async def end(self, kernel_id: str, process: int) -> dict[str, Any]:
        """End a process of the kernel that is stuck, by its `number`."""
        return await self._json("POST", _kernel(kernel_id, "end"), {"process": process})

    async def shutdown(self, kernel_id: str) -> dict[str, Any]:
        """Have the kernel's server, or the keeper that has it, shut it down."""
        return await self._json("POST", _kernel(kernel_id, "shutdown"), {})

    async def cell(
        self, kernel_id: str, open: bool, cell_id: str | None = None, began_at: float | None = None
    ) -> None:
        """Say whether a cell runs in the kernel, and since when, in monotonic seconds, if that is known."""
        fit = None if cell_id is None else fitting(cell_id)
        body: dict[str, Any] = {"open": open, "cell_id": fit}
        if began_at is not None:
            body["began_at"] = began_at
        await self._json("POST", _kernel(kernel_id, "cell"), body)

    async def cancel(self, kernel_id: str, process_group: int | None = None) -> None:
        """Say that the kernel was interrupted: in the processes of that group, calls that wait for the GPU fail."""
        await self._json("POST", _kernel(kernel_id, "cancel"), {"process_group": process_group})

    async def focus(self, kernel_id: str) -> None:
        """Say that the user has turned to the kernel's notebook."""
        await self._json("POST", _kernel(kernel_id, "focus"), {})

    async def policy(self) -> dict[str, Any]:
        """The controller's settings."""
        return await self._json("GET", "/policy")

    async def set_policy(self, *, configured_at: float | None = None, **settings: Any) -> dict[str, Any]:
        """Change some of the controller's settings; returns all of them.

        `configured_at`: when they were configured, in monotonic seconds; settings that were configured later stay
        as they are.
        """
        moment = "" if configured_at is None else f"?configured_at={configured_at!r}"
        return await self._json("PATCH", f"/policy{moment}", settings)

    async def report(self, **question: str | None) -> dict[str, Any]:
        """Return how much each user used the GPUs: `since`, `until` (days), `by` ("day", "user", "gpu"), `user`."""
        asked = {name: value for name, value in question.items() if value is not None}
        return await self._json("GET", f"/report?{urlencode(asked)}")

    async def past(self, seconds: int = 3600) -> dict[str, Any]:
        """Return where kernels' memory was in the last `seconds`, by GPU."""
        return await self._json("GET", f"/past?seconds={seconds}")

    async def audit(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return what administrators did, the newest first; for administrators."""
        return list((await self._json("GET", f"/audit?limit={limit}"))["audit"])

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield a full snapshot, then every change, until the controller ends."""
        async for event in self._lines("GET", "/events"):
            yield event

    async def room(
        self, size: int, *, user: str | None = None, priority: int | None = None, timeout_s: float = 10.0
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Ask for room on a GPU for a kernel that is about to start; yield how the request stands whenever that
        changes.

        The last line's `state` is "done" or "refused". Closing the iterator withdraws the request.
        """
        body: dict[str, Any] = {"bytes": size, "timeout_s": timeout_s}
        body.update(
            {} if user is None else {"user": user}, **({} if priority is None else {"priority": priority})
        )
        async for line in self._lines("POST", "/room", body):
            yield line

"""The API's handlers of one kernel: servers' descriptions and users' requests."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from ...settings.rules import FOLDER_MAX
from ..execution.cleanup import CannotEnd
from ..execution.evictions import ask_for_end
from ..execution.hibernations import refuse_to_hibernate
from ..execution.user_requests import HoldRefused, ProcessGroup
from ..model.reasons import Refusal
from ..model.snapshot import Residency
from ..protocol.page import State
from ..protocol.wire import Status
from ..state.records.operations import Outcome
from ..system.peers import pid_namespace_of
from ..views.call_activity import count_calls
from .errors import ApiError
from .handler import Handler

MOVE_WAIT_S = 60.0
LONGEST_S = 1e9  # of a hold, before `hold_max_s` has its say
FIRST_LOOK_S = 1.0  # how long a controller that has just started is given to see the GPUs


class KernelHandler(Handler):
    """One kernel, as servers describe it."""

    def get(self, kernel_id: str) -> None:
        """Serve GET /kernels/{id}."""
        self.finish(self.kernel_json(self.kernel(kernel_id)))

    def put(self, kernel_id: str) -> None:
        """Serve PUT /kernels/{id}: describe it."""
        description = self.body()
        kernel = self.made_known(kernel_id)
        if description.get("hibernated_bytes", 0) is None:
            kernel.note_awake()
        elif kernel.connected():
            description.pop("hibernated_bytes", None)  # it is awake again
        elif "hibernated_bytes" in description:
            kernel.note_hibernated(self.now())
        kernel.describe(**description)
        if description.get("server") is not None:  # else the client (`run`) may end before the kernel does
            self.controller.servers.speaks_for(self.speaker(), kernel, self.identity)
        self.controller.poke()
        self.finish(self.kernel_json(kernel))

    def delete(self, kernel_id: str) -> None:
        """Serve DELETE /kernels/{id}: it was shut down. Processes that are left keep it until they end."""
        kernel = self.find_kernel(kernel_id)
        self.set_status(204)
        if kernel is None:
            return
        # else it lasts as long as its server
        kernel.server.description = kernel.server.pid = kernel.server.origin = None
        kernel.cell.is_tracked = kernel.cell.is_open = False
        self.controller.user_requests.ended(kernel)
        if not kernel.processes:
            del self.controller.state.kernels[kernel.id]
        self.controller.poke()


class MoveHandler(Handler):
    """Park and resume, waited for."""

    async def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/park and …/resume: answer when it is done, refused, or has lasted a minute."""
        wait = self.body()["wait"]
        kernel = self.kernel(kernel_id)
        user_requests = self.controller.user_requests
        done = (
            user_requests.park(kernel)
            if self.request.path.endswith("/park")
            else user_requests.resume(kernel)
        )
        if wait:
            ends: set[asyncio.Future[Any]] = {done, self.gone}
            await asyncio.wait(ends, timeout=MOVE_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        outcome = done.result() if done.done() else None
        if outcome is not None and (refusal := outcome.refusal) is not None:
            raise ApiError(409, refusal, outcome.text)
        answer = self.kernel_json(kernel)
        if outcome is None:
            self.set_status(202)
        elif outcome.status is Status.NOTHING:
            answer["nothing_moved"] = {"code": outcome.slug, "text": outcome.text}
        await self.finish(answer)


class HibernateHandler(Handler):
    """All of a kernel to disk, for its keeper."""

    async def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/hibernate: answer when its processes have left, or one says why not."""
        folder = self.body()["folder"]
        kernel = self.kernel(kernel_id)
        if self.acts_for_others():
            raise ApiError(403, Refusal.FORBIDDEN, "only its user may have a kernel write an image")
        if len(os.fsencode(folder)) > FOLDER_MAX:
            raise ApiError(400, Refusal.BAD_REQUEST, f"'folder' is longer than {FOLDER_MAX} bytes")
        if kernel.processes and kernel.residency not in (Residency.NONE, Residency.PARKED):
            await self._done(self.controller.user_requests.park(kernel), MOVE_WAIT_S)
        uses_cuda = sum(process.data.state is not State.NONE for process in kernel.processes.values())
        await self._done(self.controller.operations.hibernate(kernel, folder), None)
        await self.finish({"processes": uses_cuda})

    async def _done(self, done: asyncio.Future[Outcome], within_s: float | None) -> None:
        """Wait for it as long as the client does. Raises ApiError if it was refused or took too long."""
        ends: set[asyncio.Future[Any]] = {done, self.gone}
        await asyncio.wait(ends, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        outcome = (
            done.result() if done.done() else Outcome(Status.BUSY, Refusal.BUSY, "it does not end in time")
        )
        if (refusal := outcome.refusal) is not None:
            raise ApiError(409, refusal, outcome.text)


class HibernateRefusedHandler(Handler):
    """A hibernation that the controller asked for, and a server could not carry out."""

    def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/hibernate-refused."""
        text = self.body()["text"]
        refuse_to_hibernate(
            self.kernel(kernel_id), text or "its server says so", self.now(), self.controller.log
        )
        self.controller.poke()
        self.set_status(204)


class PlaceHandler(Handler):
    """The GPU that a kernel which is about to start should use."""

    async def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/place."""
        self.body()
        until = self.now() + FIRST_LOOK_S
        while not self.controller.has_looked_at_gpus and self.now() < until:  # it has just started
            await asyncio.sleep(0.02)
        kernel = self.made_known(kernel_id)
        gpus = self.controller.gpus_to_show(kernel)
        self.controller.servers.speaks_for(self.speaker(), kernel, self.identity)
        sample = self.controller.state.gpus.sample
        all_gpus = () if sample is None else sample.gpus
        # With a part of a GPU, or a dead one, CUDA's numbers are others than NVML's.
        is_numbered = sample is not None and not sample.dead and not any(gpu.is_mig for gpu in all_gpus)
        await self.finish(
            {
                "visible_devices": [gpu.visible_as or gpu.uuid for gpu in gpus],
                "numbers": [gpu.index for gpu in gpus] if is_numbered else None,
                "gpu_count": len(all_gpus) + (0 if sample is None else len(sample.unsized)),
            }
        )


class EndHandler(Handler):
    """End a process that is stuck."""

    def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/end."""
        number = self.body()["process"]
        kernel = self.kernel(kernel_id)
        process = kernel.processes.get(number)
        if process is None:
            raise ApiError(404, Refusal.UNKNOWN_PROCESS, f"the kernel has no process {number}")
        state = self.controller.state
        try:
            self.controller.clean_up.end(kernel, process, state.stuck(process, self.now()))
        except CannotEnd as error:
            raise ApiError(409, error.slug, str(error)) from None
        self.finish(self.kernel_json(kernel))


class ShutdownHandler(Handler):
    """End a kernel in its server's way."""

    def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/shutdown."""
        self.body()
        kernel = self.kernel(kernel_id)
        ask_for_end(kernel, "its end was asked for", None, self.now(), self.controller.log)
        self.controller.poke()
        self.finish(self.kernel_json(kernel))


class HoldHandler(Handler):
    """Hold a kernel on the GPU."""

    def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/hold."""
        duration = self.body().get("duration_s")
        kernel = self.kernel(kernel_id)
        try:
            self.controller.user_requests.hold(kernel, duration and min(duration, LONGEST_S))
        except HoldRefused as refused:
            raise ApiError(409, Refusal.HOLD_QUOTA, str(refused)) from None
        self.finish(self.kernel_json(kernel))


class ReleaseHandler(Handler):
    """End a hold."""

    def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/release."""
        self.body()
        kernel = self.kernel(kernel_id)
        self.controller.user_requests.release(kernel)
        self.finish(self.kernel_json(kernel))


class ActivityHandler(Handler):
    """A kernel's CUDA calls."""

    def get(self, kernel_id: str) -> None:
        """Serve GET /kernels/{id}/activity."""
        kernel = self.kernel(kernel_id)
        self.controller.read_pages_of(kernel, self.now())
        self.finish(count_calls(kernel, self.now()))


class CellHandler(Handler):
    """The execution tracker's reports."""

    def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/cell."""
        body = self.body()
        kernel = self.made_known(kernel_id)
        cell_id = body.get("cell_id")
        if not body["open"] or cell_id != kernel.cell.id:
            self.controller.user_requests.end_cancel(kernel)
        began_at = body.get("began_at")
        since = None if began_at is None else min(began_at, self.now())
        kernel.cell.heard(is_open=body["open"], cell_id=cell_id, since=since)
        self.controller.servers.speaks_for(self.speaker(), kernel, self.identity)
        self.controller.poke()
        self.set_status(204)


class SignalHandler(Handler):
    """An interrupt, or the shutdown that is about to begin."""

    def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/cancel and …/dying, for the process group that is signalled, if it is named."""
        number = self.body().get("process_group")
        group = None if number is None else ProcessGroup(number, pid_namespace_of(self.speaker()))
        user_requests, kernel = self.controller.user_requests, self.kernel(kernel_id)
        if self.request.path.endswith("/cancel"):
            user_requests.cancel(kernel, group)
        else:
            user_requests.dying(kernel, group)
        self.set_status(204)


class FocusHandler(Handler):
    """Notes that the user opened a kernel's notebook, or types in it."""

    def post(self, kernel_id: str) -> None:
        """Serve POST /kernels/{id}/focus."""
        self.body()
        self.kernel(kernel_id).focus_at = self.now()
        self.controller.poke()
        self.set_status(204)


KERNEL_ROUTES: dict[str, type[Handler]] = {
    "": KernelHandler,
    "/park": MoveHandler,
    "/resume": MoveHandler,
    "/hold": HoldHandler,
    "/release": ReleaseHandler,
    "/end": EndHandler,
    "/shutdown": ShutdownHandler,
    "/place": PlaceHandler,
    "/hibernate": HibernateHandler,
    "/hibernate-refused": HibernateRefusedHandler,
    "/activity": ActivityHandler,
    "/cell": CellHandler,
    "/cancel": SignalHandler,
    "/dying": SignalHandler,
    "/focus": FocusHandler,
}

"""Requests for room ahead of need (`POST /room`): taken, reported on, answered."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...units import bytes_in_words, duration_in_words
from ..identity.identity import Identity
from ..model.actions import Action, DenyRoom, GrantRoom
from ..model.reasons import Cause, WaitReason
from ..model.snapshot import Node, Residency
from ..state.placement import place_kernel
from ..state.records.kernel import KernelRecord
from ..state.registry import NodeState
from ..state.room_requests import PREFIX, RequestedRoom

CODES = {Cause.TOO_LARGE: "too-large", Cause.LIMIT: "limit"}


class RoomRequests:
    """One request of each user; a second one replaces the first."""

    def __init__(self, state: NodeState, log: logging.Logger, sample_gpus: Callable[[], None]):
        """Prepare; `sample_gpus` reads the GPUs' figures anew, and has the policy decide again."""
        self._state = state
        self._log = log
        self._sample_gpus = sample_gpus
        self._numbers = itertools.count(1)

    def ask(
        self,
        identity: Identity,
        size: int,
        node: Node,
        now: float,
        priority: int | None,
        *,
        may_raise: bool,
    ) -> RequestedRoom:
        """Begin to wait for `size` bytes on one GPU; return the request.

        `priority` lowers the user's class; with `may_raise` it is the class, unless a setting names the user.
        """
        number = next(self._numbers)
        record = KernelRecord(f"{PREFIX}{number}")
        record.account.take_identity(identity)
        if priority is not None and may_raise:
            record.account.priority = priority
        elif priority is not None:
            record.describe(priority=priority)
        for other in list(self._state.room_requests.values()):
            if other.record.account.charged_user == record.account.charged_user:
                self._end(other, "refused", "another request of the same user took its place", "replaced")
        best = [gpu.uuid for gpu in place_kernel(self._state, record, node, now)]
        gpus = list(dict.fromkeys([*best, *self._state.gpus.uuids]))
        request = RequestedRoom(record, size, now, gpus, number)
        if gpus:
            self._state.room_requests[request.id] = request
            self._log.info("%s asks for room for %s", self._user(request), bytes_in_words(size))
            self._sample_gpus()
        else:
            request.end("refused", "no GPU is known here", "no-gpu")
        return request

    def give_up(self, request: RequestedRoom) -> None:
        """Refuse a request that has waited for as long as its client wanted."""
        if request.id in self._state.room_requests:
            waited = duration_in_words(time.monotonic() - request.since)
            reason = request.line.get("text", "")
            text = f"after {waited}, {reason}" if reason else f"there is no room after {waited}"
            self._end(request, "refused", text, "timeout")

    def withdraw(self, request: RequestedRoom) -> None:
        """Forget a request: its client has hung up."""
        if self._state.room_requests.pop(request.id, None) is not None:
            self._count(request)
            self._log.info("%s does not ask for room any more", self._user(request))
            self._sample_gpus()

    def carry_out(self, request: RequestedRoom, action: Action) -> None:
        """Answer a request as the policy decided."""
        if isinstance(action, GrantRoom):
            count = len(request.parked)
            parked = f", {count} idle kernel{' was' if count == 1 else 's were'} freed" if count else ""
            self._end(request, "done", f"there is room for {bytes_in_words(request.bytes)}{parked}")
        elif isinstance(action, DenyRoom):
            if action.cause is not Cause.LIMIT and len(request.gpus) > 1:
                request.gpus.remove(request.gpu)
                self._sample_gpus()
            else:
                self._end(request, "refused", action.reason, CODES.get(action.cause, "too-large"))

    def park_begins(self, kernel: KernelRecord, for_kernel: str | None) -> None:
        """Note which kernel is parked for a request, if it is for one."""
        request = None if for_kernel is None else self._state.room_requests.get(for_kernel)
        if request is not None:
            other = kernel.account.charged_user != request.record.account.charged_user
            request.others_made_way = request.others_made_way or other
            request.parked[kernel.id] = sum(gpu.resident_bytes for gpu in kernel.by_gpu().values())

    def tell(self, waits: Mapping[str, Mapping[str, Any]], waiting: int) -> None:
        """Tell each waiting request its status, if that has changed: its wait as its user may know it (`views.waits`),
        and how many wait.
        """
        for request in self._state.room_requests.values():
            line = self._line(request, waits[request.id], waiting)
            if _lasting(line) != _lasting(request.line):
                request.news.set()
            request.line = line

    def line(self, request: RequestedRoom) -> dict[str, Any]:
        """Return what a client is to be told now."""
        text = self._said(request.text if request.state != "waiting" else request.line.get("text", ""))
        line = request.line or {"place": None, "waiting": 0, "estimate_s": None}
        if request.state == "done":
            line = {**line, "place": None, "estimate_s": None}
        return {**line, "state": request.state, "text": text, "code": request.code}

    def _line(self, request: RequestedRoom, wait: Mapping[str, Any], waiting: int) -> dict[str, Any]:
        is_next = wait["wait"] is not None and wait["wait"]["code"] is WaitReason.TURN
        return {
            "place": wait["place"],
            "waiting": waiting,
            "estimate_s": wait["estimate_s"],
            "text": self._parks(request) or ("" if is_next else wait["wait_reason"] or ""),
        }

    def _parks(self, request: RequestedRoom) -> str:
        """Return which parks are under way for a request, in words; "" for none."""
        kernels = self._state.kernels
        moving = {
            kernel_id: size
            for kernel_id, size in request.parked.items()
            if kernel_id in kernels and self._is_on_gpu(kernels[kernel_id])
        }
        if not moving:
            return ""
        which = "1 idle kernel is" if len(moving) == 1 else f"{len(moving)} idle kernels are"
        return f"{which} being freed: {bytes_in_words(sum(moving.values()))}"

    def _is_on_gpu(self, kernel: KernelRecord) -> bool:
        """Return whether a kernel's memory is still on the GPU, or the GPU's figures are older than its park."""
        sample = self._state.gpus.sample
        is_late = sample is not None and sample.began <= kernel.last_move.ended_at
        return kernel.residency is not Residency.PARKED or is_late

    def _said(self, text: str) -> str:
        """Return a text for users, marked if the GPU is simulated."""
        simulated = any(gpu.is_simulated for gpu in self._state.gpus.measured.values())
        return f"{text} (simulated GPU)" if simulated and text else text

    def _end(self, request: RequestedRoom, state: str, text: str, code: str = "") -> None:
        del self._state.room_requests[request.id]
        self._count(request)
        how = code or text  # the text of a refusal may name a notebook of the user's
        self._log.info("room of %s for %s: %s", bytes_in_words(request.bytes), self._user(request), how)
        request.end(state, text, code)

    def _count(self, request: RequestedRoom) -> None:
        """Have the user's next request wait, however this one ended, if other users' kernels were parked for it.

        Whether the room is used shows only once a kernel has started, minutes later.
        """
        if request.others_made_way:
            charged = request.record.account.charged_user
            self._state.asked_room.failed(charged, request.since, time.monotonic())

    @staticmethod
    def _user(request: RequestedRoom) -> str:
        return request.record.account.name or request.record.account.owner or "the user"


def _lasting(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in ("place", "waiting", "text"))

"""The controller's heart: what to do now. Pure: no I/O, no clock, no randomness.

The same function runs in the controller and, with a virtual clock, in the property tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from . import victims
from .actions import Action, Cause, DenyRoom, DropCaches, GiveLots, GrantRoom, Park, RefusePark, Resume
from .eligibility import eligible_at, waiters
from .host_room import HostRoom, Shortage, trims, without
from .settings import Settings
from .snapshot import Kernel, Node, Residency, RoomRequest, Waiter
from .words import bytes_in_words, duration_in_words

DENY_AFTER_S = 0.5  # the least that an allocation waits before "it can never fit" is believed
LOTS_AHEAD_S = 10.0  # registering 32 GiB with a GPU takes about a second
LAST_RESERVES = 0  # the margin when nobody is left who could yield


def decide(now: float, node: Node, settings: Settings) -> list[Action]:
    """Return what to do now, most urgent first. Never two actions for one kernel.

    `now` is monotonic seconds. Nothing is decided before the node has settled: kernels that have not been
    heard of yet may hold the memory that a grant would give away.
    """
    if not node.is_settled:
        return []
    plan = Plan(now, node, settings)
    park_asked(plan)
    serve_queue(plan)
    reclaim_watermark(plan)
    park_idle(plan)
    mend_splits(plan)
    give_lots(plan)
    relieve_host(plan)
    return plan.actions


class Plan:
    """What this pass has decided so far, and what room that leaves."""

    def __init__(self, now: float, node: Node, settings: Settings):
        self.now = now
        self.node = node
        self.settings = settings
        self.actions: list[Action] = []
        self.queue = waiters(node)
        self.room = {uuid: gpu.free_bytes for uuid, gpu in node.gpus.items()}
        for reservation in node.reservations:
            self.room[reservation.gpu] = self.room.get(reservation.gpu, 0) - reservation.bytes
        self.incoming = dict.fromkeys(self.room, 0)  # will be free when what is under way is done
        self._host = HostRoom(node.host, settings)
        self._taken: set[str] = set()
        for kernel in node.kernels:
            if kernel.residency is Residency.PARKING or (
                kernel.is_moving and kernel.residency is Residency.RESIDENT
            ):
                self._expect(kernel, kernel.host.budget_bytes)

    def is_free(self, kernel: Kernel) -> bool:
        """Whether nothing is under way or decided for the kernel."""
        return not kernel.is_moving and kernel.id not in self._taken

    def act(self, action: Action) -> None:
        """Decide on an action."""
        self._taken.add(action.kernel_id)
        self.actions.append(action)

    def fits(self, needs: Mapping[str, int], margin: int) -> bool:
        """Whether there is room for `needs` now."""
        return all(self.room.get(uuid, 0) >= need + margin for uuid, need in needs.items() if need)

    def shortage(self, needs: Mapping[str, int]) -> dict[str, int]:
        """What is missing for `needs` by GPU even when everything under way is done."""
        short = {}
        for uuid, need in needs.items():
            missing = need + self.settings.margin_bytes - self.room.get(uuid, 0) - self.incoming.get(uuid, 0)
            if need and missing > 0:
                short[uuid] = missing
        return short

    def take_room(self, needs: Mapping[str, int]) -> None:
        """Use up room."""
        for uuid, need in needs.items():
            self.room[uuid] = self.room.get(uuid, 0) - need

    def eligible(self, *, except_for: str = "") -> list[Kernel]:
        """Who may be parked now, the best first (see victims.py)."""
        ready = []
        for kernel in self.node.kernels:
            moment = eligible_at(kernel, self.settings, anyone_waits=bool(self.queue))
            if moment is not None and moment <= self.now and self.is_free(kernel) and kernel.id != except_for:
                ready.append(kernel)
        return victims.in_order(self.now, ready, self.node)

    def park(self, kernel: Kernel, reason: str, cause: Cause) -> bool:
        """Decide to park a kernel if host memory allows, by way of what its frameworks drop. False if not: it
        was refused, or others were asked to give back what they keep and it is looked at again when they have.
        """
        is_between_cells = not kernel.cell_open or kernel.park_asked is not None  # %gpu_park is a cell itself
        if self.settings.drop_caches_before_park and kernel.can_drop_caches and is_between_cells:
            self.act(DropCaches(kernel.id, reason))
            return True
        short = self._host.shortage(kernel)
        if short is not None and self._trim(short, f"room to park {kernel.id}", kernel):
            return False
        refusal = self._host.refusal(kernel)
        if refusal is not None:
            self.act(RefusePark(kernel.id, "no-host-memory", refusal))
            return False
        budget, lots = self._host.budget(kernel), self._host.lots(kernel)
        self.act(Park(kernel.id, reason, budget, lots, to_context=kernel.may_leave, cause=cause))
        self._expect(kernel, budget if kernel.host.is_frugal else None, lots)
        return True

    def give_lots(self, kernel: Kernel) -> None:
        """Decide to hand a kernel what of the lots its park can use."""
        size = self._host.lots(kernel)
        if size:
            self._host.take_lots(size)
            self.act(GiveLots(kernel.id, size))

    def relieve(self) -> None:
        """Have kept host memory given back where the machine or a cgroup is under its reserve."""
        for short in self._host.pressure():
            self._trim(short, "host memory is short", None)

    def _trim(self, short: Shortage, reason: str, kernel: Kernel | None) -> bool:
        """Ask others to give back what is short; whether that is under way. For a kernel: all, or nothing."""
        others = [each for each in self.node.kernels if each is not kernel]
        left = without(short, others)
        if left.host_bytes <= 0 and left.cgroup_bytes <= 0:
            return True
        keepers = [each for each in others if each.host.trimmable_bytes and self.is_free(each)]
        chosen = trims(left, keepers, self.now, reason, all_or_none=kernel is not None)
        for action in chosen:
            self.act(action)
        return bool(chosen)

    def _expect(self, kernel: Kernel, budget: int | None, lots: int = 0) -> None:
        """A kernel's memory is on its way from the GPU to the host."""
        for uuid, size in kernel.resident_bytes.items():
            self.incoming[uuid] = self.incoming.get(uuid, 0) + size
        self._host.expect(kernel, budget, lots)


def park_asked(plan: Plan) -> None:
    """Park what people asked for, open cell or not."""
    for kernel in plan.node.kernels:
        if (
            kernel.park_asked is None
            or kernel.residency is not Residency.RESIDENT
            or not plan.is_free(kernel)
        ):
            continue
        if kernel.is_parkable:
            plan.park(kernel, kernel.park_asked, Cause.ASKED)
        else:
            plan.act(RefusePark(kernel.id, "not-parkable", "nothing of this kernel can be moved"))


def serve_queue(plan: Plan) -> None:
    """Give room first come, first served; nobody overtakes whoever waits for the same GPU.

    Who could never be served as things are, or has just failed, does not hold up the others.
    """
    blocked: set[str] = set()
    for waiter in plan.queue:
        if not plan.is_free(waiter.kernel):
            continue
        if blocked & waiter.needs.keys():
            blocked |= waiter.needs.keys()
            continue
        if _is_hopeless(plan, waiter):
            if waiter.room is not None:
                _deny_when_sure(plan, waiter, waiter.room)
            continue
        if waiter.room is None and waiter.kernel.resume_retry_at > plan.now:
            continue
        if not _grant(plan, waiter):
            blocked |= waiter.needs.keys()


def reclaim(plan: Plan, short: Mapping[str, int], head: Waiter) -> None:
    """Park enough for the head of the queue: who is idle, then who waits behind it with memory of its own.

    Parks what there is even if it is not enough: whoever comes back queues behind the head, so it is served
    in the end. Those behind are blocked, parking them loses nothing, and two that each hold half can go on.
    """
    missing = dict(short)
    reason = f"room for {_size(head)}"
    _park_until(plan, missing, _enough(plan.eligible(except_for=head.kernel.id), missing), reason, Cause.ROOM)
    _park_until(plan, missing, _blocked_behind(plan, head), reason, Cause.ROOM)


def reclaim_watermark(plan: Plan) -> None:
    """Park who is eligible while a GPU that fell under its low watermark has not reached the high one."""
    for uuid, gpu in plan.node.gpus.items():
        if gpu.is_reclaiming and gpu.total_bytes is not None:
            target = int(plan.settings.high_watermark * gpu.total_bytes)
            missing = {uuid: target - plan.room[uuid] - plan.incoming[uuid]}
            _park_until(
                plan, missing, _enough(plan.eligible(), missing), "GPU memory is low", Cause.LOW_MEMORY
            )


def park_idle(plan: Plan) -> None:
    """With park_when="idle", park whoever is eligible."""
    if plan.settings.park_when == "idle":
        for kernel in plan.eligible():
            if plan.is_free(kernel):  # it may have been asked to give back host memory meanwhile
                plan.park(kernel, f"idle {duration_in_words(plan.now - kernel.last_activity)}", Cause.IDLE)


def give_lots(plan: Plan) -> None:
    """Hand lots ahead of time to whoever may be parked soon and has none, the likeliest first."""
    if not plan.node.host.lot_bytes:
        return
    soon = []
    for kernel in plan.node.kernels:
        moment = eligible_at(kernel, plan.settings, anyone_waits=bool(plan.queue))
        is_soon = moment is not None and moment <= plan.now + LOTS_AHEAD_S
        if is_soon and plan.is_free(kernel) and not kernel.host.lot_bytes:
            soon.append(kernel)
    for kernel in victims.in_order(plan.now, soon, plan.node):
        plan.give_lots(kernel)


def relieve_host(plan: Plan) -> None:
    """Under the host's reserve, what is kept only for speed goes first."""
    plan.relieve()


def mend_splits(plan: Plan) -> None:
    """Bring back the parked part of a kernel whose other processes are on the GPU, where there is room for it.

    Kernels are moved whole, so this is what a controller that was killed in between left, or a process that
    began in a parked kernel. Nobody yields or waits for it: who needs the parked part calls, and queues.
    """
    if plan.queue:
        return
    for kernel in plan.node.kernels:
        if not kernel.is_split or kernel.is_dying or not plan.is_free(kernel):
            continue
        if kernel.resume_retry_at <= plan.now and plan.fits(kernel.resume_bytes, plan.settings.margin_bytes):
            plan.act(
                Resume(kernel.id, kernel.resume_bytes, "its other processes are on the GPU", Cause.SPLIT)
            )
            plan.take_room(kernel.resume_bytes)


def _grant(plan: Plan, waiter: Waiter) -> bool:
    """Serve a waiter if there is room; else make others yield for it. False: it waits on."""
    margin = plan.settings.margin_bytes
    if waiter.room is not None and plan.node.gpus[waiter.room.gpu].sampled_at < waiter.since:
        return False  # it has just failed: only a figure that is newer can say that there is room
    if not plan.fits(waiter.needs, margin):
        short = plan.shortage(waiter.needs)
        if short and waiter.kernel.reclaim_after <= plan.now:
            reclaim(plan, short, waiter)
        if any(plan.incoming.get(uuid, 0) for uuid in waiter.needs):
            return False
        if not plan.fits(waiter.needs, LAST_RESERVES) and not _may_try_blindly(plan, waiter):
            return False
    if waiter.room is not None:
        plan.act(GrantRoom(waiter.kernel.id, waiter.room.key, waiter.room.gpu, waiter.room.bytes))
    else:
        waited = duration_in_words(plan.now - waiter.since)
        plan.act(Resume(waiter.kernel.id, waiter.kernel.resume_bytes, f"it waited {waited}", Cause.CELL))
    plan.take_room(waiter.needs)
    return True


def _may_try_blindly(plan: Plan, waiter: Waiter) -> bool:
    """Without NVML nobody knows of room that others gave back; a resume that fails costs only its pause."""
    gpus = [plan.node.gpus[uuid] for uuid in waiter.needs if uuid in plan.node.gpus]
    return waiter.room is None and not any(gpu.is_measured for gpu in gpus)


def _is_hopeless(plan: Plan, waiter: Waiter) -> bool:
    """Whether it would not fit even if every kernel that can be moved yielded."""
    if waiter.room is not None and waiter.kernel.hopeless:
        return True
    for uuid, need in waiter.needs.items():
        if uuid not in plan.node.gpus or (waiter.room is None and not plan.node.gpus[uuid].is_measured):
            continue
        others = sum(
            kernel.resident_bytes.get(uuid, 0)
            for kernel in plan.node.kernels
            if kernel.is_parkable and kernel.id != waiter.kernel.id
        )
        granted = sum(  # theirs already, or about to be: it may yield again
            reserved.bytes
            for reserved in plan.node.reservations
            if reserved.gpu == uuid and reserved.kernel_id != waiter.kernel.id
        )
        gpu = plan.node.gpus[uuid]
        if need > gpu.free_bytes + gpu.uncertain_bytes + granted + others:
            return True
    return False


def _deny_when_sure(plan: Plan, waiter: Waiter, room: RoomRequest) -> None:
    """Let the program see its out-of-memory, once the figures that say so are newer than its request."""
    is_fresh = plan.node.gpus[room.gpu].sampled_at > waiter.since
    if waiter.kernel.hopeless or (is_fresh and plan.now - waiter.since >= DENY_AFTER_S):
        why = f"{_size(waiter)} cannot become free on this GPU, whoever yields"
        plan.act(DenyRoom(waiter.kernel.id, room.key, why))


def _blocked_behind(plan: Plan, head: Waiter) -> list[Kernel]:
    """Kernels that wait behind the head for room and hold memory themselves, the latest first."""
    behind: dict[str, Kernel] = {}
    for waiter in reversed(plan.queue):
        kernel = waiter.kernel
        if waiter.since < head.since or kernel.id == head.kernel.id:
            continue
        held = kernel.held_until is not None and kernel.held_until > plan.now
        busy = kernel.calls_in_flight or kernel.captures or kernel.retry_at > plan.now
        if kernel.residency is Residency.RESIDENT and kernel.is_parkable and not held and not busy:
            behind.setdefault(kernel.id, kernel)
    earlier = {waiter.kernel.id for waiter in plan.queue if waiter.since < head.since}
    return [kernel for kernel in behind.values() if kernel.id not in earlier and plan.is_free(kernel)]


def _enough(candidates: Sequence[Kernel], missing: Mapping[str, int]) -> list[Kernel]:
    """Of candidates in order of worth, those that suffice, without any that the others make needless."""
    left = {uuid: size for uuid, size in missing.items() if size > 0}
    chosen: list[Kernel] = []
    for kernel in candidates:
        if any(size > 0 and kernel.resident_bytes.get(uuid) for uuid, size in left.items()):
            chosen.append(kernel)
            for uuid in left:
                left[uuid] -= kernel.resident_bytes.get(uuid, 0)
    for kernel in reversed(chosen[:]):
        if all(left[uuid] + kernel.resident_bytes.get(uuid, 0) <= 0 for uuid in left):
            chosen.remove(kernel)
            for uuid in left:
                left[uuid] += kernel.resident_bytes.get(uuid, 0)
    return chosen


def _park_until(
    plan: Plan, missing: dict[str, int], candidates: Iterable[Kernel], reason: str, cause: Cause
) -> None:
    """Park candidates in turn until nothing is missing any more."""
    for kernel in candidates:
        helps = any(size > 0 and kernel.resident_bytes.get(uuid) for uuid, size in missing.items())
        if helps and plan.is_free(kernel) and plan.park(kernel, reason, cause):
            for uuid in missing:
                missing[uuid] -= kernel.resident_bytes.get(uuid, 0)


def _size(waiter: Waiter) -> str:
    return bytes_in_words(sum(waiter.needs.values()))

"""Scenes on the planner's machine, which a test goes through step by step.

`Scene` is a `Replay` whose kernels begin as a test says. It decides at every step and after every event, and moves
take the same time whatever their size. The planner's own checks of capacity hold in each scene.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from jupyter_affinode.node.model.actions import Action, EndKernel, Park
from jupyter_affinode.node.model.snapshot import Kernel, Node, Residency
from jupyter_affinode.planner.model.event_queue import Shared
from jupyter_affinode.planner.model.machine import Machine, Speeds
from jupyter_affinode.planner.model.replay import Replay
from jupyter_affinode.planner.model.sessions import Cell, Session
from jupyter_affinode.planner.model.simulated_kernel import AWAY, SimulatedKernel
from jupyter_affinode.planner.model.simulation import LiveSession
from jupyter_affinode.settings.policy import Settings

START = 1000.0
NEVER_S = 1e9
UNSHARED = 1e-9  # what one uses of a link or a GPU's compute, so that none slows another


@dataclass(frozen=True)
class AnyMachine(Machine):
    """GPUs of any sizes and names; nothing is refused beforehand."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    compute_share: float = UNSHARED

    def gpu_sizes(self) -> dict[str, int]:
        return dict(self.sizes)

    def check(self, settings, sessions):
        pass


@dataclass(frozen=True)
class SameMoves(Speeds):
    """Every park takes as long as any other, and so does every resume."""

    first_park_bytes_per_s: float = Speeds.park_bytes_per_s
    each_park_s: float = 1.0
    each_resume_s: float = 1.0

    def park_s(self, size, kept, *, context):
        return self.each_park_s

    def resume_s(self, size, *, context):
        return self.each_resume_s


@dataclass(eq=False)
class Actor:
    """A kernel of a scene: (think_s, compute_s, bytes) for each cell, and the fields of its snapshot to set."""

    id: str
    on: tuple[str, ...]
    cells: Sequence[tuple[float, float, int]]
    residency: Residency = Residency.NONE
    one_long_call: bool = False  # its cells are one call each: only that it is in flight is seen of them
    leaves: bool = False
    seen: dict[str, object] = field(default_factory=dict)  # further fields of the snapshot
    live: LiveSession = field(init=False)
    is_over: bool = False

    @property
    def peak_bytes(self) -> int:
        return max(size for _, _, size in self.cells)

    @property
    def is_done(self) -> bool:
        return self.is_over or self.live.next_cell >= len(self.cells)


def comes_in_exchange(actions: Sequence[Action]) -> Set[str]:
    """The waiters that are resumed while their victims are parked."""
    parks = [action for action in actions if isinstance(action, Park) and action.exchanges]
    return {park.for_kernel for park in parks if park.for_kernel is not None}


class SceneKernel(SimulatedKernel):
    """An actor's kernel."""

    def __init__(self, actor: Actor, context_bytes: int, gpus: Sequence[str]):
        super().__init__(actor.live, actor.on, context_bytes, leaves=actor.leaves, gpus=gpus)
        self.id, self.actor, self.spare_bytes = actor.id, actor, 0
        self.is_granted = False

    def seen(self, now: float) -> Kernel:
        changes = dict(self.actor.seen)
        if self.actor.one_long_call and self.computes_since is not None:
            changes["last_activity"] = self.computes_since
        if self.is_granted:
            changes["rooms"] = ()
        return replace(super().seen(now), **changes)


class Scene(Replay):
    """See above. `step` lets time pass."""

    step_s = 0.25
    kernel_type = SceneKernel

    def __init__(
        self,
        sizes: Mapping[str, int],
        actors: Sequence[Actor],
        settings: Settings,
        speeds: Speeds | None = None,
        *,
        host_bytes: int = 1 << 50,
        context_bytes: int = 0,
        disk_bytes: int = 0,
    ):
        self.settings = settings
        self.asleep_until = 0.0  # the controller stands still, and time goes on
        self._kernel_of: dict[str, SceneKernel] = {}
        machine = AnyMachine(
            sizes=sizes, host_bytes=host_bytes, context_bytes=context_bytes, disk_bytes=disk_bytes
        )
        self.actors = {actor.id: actor for actor in actors}
        sessions = [
            Session(actor.id, actor.id, START, tuple(Cell(*cell) for cell in actor.cells), NEVER_S)
            for actor in actors
        ]
        super().__init__(machine, speeds or SameMoves(), settings, sessions, every_event=True)
        for link in (*self._out, *self._in):
            self._out[link] = Shared(self.timeline, UNSHARED)
            self._in[link] = Shared(self.timeline, UNSHARED)
        self.actions: list[tuple[float, Action]] = []
        self.waits: dict[str, float] = {}  # the longest for a resume, by kernel
        self.computed_s: Counter[str] = Counter()
        self.timeline.now = START
        self.timeline.advance()

    # ---- for tests

    def kernel(self, name: str) -> SceneKernel:
        """An actor's kernel, to be changed."""
        kernel = self._kernel_of[name]
        self._books.touch(kernel)
        return kernel

    @property
    def kernels(self) -> list[SceneKernel]:
        """Those that have processes, to be looked at."""
        return [self._kernel_of[name] for name in self._by_id]

    def change(self, name: str, **fields: object) -> None:
        """Show fields of a kernel otherwise from now on."""
        self.actors[name].seen.update(fields)
        if name in self._by_id:
            self.kernel(name)

    def snapshot(self) -> Node:
        """What the policy sees now."""
        return self._snapshot()

    def free(self, uuid: str) -> int:
        """What is neither used nor reserved."""
        return self._books.room([uuid])

    def step(self) -> None:
        """Let everything happen until the next step."""
        end = self.now + self.step_s
        self.timeline.at(end, lambda: None)
        while self.now < end:
            self.timeline.advance()
            self.settle()

    def pass_time(self, seconds: float) -> None:
        """Go so many seconds on."""
        end = self.now + seconds
        while self.now < end:
            self.step()

    @property
    def is_done(self) -> bool:
        """Whether every kernel has had all its cells."""
        return all(actor.is_done for actor in self.actors.values())

    def kill(self, actor: Actor) -> None:
        """Its processes end, and no further cell comes."""
        if actor.live.is_computing:
            self.interrupt(actor.live)
        actor.is_over, actor.live.wanted_at = True, None
        self.ends(actor.live)

    # ---- what the planner does otherwise

    def settle(self) -> None:
        if self.now >= self.asleep_until:
            super().settle()

    def act(self, node: Node, decided: Sequence[Action]) -> None:
        ids = [action.kernel_id for action in decided]
        assert len(ids) == len(set(ids)), "two actions for one kernel"
        for kernel_id in comes_in_exchange(decided):
            comes = self._by_id[kernel_id]
            assert kernel_id not in ids and comes.residency is Residency.QUEUED, "two moves for one kernel"
        self.actions += [(self.now, action) for action in decided]
        super().act(node, decided)

    def begins(self, live: LiveSession) -> None:
        actor = self.actors[live.session.id]
        actor.live, live.gpu = live, self._uuids.index(actor.on[0])
        kernel = self._start(live)
        if actor.residency is not Residency.NONE:
            self.begin_as(kernel, actor.residency)

    def begin_as(self, kernel: SceneKernel, residency: Residency) -> None:
        """Put a kernel with all its memory somewhere."""
        kernel.held, kernel.has_context, kernel.residency = kernel.actor.peak_bytes, True, residency
        kernel.left_gpu = kernel.leaves and residency in AWAY
        self._books.touch(kernel)

    def _start(self, live: LiveSession) -> SceneKernel:
        actor = self.actors[live.session.id]
        gpus = self._uuids if actor.leaves and self._settings.allow_migration else ()
        kernel = self.kernel_type(actor, self.machine.context_bytes, gpus)
        kernel.may_exchange = (
            self._may_exchange and len(actor.on) == 1
        )  # the planner's exchanges are of one GPU
        kernel.started_at = kernel.last_activity = kernel.resident_since = self.now
        if self.now == START:
            kernel.started_at += live.number
        self._kernels[live.number] = self._by_id[kernel.id] = self._kernel_of[kernel.id] = kernel
        return kernel

    def wants(self, live: LiveSession) -> None:
        if not self.actors[live.session.id].is_over:
            super().wants(live)

    def _end_kernel(self, kernel: SimulatedKernel, action: EndKernel) -> None:
        super()._end_kernel(kernel, action)
        self.kill(self.actors[kernel.id])

    def interrupt(self, live: LiveSession) -> float:
        self.computed_s[live.session.id] += self.now - live.granted_at
        return super().interrupt(live)

    def _computed(self, live: LiveSession) -> None:
        self.computed_s[live.session.id] += self.now - live.granted_at
        super()._computed(live)

    def _resumed(self, kernel: SimulatedKernel, *, keeps: bool = True) -> None:
        if kernel.wants_since is not None:
            self.waits[kernel.id] = max(self.waits.get(kernel.id, 0.0), self.now - kernel.wants_since)
        super()._resumed(kernel, keeps=keeps)

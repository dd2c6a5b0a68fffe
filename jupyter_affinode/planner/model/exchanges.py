"""Exchanges: kernels leave a GPU while a waiter comes in, both at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial

from .event_queue import Shared
from .machine import Speeds
from .simulated_kernel import SimulatedKernel

Links = Mapping[str, Shared]
Ended = Callable[[list[SimulatedKernel], SimulatedKernel | None], None]


class Exchange:
    """One exchange under way: its waiter and its victims arrive in the same moment."""

    def __init__(
        self,
        waiter: SimulatedKernel,
        victims: list[SimulatedKernel],
        ended: Ended,
        *,
        takes: Mapping[str, int] | None = None,
    ):
        """Prepare. `takes`: what each victim takes of host memory, by kernel, where the waiter hands its own over."""
        self.waiter: SimulatedKernel | None = waiter
        self.victims = victims
        self._takes = takes
        self._ended = ended
        self._under_way: dict[Hashable, Shared] = {}

    @property
    def hands_over(self) -> bool:
        """Return whether the waiter hands its host memory over to the victims."""
        return self._takes is not None

    @property
    def handed_bytes(self) -> int:
        """Return how much of the waiter's host memory is the victims', which have all of theirs from the start in this
        model.
        """
        return sum(self._takes[victim.id] for victim in self.victims) if self._takes is not None else 0

    def begin(self, links: tuple[Links, Links], speeds: Speeds, out_s: float, in_s: float) -> None:
        """Begin both directions. `out_s` and `in_s`: how long each would take alone; `links`: out of the GPU, and into
        it.
        """
        assert self.waiter is not None
        for name, link, alone_s in zip(("out", "in"), links, (out_s, in_s), strict=True):
            key = (name, self.waiter.id)
            slower = speeds.hand_over_slower if self.hands_over else speeds.exchange_slower
            work_s = speeds.exchange_s + alone_s * slower
            self._under_way[key] = link[self.waiter.on[0]]
            self._under_way[key].begin(key, work_s, partial(self._done, key))

    def leave(self, kernel: SimulatedKernel) -> None:
        """End the part of a kernel that has ended."""
        if kernel is self.waiter:
            self.waiter = None
            self._stop("in")
        else:
            self.victims.remove(kernel)
            if not self.victims:
                self._stop("out")

    def _stop(self, name: str) -> None:
        for key in [key for key in self._under_way if isinstance(key, tuple) and key[0] == name]:
            self._under_way[key].stop(key)
            self._done(key)

    def _done(self, key: Hashable) -> None:
        del self._under_way[key]
        if not self._under_way:
            self._ended(self.victims, self.waiter)

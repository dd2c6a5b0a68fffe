"""Host memory of a fixed size that goes to and fro between two processes as lots, as a controller lends it."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..node.system.lot_memory import Lot, make_lot
from .shim_peer import ShimPeer

MAKERS = 2  # one frees a lot while the other touches one


class LentLots:
    """A fixed number of lots. `renewed`: each is freed when it was given back, and made anew, as for another user."""

    def __init__(self, count: int, size: int, *, renewed: bool):
        self.size = size
        self._renewed = renewed
        self._free: deque[Lot] = deque()
        self._lent: dict[tuple[ShimPeer, int], Lot] = {}
        self._being_made: set[Future[Lot]] = set()
        self._makers = ThreadPoolExecutor(MAKERS, thread_name_prefix="lots")
        self._made_read, self._made_write = os.pipe()
        for _ in range(count):
            self._make()

    def __enter__(self) -> LentLots:
        return self

    def __exit__(self, *_error: object) -> None:
        self._makers.shutdown()
        for lot in (*self._free, *self._lent.values(), *(made.result() for made in self._being_made)):
            lot.let_go()  # the process that has it ends before
        os.close(self._made_read)
        os.close(self._made_write)

    def being_made(self) -> bool:
        """Return whether some are not there yet."""
        return bool(self._being_made)

    def lent_to(self, peer: ShimPeer) -> int:
        """Return how many lots it has."""
        return sum(each is peer for each, _ in self._lent)

    def lend(self, peer: ShimPeer, until: int) -> None:
        """Lend the process free lots, until it has `until` of them."""
        while self._free and self.lent_to(peer) < until:
            lot = self._free.popleft()
            number = peer.give_lot(lot.descriptor, lot.bytes, is_forgotten=self._renewed)
            self._lent[peer, number] = lot

    def wait(self, peers: Sequence[ShimPeer], timeout_s: float = 1.0) -> None:
        """Listen to the processes and the threads that make lots, and take back what was given back."""
        watched: list[Any] = [*peers, self._made_read]
        ready = select.select(watched, [], [], timeout_s)[0]
        if self._made_read in ready:
            os.read(self._made_read, 4096)
        for made in [each for each in self._being_made if each.done()]:
            self._being_made.discard(made)
            self._free.append(made.result())
        for peer in peers:
            peer.take()
            while peer.ended_lots:
                lot = self._lent.pop((peer, peer.ended_lots.popleft()))
                if self._renewed:
                    self._make(instead_of=lot)
                else:
                    self._free.append(lot)

    def _make(self, instead_of: Lot | None = None) -> None:
        made = self._makers.submit(_make, self.size, instead_of)
        self._being_made.add(made)
        made.add_done_callback(self._say_so)

    def _say_so(self, _made: Future[Lot]) -> None:
        os.write(self._made_write, b"m")


def _make(size: int, instead_of: Lot | None) -> Lot:
    if instead_of is not None:
        instead_of.revoke()
    return make_lot(size, lambda _bytes: True)

"""All that is promised of one process's moves, in one run: `jupyter affinode bench`, and more beside it.

`python tests/gpu moves --warm-host 40 --json F --svg F`. Beside the bench's own parts: the driver's checkpoint of a
process, blocks of other sizes, memory of zeros, a first park into a lot, how long a CUDA call in a parked process
takes, and with `--depth context` parks that take the CUDA context too.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from controlled import Controlled
from moves_chart import driver_moves, picture
from waiting import NotInTime

from jupyter_affinode.bench import command, measure, report
from jupyter_affinode.bench.child_process import BenchProcess, ChildFailed, with_shim
from jupyter_affinode.bench.shim_peer import MoveFailed, ShimPeer
from jupyter_affinode.bench.sizes import GIB, MIB, Plan, Room
from jupyter_affinode.node.protocol.page import Depth
from jupyter_affinode.node.protocol.wire import HelloFlag
from jupyter_affinode.node.system.lot_memory import STEP_BYTES, make_lot
from jupyter_affinode.units import bytes_in_words

PARTS = ("ceiling", "ours", "wake", "zeros", "blocks", "lot", "driver")
BLOCKS = (20 * MIB, 2 * MIB)  # beside the bench's of 1 GiB
ZEROS_BYTES, SIMULATED_ZEROS_BYTES = 64 * GIB, 256 * MIB
WAKE_BYTES = 1 * GIB
LOT_WITHIN_S, CONTEXT_WITHIN_S = 30.0, 15.0


class Moves(command.Bench):
    """The bench with more parts; each fails by itself."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        super().__init__(options, folder)
        self.report |= {"script": "moves", "command": ["python", "tests/gpu", "moves", *sys.argv[1:]]}
        self.report |= {"driver": {"cases": []}, "wake_bytes": 0, "wake": {}}

    def parts(self, plan: Plan, room: Room) -> list[tuple[str, Callable[[], None]]]:
        """Return what is measured, what matters most first."""
        zeros = SIMULATED_ZEROS_BYTES if self.report["simulated"] else min(ZEROS_BYTES, room.gpu // GIB * GIB)
        blocks = [("blocks", partial(self._blocks, plan, block)) for block in BLOCKS if block < plan.largest]
        parts = [
            *super().parts(plan, room),
            ("wake", partial(self._wake, min(WAKE_BYTES, plan.largest), 2 * plan.repeats)),
            ("zeros", partial(self._zeros, zeros, plan.repeats)),
            *blocks,
            ("lot", partial(self._lot, plan.largest)),
            ("driver", partial(self._driver, plan.sizes)),
        ]
        deep = [("context depth", partial(self._context, plan))] if self.options.depth == "context" else []
        return [part for part in parts if part[0] in self.options.parts] + deep

    def ratios(self) -> dict[str, float]:
        """Return the bench's ratios and those beside the driver's checkpoint, blocks, lots and context depth."""
        found = super().ratios()
        size, largest = report.largest_moves(self.report)
        if not largest:
            return found
        ours = {name: row["median_s"] for name, row in largest[max(largest)].items()}
        first, later, resume = (ours[name] for name in ("first park", "park, all changed", "resume"))
        into_lot = deep = None
        for row in self.report["ours"]:
            if row["host"] == "lot" and row["name"] == "first park":
                into_lot = row["median_s"]
            if row["depth"] == "context" and row["name"] == "resume" and row["bytes"] == size:
                deep = row["median_s"]
        if 2 * MIB in largest and len(largest) > 1:
            in_small = largest[2 * MIB]["resume"]["median_s"]
            found["resume in 2 MiB blocks / in the largest blocks"] = in_small / resume
        if into_lot is not None:
            found["first park into a lot / later park, all changed"] = into_lot / later
        if deep is not None:
            found["resume at context depth: seconds beyond memory depth"] = deep - resume
        driver = driver_moves(self.report, size)
        if driver is not None:
            rows = (
                ("first park", "park_s", first),
                ("later park", "park_s", later),
                ("resume", "resume_s", resume),
                ("first park into a lot", "park_s", into_lot),
                ("resume at context depth", "resume_s", deep),
            )
            for name, which, took in rows:
                if took is not None:
                    found[f"{name}: times faster than the driver"] = driver[which] / took
        return found

    def text(self) -> str:
        """Return the report as text."""
        return table(self.report)

    def write(self) -> None:
        """Write what was found so far."""
        super().write()
        if self.options.svg is not None:
            self.options.svg.write_text(picture(self.report))

    def _driver(self, sizes: Sequence[int]) -> None:
        """Have the driver checkpoint a process that holds random content."""
        for size in sizes:
            self.say(f"driver's checkpoint: {bytes_in_words(size)}")
            with BenchProcess() as child:
                child.ask("hold", size=size, block=min(size, GIB))
                child.ask("change", seed=next(measure.seeds))
                took = child.ask("checkpoint")
                if "skipped" in took:
                    raise ChildFailed(took["skipped"])
                measure.verify(child)
            self.report["driver"]["cases"].append({"bytes": size, **took})

    def _blocks(self, plan: Plan, block: int) -> None:
        with self.listener() as listener:
            self.report["ours"] += measure.moves(
                listener, plan.largest, block, plan.repeats, self.say, thorough=False
            )

    def _zeros(self, size: int, repeats: int) -> None:
        """Move memory that holds zeros, as a framework's preallocation does."""
        self.say(f"ours: {bytes_in_words(size)} of zeros")
        rows = measure.Rows(size, min(size, GIB))
        with self.listener() as listener, with_shim(listener) as child:
            child.ask("hold", size=size, block=min(size, GIB))
            for _ in range(repeats):
                measure.park_and_resume(child, rows, "park, zeros", "resume, zeros")
        self.report["ours"] += rows.as_json()

    def _lot(self, size: int) -> None:
        """Park for the first time into touched host memory, as a controller can keep it."""
        self.say(f"ours: {bytes_in_words(size)}, first park into a lot")
        rows = measure.Rows(size, min(size, GIB), host="lot")
        lot_size = -(-size // STEP_BYTES) * STEP_BYTES
        with self.listener() as listener, with_shim(listener) as child:
            assert child.peer is not None
            child.ask("hold", size=size, block=min(size, GIB))
            child.ask("change", seed=next(measure.seeds))
            lot = make_lot(lot_size, lambda _bytes: True)
            try:
                child.peer.give_lot(lot.descriptor, lot_size)
                deadline = time.monotonic() + LOT_WITHIN_S
                # Mapped, and made ready for the GPU's copies.
                while child.peer.page().retained_bytes < lot_size:
                    child.peer.take(0.02)
                    if time.monotonic() > deadline:
                        raise MoveFailed("the shim did not make its lot ready")
                measure.park_and_resume(child, rows, "first park")
            finally:
                lot.let_go()
        self.report["ours"] += rows.as_json()

    def _context(self, plan: Plan) -> None:
        """Measure parks that take the CUDA context too."""
        size = plan.largest
        self.say(f"ours: {bytes_in_words(size)}, context depth")
        rows = measure.Rows(size, min(size, GIB), depth="context")
        with self.listener() as listener, with_shim(listener, AFFINODE_DEPTH="context") as child:
            assert child.peer is not None
            if not child.peer.hello.flags & HelloFlag.CONTEXT:
                raise MoveFailed("this shim or this driver cannot park a context")
            child.ask("hold", size=size, block=min(size, GIB))
            child.ask("change", seed=next(measure.seeds))
            _until_context(child.peer)
            for _ in range(plan.repeats):
                child.ask("change", seed=next(measure.seeds))
                measure.park_and_resume(child, rows, "park, all changed", context=True)
        found = rows.as_json()
        depths = {depth for row in found if row["name"] != "resume" for depth in row["depths"]}
        if depths != {int(Depth.CONTEXT)}:
            raise MoveFailed("not every park took the context")
        self.report["ours"] += found

    def _wake(self, size: int, repeats: int) -> None:
        """Time a CUDA call in a parked process, with a resume that is commanded at once and through a controller."""
        self.report["wake_bytes"], times = size, self.report["wake"]
        self.say(f"wake: {bytes_in_words(size)}, commanded at once")
        times["commanded at once"] = at_once = []
        with self.listener() as listener, with_shim(listener) as child:
            assert child.peer is not None
            child.ask("hold", size=size, block=size)
            for _ in range(repeats):
                child.ask("change", seed=next(measure.seeds))
                child.peer.park()
                child.peer.wants = False
                child.begin("touch")
                while not child.peer.wants:
                    child.peer.take(0.5)
                child.peer.resume()
                at_once.append(float(child.answer()["seconds"]))
                measure.verify(child)
        self.say(f"wake: {bytes_in_words(size)}, through a controller")
        times["through a controller"] = controlled_s = []
        with Controlled() as controlled, BenchProcess(socket=controlled.socket, kernel_id="wakes") as child:
            child.ask("hold", size=size, block=size)
            for _ in range(repeats):
                child.ask("change", seed=next(measure.seeds))
                try:
                    controlled.park_surely("wakes")
                except (NotInTime, RuntimeError) as error:
                    raise MoveFailed(f"the controller did not park the process: {error}") from None
                controlled_s.append(float(child.ask("touch")["seconds"]))
                measure.verify(child)


def _until_context(peer: ShimPeer) -> None:
    """Park and resume until that takes the context too: a young process keeps it. Raises MoveFailed."""
    deadline = time.monotonic() + CONTEXT_WITHIN_S
    while True:
        move = peer.park(context=True)
        peer.resume()
        if move.depth == Depth.CONTEXT:
            return
        if time.monotonic() > deadline:
            raise MoveFailed(move.text or "it was parked at memory depth")
        time.sleep(0.1)


def table(found: report.Report) -> str:
    """Return the report as text: the bench's table with more rows."""
    rows: list[report.Cells] = []
    for case, what in itertools.product(found["driver"]["cases"], ("park", "resume")):
        size, took = case["bytes"], case[f"{what}_s"]
        took_text, rate = report.in_time(took), report.in_rate(size / took)
        rows.append((f"driver's checkpoint: {what}", bytes_in_words(size), "", took_text, rate, "", "", ""))
    for name, times in found["wake"].items():
        if times:
            span = f"{report.in_time(min(times))} to {report.in_time(max(times))}"
            what, size = f"call in a parked process, {name}", bytes_in_words(found["wake_bytes"])
            rows.append((what, size, "", report.in_time(median(times)), "", "", "", span))
    return report.table(found, rows)


def main() -> int:
    """Run it; 0 if all could be measured and was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    command.add_options(parser)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--depth", choices=["memory", "context"], default="memory")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="draw it there")
    return command.run(parser.parse_args(), Moves)


if __name__ == "__main__":
    sys.exit(main())

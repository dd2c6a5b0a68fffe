"""Prints what 200 spawns through the policy cost a Hub: the hook's own time, and the longest block of its event loop.

The spawners are JupyterHub's own with the policy, on one event loop as in the Hub, against one real controller; the
server itself is not started. What is measured is what the policy adds. A block of the loop is how late a tick
is, without the time for which other programs had the processor (/proc/thread-self/schedstat).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "node" / "support")]

from live_machine import new_machine  # noqa: E402

from hub_spawner.enabling import derived  # noqa: E402

SPAWNS = 200
TICK_S = 0.001


def spawner_class() -> type:
    """JupyterHub's own spawner with the policy."""
    from jupyterhub.spawner import LocalProcessSpawner

    return derived(LocalProcessSpawner)


def make(made: type, number: int, socket: Path) -> object:
    """A spawner of a user of their own."""
    spawner = made(
        gpu_memory="100MiB", gpu_socket=str(socket), gpu_wait_s=60.0, unix_name=str(70000 + number)
    )
    spawner.log = logging.getLogger("hub")
    spawner.user = SimpleNamespace(name=f"user{number}", groups=[])
    return spawner


def waited_for_processor_s() -> float:
    """For how long this thread could have run while other programs did."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


async def watch_loop(blocks: list[float]) -> None:
    """Note how late each tick of the loop is."""
    while True:
        before, waited = time.perf_counter(), waited_for_processor_s()
        await asyncio.sleep(TICK_S)
        late = time.perf_counter() - before - TICK_S
        blocks.append(max(late - (waited_for_processor_s() - waited), 0.0))


async def timed(spawner: object, times: list[float]) -> None:
    """One spawn as far as the policy goes."""
    began = time.perf_counter()
    await spawner.run_pre_spawn_hook()  # type: ignore[attr-defined]
    times.append(time.perf_counter() - began)
    told = [event["message"] for event in spawner.gpu_story]  # type: ignore[attr-defined]
    assert told and "There is room" in told[-1], told


async def measure(socket: Path, at_once: int) -> tuple[list[float], list[float]]:
    """Spawn all, so many at a time; each hook's seconds, and each tick's delay."""
    made, times, blocks = spawner_class(), [], []
    waiting = [make(made, number, socket) for number in range(SPAWNS)]
    await waiting.pop().run_pre_spawn_hook()  # type: ignore[attr-defined]  # imports are not counted
    watch = asyncio.ensure_future(watch_loop(blocks))
    while waiting:
        batch = [waiting.pop() for _ in range(min(at_once, len(waiting)))]
        await asyncio.gather(*(timed(spawner, times) for spawner in batch))
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch
    return times, blocks


def main() -> int:
    """Print the figures; 1 if the loop was blocked for 50 ms or more."""
    logging.basicConfig()
    longest = 0.0
    with new_machine() as machine:
        machine.simulate(memory="4GiB")
        machine.start_controller("--system", "--settle=0.1")
        for at_once in (1, 50):
            times, blocks = asyncio.run(measure(machine.socket, at_once))
            cuts = statistics.quantiles(times, n=100)
            longest = max(longest, *blocks)
            print(
                f"{len(times)} spawns, {at_once} at a time, room on the GPU (simulated):"
                f" p50 {cuts[49] * 1000:.0f} ms, p95 {cuts[94] * 1000:.0f} ms;"
                f" the loop's longest block {max(blocks) * 1000:.1f} ms"
            )
    return int(longest >= 0.05)


if __name__ == "__main__":
    sys.exit(main())

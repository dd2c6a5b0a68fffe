"""`make demo-headless`: the demo notebook without a browser, and each change of the kernel's GPU state.

The notebook's cells say by their tags what must be true: `after-parking` (run it once the kernel is parked),
`stays-parked` (it must not get the GPU back), `resumes` (it must), `parks` (it frees the GPU). The exit status is 0
only if all was true.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo_place import DemoPlace, demo_place
from front_end import CellFailed, NotebookKernel, Server, ServerFailed

IDLE_TIMEOUT_S = 3.0
TOTAL_TIMEOUT_S = 180.0
STATE_TIMEOUT_S = 30.0
RESIDENCY = "https://schema.jupyter.org/jupyter_affinode/kernel_residency/v1"


class NotTrue(AssertionError):
    """The product did not do what the notebook says; the message says what."""


class Story:
    """Runs the notebook and prints what happens."""

    def __init__(self, place: DemoPlace, server: Server):
        self._place = place
        self._server = server
        self._began = time.monotonic()
        self._kernel: NotebookKernel | None = None
        self._idle_since = 0.0

    def say(self, what: str, text: str = "") -> None:
        """One line with the seconds since the start."""
        print(f"{time.monotonic() - self._began:7.2f} s  {what:<12} {text}".rstrip(), flush=True)

    async def run(self) -> None:
        """Run all cells; NotTrue, CellFailed or ServerFailed if something is wrong."""
        cells = json.loads((self._place.work / "demo.ipynb").read_text(encoding="utf-8"))["cells"]
        telling = asyncio.create_task(self._tell_changes())
        try:
            self._kernel = await NotebookKernel.start(self._server, "demo.ipynb")
            await self._until_managed()
            self.say("kernel", "started")
            for cell in cells:
                if cell["cell_type"] == "code":
                    await self._run_cell(
                        cell["id"], "".join(cell["source"]), cell["metadata"].get("tags", [])
                    )
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling

    async def _run_cell(self, name: str, source: str, tags: list[str]) -> None:
        assert self._kernel is not None
        if "after-parking" in tags:
            await self._until_parked()
        before = await self._state()
        self.say("cell", f'"{name}"')
        for line in (await self._kernel.execute(source)).splitlines():
            print(f"{'':11} | {line}")
        self._idle_since = time.monotonic()
        after = await self._state()
        if "stays-parked" in tags and (after["residency"], after["resumes"]) != ("parked", before["resumes"]):
            raise NotTrue(
                f"a cell that does not touch CUDA left the kernel {after['residency']}: {after['text']}"
            )
        if "parks" in tags:
            await self._until(lambda kernel: kernel["residency"] == "parked", "parked")
        if "resumes" in tags:
            await self._until(lambda kernel: kernel["resumes"] > before["resumes"], "resumed")

    async def _until_managed(self) -> None:
        """Wait until the GPU controller, which the server starts, knows the kernel."""
        assert self._kernel is not None
        deadline = time.monotonic() + STATE_TIMEOUT_S
        while True:
            status = await self._server.ask("GET", "affinode/api/status")
            if self._kernel.id in [kernel["id"] for kernel in status["kernels"]]:
                return
            if time.monotonic() > deadline:
                raise NotTrue(f"the kernel is not managed: {status['message'] or 'it is not known'}")
            await asyncio.sleep(0.05)

    async def _until_parked(self) -> None:
        """Wait until the kernel is parked and the GPU's memory is given back."""
        before = (await self._state())["parks"]
        kernel = await self._until(lambda kernel: kernel["residency"] == "parked", "parked")
        if kernel["parks"] > before:
            idle = time.monotonic() - self._idle_since
            self.say("gave back", f"{kernel['parked_bytes'] >> 20} MiB, {idle:.1f} s after the last cell")
        if not kernel["parked_bytes"] or kernel["resident_bytes"]:
            raise NotTrue(f"{kernel['resident_bytes']} bytes of a parked kernel are still on the GPU")
        if self._place.simulated:  # on a real GPU others may come and go
            await self._until_unused(kernel["parked_bytes"])

    async def _until_unused(self, freed_bytes: int) -> None:
        """Wait until NVML says that the GPU's memory is free."""
        deadline = time.monotonic() + STATE_TIMEOUT_S
        while True:
            (gpu,) = (await self._server.ask("GET", "affinode/api/status"))["node"]["gpus"]
            if gpu["used_bytes"] < freed_bytes:
                return
            if time.monotonic() > deadline:
                raise NotTrue(
                    f"{gpu['used_bytes'] >> 20} MiB of the GPU are in use though the kernel is parked"
                )
            await asyncio.sleep(0.1)

    async def _until(self, true_of: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Wait for a state of the kernel."""
        deadline = time.monotonic() + STATE_TIMEOUT_S
        while not true_of(kernel := await self._state()):
            if time.monotonic() > deadline:
                why = f" ({kernel['refusal']})" if kernel.get("refusal") else ""
                raise NotTrue(f"not {what} within {STATE_TIMEOUT_S:g} s, but {kernel['residency']}{why}")
            await asyncio.sleep(0.05)
        return kernel

    async def _state(self) -> dict[str, Any]:
        assert self._kernel is not None
        return await self._server.ask("GET", f"affinode/api/kernels/{self._kernel.id}")

    async def _tell_changes(self) -> None:
        """Print each event about the kernel's GPU state."""
        async for event in self._server.events():
            if event.get("schema_id") == RESIDENCY:
                self.say(event["residency"], event["text"])


async def demo(place: DemoPlace) -> str | None:
    """Run everything; what went wrong, or None."""
    log = place.folder / "server.log"
    server = None
    try:
        server = await Server.start(place.work, place.server_options(IDLE_TIMEOUT_S), place.environment, log)
        await asyncio.wait_for(Story(place, server).run(), TOTAL_TIMEOUT_S)
        return None
    except (NotTrue, CellFailed, ServerFailed) as error:
        return f"{error}\n{_tails(log, place.folder / 'node.log')}"
    except asyncio.TimeoutError:
        return f"not finished after {TOTAL_TIMEOUT_S:g} s\n{_tails(log, place.folder / 'node.log')}"
    finally:
        if server is not None:
            server.stop()


def _tails(*logs: Path) -> str:
    """The last lines of the logs that there are."""
    tails = [(log.name, log.read_text(errors="replace").splitlines()[-30:]) for log in logs if log.exists()]
    return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in tails)


def main() -> int:
    """0 if the notebook's story is true here, else 1."""
    with demo_place() as place:
        print(place.gpu_words, flush=True)
        problem = asyncio.run(demo(place))
    if problem is not None:
        print(f"FAILED: {problem}")
        return 1
    gpu = "the simulated GPU" if place.simulated else "the GPU"
    print(f"PASSED: the kernel gave {gpu} back while idle, and got it again with every byte where it was.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

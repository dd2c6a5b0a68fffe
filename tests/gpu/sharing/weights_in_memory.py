"""Kernels with the same weights are parked: they are in host memory once. `python tests/gpu weights_in_memory`.

Needs jupyter-affinode, ipykernel, jupyter_server, PyTorch (with `--program driver` none), an NVIDIA GPU, and room
below `--dir`, a tmpfs (/dev/shm). Each of `--kernels` holds the same `--gib` of random words, and `--own` of its own.
The same is done twice, first with `share_dir` off, with as many kernels as host memory has room for, then with it on:
each kernel is parked when it has been made; then, `--cycles` times, one after the other is resumed and parked again.
With it on, all parked kernels together may have the weights once, and of each what is its own and `--beside` GiB
more, of host memory: packs below `--dir`, lots that kernels have, and what processes have more of their own than
before their first park. What they had by then is told apart. The parks and resumes with it on and off are compared by
their medians. Exits with 1 if the memory, or any word, is not as it must be; the ratios do not fail it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlled import NO_GPU_STATUS, finish, machine, options, say
from hibernation import SETUP, value
from live_machine import Machine, new_machine
from live_server import JupyterKernel, JupyterServer
from waiting import wait_until
from weights_once import begun, filled

from jupyter_affinode.node.system.host_memory import host_memory

GIB = 1 << 30
SETTLES_S, SETTLED_S = 180.0, 3.0
SPARE_BYTES = 24 * GIB  # of host memory, for what else there is


@dataclass
class Sharer:
    """A kernel, and what was seen of it."""

    kernel: JupyterKernel
    sums: str
    pid: int
    private_bytes: int  # before its first park
    parks_s: list[float] = field(default_factory=list)
    resumes_s: list[float] = field(default_factory=list)
    is_right: bool = True


@dataclass
class Found:
    """What was seen of all, with the setting on or off."""

    sharers: list[Sharer] = field(default_factory=list)
    first_parks_s: list[float] = field(default_factory=list)
    packs_bytes: int = 0
    lent_bytes: int = 0  # lots that kernels have
    private_bytes: int = 0  # what processes have more of their own than before their first park
    ready_bytes: int = 0  # lots made in advance, which no kernel has
    processes_bytes: int = 0  # what processes have besides, by the operating system
    taken_bytes: int = 0  # what is available less, than before the first kernel

    def median_s(self, name: str) -> float:
        """The median of what all took for their moves."""
        return statistics.median(each for sharer in self.sharers for each in getattr(sharer, name))


def seen(live: Machine, kernel: JupyterKernel) -> dict[str, Any]:
    """The kernel as the controller sees it."""
    return live.kernel(kernel.id) or {}


def park(live: Machine, sharer: Sharer) -> float:
    """Park it; the seconds that its shim took."""
    status, answer = live.ask("POST", f"/kernels/{sharer.kernel.id}/park", {"wait": True})
    assert status == 200, answer
    wait_until(lambda: seen(live, sharer.kernel)["residency"] == "parked", 60)
    return float(seen(live, sharer.kernel)["last_park"]["duration_s"])


def come_back(live: Machine, sharer: Sharer) -> float:
    """Resume it and see to what it has; the seconds that its shim took."""
    sums, _ = value(sharer.kernel, "sums()")
    sharer.is_right = sharer.is_right and sums == sharer.sums
    return float(seen(live, sharer.kernel)["last_resume"]["duration_s"])


def private_bytes(pid: int) -> int:
    """What a process has of anonymous memory, locked or not."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "VmSwap:")))


def packs_bytes(folder: str) -> int:
    """What packs take, each once."""
    found = [path.stat() for path in Path(folder).glob("affinode-*/*/gpu-*")]
    return sum({status.st_ino: status.st_blocks * 512 for status in found}.values())


def wait_until_shared(live: Machine, sharers: list[Sharer], common_bytes: int) -> None:
    """Wait until all have in common what they can."""

    def do() -> bool:
        return all(seen(live, each.kernel)["shared_bytes"] >= 0.98 * common_bytes for each in sharers)

    wait_until(do, SETTLES_S, live.controller_log)


def weigh(live: Machine, found: Found, folder: str | None, before_bytes: int) -> None:
    """Measure the host memory while all are parked."""
    states = [seen(live, each.kernel) for each in found.sharers]
    assert {state["residency"] for state in states} == {"parked"}, states
    found.packs_bytes = packs_bytes(folder) if folder else 0
    node = live.node()
    assert node is not None
    found.ready_bytes, found.lent_bytes = (
        node["host"]["lots"][name] for name in ("ready_bytes", "given_bytes")
    )
    more = [private_bytes(each.pid) - each.private_bytes for each in found.sharers]
    found.private_bytes = sum(max(size, 0) for size in more)
    found.processes_bytes = sum(each.private_bytes for each in found.sharers)
    found.taken_bytes = before_bytes - host_memory().available_bytes


def run(given: Any, simulated: bool, folder: str | None, count: int, deadline: float) -> Found:
    """Do all of it with the setting on (`folder`) or off."""
    found, common = Found(), int(given.gib * GIB)
    with new_machine() as live:
        live.environment["AFFINODE_FOLDER"] = str(live.folder / "own")
        if simulated:
            live.simulate("4GiB")
        live.start_controller("--settle=0", *([f"--share-dir={folder}"] if folder else []))
        before_bytes = host_memory().available_bytes
        server = JupyterServer(live)
        server.enable_extension()
        server.start()
        for number, kernel in enumerate(begun(server, given.program, count)):
            if time.monotonic() > deadline:
                break
            sums, pid = filled(kernel, given, number).sums, int(kernel.pid)
            sharer = Sharer(kernel, sums, pid, private_bytes(pid))
            found.sharers.append(sharer)
            found.first_parks_s.append(park(live, sharer))
            say(f"{'on' if folder else 'off'}: kernel {len(found.sharers)} parked")
        if folder:
            wait_until_shared(live, found.sharers, common)
            time.sleep(SETTLED_S)  # lots that are empty are given back
        weigh(live, found, folder, before_bytes)
        for cycle in range(given.cycles):
            for sharer in found.sharers:
                sharer.resumes_s.append(come_back(live, sharer))
                sharer.parks_s.append(park(live, sharer))
            say(f"{'on' if folder else 'off'}: cycle {cycle + 1} done")
        if folder:
            wait_until_shared(live, found.sharers, common)
        server.stop()
        if folder:
            with contextlib.suppress(AssertionError):  # it is told at the end
                wait_until(lambda: not packs_bytes(folder), 30)
    return found


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=400.0)
    parser.add_argument("--dir", default="/dev/shm", help="a tmpfs (/dev/shm)")
    parser.add_argument("--kernels", type=int, default=10, help="how many (10)")
    parser.add_argument("--gib", type=float, default=8.0, help="what all have (8)")
    parser.add_argument("--own", type=float, default=0.5, help="GiB of each alone (0.5)")
    parser.add_argument("--beside", type=float, default=0.1, help="GiB of each that are allowed beside (0.1)")
    parser.add_argument("--cycles", type=int, default=3, help="how often each is resumed and parked (3)")
    parser.add_argument("--off", type=int, default=3, help="kernels with the setting off, at most (3)")
    parser.add_argument("--program", choices=sorted(SETUP), default="torch", help="what it runs (torch)")
    given = parser.parse_args()
    modules = ["ipykernel", "jupyter_server", *(["torch"] if given.program == "torch" else [])]
    where = machine(modules=modules)
    deadline = time.monotonic() + given.time
    needs, tmpfs = (given.gib + given.kernels * (given.own + given.beside)) * GIB, os.statvfs(given.dir)
    if tmpfs.f_bavail * tmpfs.f_frsize < needs:
        print(
            f"{given.dir} has no room for {needs / GIB:.1f} GiB: name another tmpfs by --dir", file=sys.stderr
        )
        return NO_GPU_STATUS
    room = max(host_memory().available_bytes - SPARE_BYTES, 0)
    fit = max(int(room // ((given.gib + given.own) * GIB)), 1)
    simulated = bool(where["simulated"])
    with tempfile.TemporaryDirectory(prefix=f"affinode-share-{os.getpid()}-", dir=given.dir) as folder:
        off = run(given, simulated, None, min(given.off, given.kernels, fit), deadline)
        on = run(given, simulated, folder, given.kernels, deadline)
        left = packs_bytes(folder)
    allowed = int((given.gib + given.kernels * (given.own + given.beside)) * GIB)
    takes = on.packs_bytes + on.lent_bytes + on.private_bytes
    rows = [
        (
            name,
            str(len(found.sharers)),
            f"{found.packs_bytes / GIB:.3f} GiB",
            f"{found.lent_bytes / GIB:.3f} GiB",
            f"{found.private_bytes / GIB:.3f} GiB",
            f"{found.ready_bytes / GIB:.3f} GiB",
            f"{found.processes_bytes / GIB:.3f} GiB",
            f"{found.taken_bytes / GIB:.3f} GiB",
            f"{statistics.median(found.first_parks_s):.3f} s",
            f"{found.median_s('parks_s'):.4f} s",
            f"{found.median_s('resumes_s'):.4f} s",
            "equal" if all(each.is_right for each in found.sharers) else "WRONG",
        )
        for name, found in (("off", off), ("on", on))
    ]
    ratios = {name: off.median_s(name) / on.median_s(name) for name in ("parks_s", "resumes_s")}
    return finish(
        "weights_in_memory",
        where,
        given.json,
        headings=(
            "share_dir",
            "kernels",
            "packs",
            "lots lent",
            "processes more than before",
            "lots in advance",
            "processes besides",
            "available less",
            "first park",
            "park",
            "resume",
            "all",
        ),
        rows=rows,
        passed=all(row[-1] == "equal" for row in rows)
        and len(on.sharers) == given.kernels
        and takes <= allowed
        and not left,
        notes=[
            f"{len(on.sharers)} parked kernels with the same {given.gib:g} GiB and {given.own:g} of their own:"
            f" {takes / GIB:.3f} GiB of host memory for these, {allowed / GIB:.3f} allowed",
            f"off / on: park {ratios['parks_s']:.3f}, resume {ratios['resumes_s']:.3f} (medians of"
            f" {given.cycles} each; parks of unchanged memory); all deleted: {not left}",
        ],
        ratios=ratios,
    )


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())

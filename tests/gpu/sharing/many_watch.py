"""How many_kernels.py goes, told while it runs; its end in time; memory that a machine shows only once it is used."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controlled import say
from live_kernel import ask
from many_figures import Steal
from many_people import Person

from jupyter_affinode.client.api import ControllerRefused, ControllerUnavailable
from jupyter_affinode.node.system.host_memory import cgroup_memory, host_memory
from jupyter_affinode.settings.policy import GIB

TELL_EVERY_S = 10.0
LOG_LINES = 25
GROWS_WITHIN_S = 90.0


class Watch(threading.Thread):
    """Says every 10 s how it goes, by the controller; and ends everything when it is over time."""

    def __init__(self, persons: Sequence[Person], ends_after_s: float, log: Path):
        super().__init__(name="watch", daemon=True)
        self.shallow: set[str] = set()  # why kernels stayed at memory depth against the wish
        self._people, self._log = persons, log
        self._deadline = time.monotonic() + ends_after_s
        self._ends = threading.Event()
        self._steal = Steal()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.join()

    def run(self) -> None:
        tell_at = time.monotonic() + TELL_EVERY_S
        while not self._ends.wait(max(min(tell_at, self._deadline) - time.monotonic(), 0.0)):
            if time.monotonic() >= self._deadline:
                self._give_up()
            tell_at += TELL_EVERY_S
            self.tell()

    def tell(self) -> None:
        """One line."""
        cells = f"{sum(len(person.cells) for person in self._people)} cells"
        try:
            node, kernels = ask("node"), ask("kernels")
        except (ControllerUnavailable, ControllerRefused, OSError) as error:
            say(f"{cells}; the controller does not answer: {error}")
            return
        self.shallow |= {kernel["depth_refusal"] for kernel in kernels if kernel["depth_refusal"]}
        stolen = f"{self._steal.share():.1%} of the processors' time had others"
        say(f"{cells}; {kernels_in_words(kernels)}; {host_in_words(node['host'])}; {stolen}")

    def _give_up(self) -> None:
        """Whatever hangs: tell where, and leave nothing behind."""
        say("NOT AS IT MUST BE: over time; what each thread does:")
        faulthandler.dump_traceback(all_threads=True)
        self.tell()
        tell_log(self._log)
        end_all(self._people)
        with contextlib.suppress(Exception):
            os.kill(int(ask("node")["controller"]["pid"]), signal.SIGTERM)
        print("FAILED", flush=True)
        os._exit(1)


def kernels_in_words(kernels: Sequence[Mapping[str, Any]]) -> str:
    """How many are where, which has waited longest and for what, and what keeps others on the GPU."""
    where = collections.Counter(str(kernel["residency"]) for kernel in kernels)
    words = ", ".join(f"{count} {residency}" for residency, count in sorted(where.items())) or "no kernel"
    waiting = [kernel for kernel in kernels if kernel["waiting_s"] is not None]
    if waiting:
        longest = max(waiting, key=lambda kernel: float(kernel["waiting_s"]))
        words += f", the longest for {longest['waiting_s']:.1f} s: {longest['wait_reason']}"
    refused = collections.Counter(str(kernel["refusal"]) for kernel in kernels if kernel["refusal"])
    for refusal, count in refused.most_common(2):
        words += f"; {count} not parked: {refusal}"
    return words


def host_in_words(host: Mapping[str, Any]) -> str:
    """The controller's view of host memory."""
    words = f"host memory: {_gib(host['available_bytes'])} of {_gib(host['total_bytes'])} GiB available"
    words += f", reserve {_gib(host['reserve_bytes'])}"
    if host["cgroup_headroom_bytes"] is not None:
        words += f", cgroup headroom {_gib(host['cgroup_headroom_bytes'])}"
    words += f", parked {_gib(host['copy_bytes'])}, kept {_gib(host['retained_bytes'])}"
    return (
        f"{words}, lots {_gib(host['lots']['given_bytes'])} lent, {_gib(host['lots']['ready_bytes'])} ready"
    )


def tell_log(log: Path) -> None:
    """The end of the controller's log."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        print(f"the controller's last words ({log}):", *lines, sep="\n", file=sys.stderr, flush=True)


def end_all(persons: Sequence[Person]) -> None:
    """Kill what is left of the kernels; those that have ended are not touched."""
    for person in persons:
        person.kill()


def grow_memory(needed_bytes: int) -> None:
    """Touch so much of host memory once, and give it back, where the machine shows less than that.

    Some virtual machines get their memory while they use it. What they do not show is not there where one reckons
    with MemTotal and MemAvailable, as the controller does.
    """
    before, limit = host_memory(), cgroup_memory(os.getpid())
    # Without a limit that says how much there is to be, only what shows far too little is tried.
    shows = needed_bytes // 2 if limit is None else min(needed_bytes, limit.limit_bytes * 9 // 10)
    if before.total_bytes >= shows:
        return
    say(
        f"this machine shows {_gib(before.total_bytes)} GiB of memory; touching {_gib(needed_bytes)} GiB once"
    )
    code = "import sys; from jupyter_affinode.bench.host_memory import warm; warm(int(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(shows)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, timeout=GROWS_WITHIN_S)
    after = host_memory()
    say(f"now it shows {_gib(after.total_bytes)} GiB, {_gib(after.available_bytes)} available")


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"

"""What a park's digests behind the closed gate take: `python tests/gpu digest [--gib 8 40]`.

A park digests all memory with the gate closed: once where nothing has changed since the last park, else once more
behind the copies, so that a write that no wrapper saw is not lost. For so long a call of the application may wait.
The shim's log has the figures. Exits with 1 where a word is wrong after a resume, or where the number of digests is
not what it must be.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from controlled import finish, machine, options, say

from jupyter_affinode.bench.child_process import with_shim
from jupyter_affinode.bench.shim_peer import Listener

GIB = 1 << 30
BLOCK_BYTES = 256 << 20
DIGESTED = re.compile(r"park: digested behind the gate in ([0-9.]+) ms")
EXPECTED = {"all changed": 2, "1 % changed": 2, "unchanged": 1}


def measure(
    size: int, rounds: int, folder: Path
) -> tuple[dict[str, list[list[float]]], dict[str, float], int]:
    """Milliseconds of each park's digests, seconds of the median park, and how many words were wrong."""
    log = folder / "log"
    listener = Listener(folder)
    digests: dict[str, list[list[float]]] = {name: [] for name in EXPECTED}
    parks: dict[str, list[float]] = {name: [] for name in EXPECTED}
    wrong = 0
    with with_shim(listener, AFFINODE_LOG=str(log)) as process:
        assert process.peer is not None
        process.ask("hold", size=size, block=min(size, BLOCK_BYTES))
        for seed in range(1, rounds + 1):
            for name in EXPECTED:
                if name == "all changed":
                    process.ask("change", seed=seed)
                elif name == "1 % changed":
                    process.ask("change", seed=1000 + seed, fraction=0.01)
                while True:
                    before = len(DIGESTED.findall(log.read_text()))
                    park = process.peer.park()
                    if park.tries == 1:  # else the log is of several
                        break
                    process.peer.resume()
                digests[name].append([float(found) for found in DIGESTED.findall(log.read_text())[before:]])
                parks[name].append(park.seconds)
                process.peer.resume()
                wrong += process.ask("verify")["differing_words"]
    listener.close()
    return digests, {name: median(seconds) for name, seconds in parks.items()}, wrong


def main() -> int:
    """Measure each size and print a table."""
    parser = options(__doc__, time_s=300)
    parser.add_argument("--gib", type=float, nargs="*", default=[8, 40], help="GPU memory to move")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    where = machine()
    deadline = time.monotonic() + given.time
    rows, notes, figures, passed = [], [], [], True
    for gib in given.gib:
        if time.monotonic() > deadline:
            notes.append(f"{gib:g} GiB: left out for time")
            continue
        size = int(gib * GIB) // BLOCK_BYTES * BLOCK_BYTES or BLOCK_BYTES
        say(f"{size / GIB:g} GiB")
        with tempfile.TemporaryDirectory(prefix="affinode-digest-") as folder:
            digests, parks, wrong = measure(size, given.rounds, Path(folder))
        passed = passed and not wrong
        for name, found in digests.items():
            passed = passed and all(len(each) == EXPECTED[name] for each in found)
            in_all = median(sum(each) for each in found)
            longest = max(max(each) for each in found)
            share = in_all / 1e3 / parks[name]
            rows.append(
                [
                    f"{size / GIB:g} GiB",
                    name,
                    str(len(found[0])),
                    f"{in_all:.1f} ms",
                    f"{longest:.1f} ms",
                    f"{parks[name] * 1e3:.0f} ms",
                    f"{share:.1%}",
                    str(wrong),
                ]
            )
            figures.append({"gib": size / GIB, "park": name, "digests_ms": found, "park_s": parks[name]})
    return finish(
        "digest",
        where,
        given.json,
        headings=[
            "memory",
            "contents",
            "digests",
            "together",
            "longest",
            "park",
            "share of the park",
            "wrong words",
        ],
        rows=rows,
        passed=passed,
        notes=notes,
        figures=figures,
    )


if __name__ == "__main__":
    sys.exit(main())

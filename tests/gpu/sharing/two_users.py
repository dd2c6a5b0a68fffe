"""Two kernels that change places through a real controller: of one user and of two, with host memory enough and not.

`python tests/gpu two_users --gib 20`, as root for the cases of two users, in which the controller is one of all users.
One kernel is parked, one is on the GPU, another program takes the rest of it. A call in the parked one makes them
change places; all that the other one holds has changed before. "one copy": the reserve of host memory is such that
beside the parked kernel's copy 1 GiB is left. Each time is held against that which copies out and in at once would take
in the same run, and every word of the kernel that came is looked at.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from statistics import median

from controlled import USUAL, Controlled, ballast, finish, machine, options, say
from waiting import NotInTime

from jupyter_affinode.bench.child_process import BenchProcess, ChildFailed
from jupyter_affinode.bench.exchange import DUPLEX_REPEATS, SIMULATED_SPARE_BYTES, SPARE_BYTES
from jupyter_affinode.node.policy.resources.host_memory import MARGIN_PART
from jupyter_affinode.node.system.host_memory import host_memory
from jupyter_affinode.settings.policy import GIB, MIB

USERS = (61001, 61002)
CASES = {  # (users, host memory): what an exchange may take, in times of the link's
    ("one", "enough"): 1.5,
    ("one", "one copy"): 1.7,
    ("two", "enough"): 2.5,
    ("two", "one copy"): 2.5,
}
IDLE_S = 2.0  # of the one that leaves: longer than a round trip, so that none of it is waiting for idleness
COMES_WITHIN_S = 30.0
WARM_UP = 1  # exchanges that do not count: the first touches host memory
STAMP = "%Y-%m-%d %H:%M:%S.%f"
_seeds = itertools.count(1)


class Kernel:
    """A program of a user's that the controller manages, by two names."""

    def __init__(self, controlled: Controlled, name: str, uid: int | None, size: int, stack: ExitStack):
        self.id = name if uid is None else f"uid-{uid}/{name}"
        self.child = stack.enter_context(
            BenchProcess(socket=controlled.socket, kernel_id=name, through=as_user(uid))
        )
        self.child.ask("hold", size=size, block=min(size, GIB))
        self.child.ask("change", seed=next(_seeds))


def as_user(uid: int | None) -> list[str]:
    """A command that runs another as that user; it may read what only root can, such as an interpreter in /root."""
    if uid is None:
        return []
    user = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    return ["setpriv", *user, "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search", "--"]


def open_simulated_machine() -> None:
    """Let each user's processes use the simulated GPU, as they can a real one."""
    folder = Path(os.environ["AFFINODE_SIM_DIR"])
    folder.chmod(0o755)
    (folder / "machine").touch()
    (folder / "machine").chmod(0o666)


def leave_host_memory(controlled: Controlled, size: int) -> None:
    """Have the controller keep a reserve beside which so much is left."""
    left = host_memory().available_bytes - size
    controlled.set_policy(host_reserve_bytes=max(left * MARGIN_PART // (MARGIN_PART + 1), 0))


def exchange_s(log: str, leaves: str, comes: str) -> float | None:
    """Seconds from the command to leave until one is parked and the other is back; None if that was no exchange."""
    begin, ends, is_exchange = datetime.min, list[datetime](), False
    for line in log.splitlines():
        found = re.match(r"(\S+ \S+) \S (.*)", line)
        if found is None:
            continue
        stamp, words = found.groups()
        if words.startswith(f"park {leaves} ("):
            begin, ends, is_exchange = datetime.strptime(stamp, STAMP), [], False
        elif words.startswith(f"resume {comes} (") and words.endswith("others leave the GPU for it"):
            is_exchange = True
        elif words.startswith((f"parked {leaves}: ", f"resumed {comes}: ")):
            ends.append(datetime.strptime(stamp, STAMP))
    return (max(ends) - begin).total_seconds() if is_exchange and len(ends) == 2 else None


def change_places(controlled: Controlled, leaves: Kernel, comes: Kernel) -> tuple[float | None, float]:
    """Have a call of the parked one bring it in; seconds of the exchange and of the call. Raises ChildFailed."""
    leaves.child.ask("change", seed=next(_seeds))
    while (controlled.kernel(leaves.id) or {"idle_s": 0.0})["idle_s"] < IDLE_S:
        time.sleep(0.05)
    begins = len(controlled.log())
    comes.child.begin("touch")
    try:
        call_s = float(comes.child.answer(COMES_WITHIN_S)["seconds"])
    except ChildFailed as error:
        seen = controlled.kernel(comes.id) or {}
        why = seen.get("wait_reason") or (controlled.kernel(leaves.id) or {}).get("refusal")
        raise ChildFailed(f"{error}: {why}") from None
    controlled.until(leaves.id, "parked")
    controlled.until(comes.id, "resident")
    wrong = comes.child.ask("verify")["differing_words"]
    if wrong:
        raise ChildFailed(f"WRONG: {wrong} words are not what was written before")
    return exchange_s(controlled.log()[begins:], leaves.id, comes.id), call_s


def case(
    users: str, host: str, size: int, repeats: int, *, simulated: bool
) -> list[tuple[float | None, float]]:
    """Exchanges of one kind. Raises ChildFailed."""
    settings = ["--contended-idle-timeout=0.05", *(["--system"] if users == "two" else [])]
    uids = USERS if users == "two" else (None, None)
    with ExitStack() as stack:
        controlled = stack.enter_context(Controlled(*settings, usual=USUAL))
        comes = Kernel(controlled, "first", uids[0], size, stack)
        controlled.park_surely(comes.id)
        leaves = Kernel(controlled, "second", uids[1], size, stack)
        stack.enter_context(ballast(SIMULATED_SPARE_BYTES if simulated else SPARE_BYTES))
        if host == "one copy":
            leave_host_memory(controlled, min(GIB, size))
        took = []
        for _ in range(WARM_UP + repeats):
            took.append(change_places(controlled, leaves, comes))
            leaves, comes = comes, leaves
        return took[WARM_UP:]


def row(
    users: str, host: str, took: list[tuple[float | None, float]], link_s: float
) -> tuple[list[str], bool]:
    """A row of the table, and whether it is as it must be."""
    wanted, calls = CASES[users, host], median(call for _, call in took)
    exchanged = [seconds for seconds, _ in took if seconds is not None]
    if len(exchanged) < len(took):
        figures = [f"{len(exchanged)} of {len(took)}", "-", f"{calls:.3f} s", "-", f"{wanted:g}"]
        return [users, host, *figures, "NO"], False
    middle = median(exchanged)
    met = middle / link_s <= wanted
    words = f"{middle:.3f} s ({min(exchanged):.3f} to {max(exchanged):.3f})"
    figures = [f"{middle / link_s:.2f}", f"{calls:.3f} s", f"{calls / link_s:.2f}", f"{wanted:g}"]
    return [users, host, words, *figures, "yes" if met else "NO"], met


def arguments() -> argparse.Namespace:
    parser = options(__doc__, time_s=100)
    parser.add_argument("--gib", type=float, default=20.0, help="what each kernel holds (20)")
    parser.add_argument("--repeats", type=int, default=3, help="exchanges of each case that count (3)")
    parser.add_argument("--users", default="two,one", help="which cases (two,one)")
    return parser.parse_args()


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    given = arguments()
    where, size = machine(), int(given.gib * GIB) // (2 * MIB) * 2 * MIB
    until, users = time.monotonic() + given.time, given.users.split(",")
    rows, notes, passed = [], [], True
    if "two" in users and (os.getuid() != 0 or shutil.which("setpriv") is None):
        notes.append("left out: two users, which take root and setpriv")
        users.remove("two")
    if where["simulated"]:
        open_simulated_machine()
    with BenchProcess() as child:
        duplex = child.ask("duplex_rates", size=min(size, 4 * GIB), repeats=DUPLEX_REPEATS)
    link_s = median(duplex["together_s"]) * size / duplex["bytes"]
    for who, host in CASES:
        if who not in users or time.monotonic() > until:
            continue
        say(f"{who}, {host}")
        try:
            found, met = row(
                who, host, case(who, host, size, given.repeats, simulated=where["simulated"]), link_s
            )
        except (ChildFailed, NotInTime) as error:
            found, met = [who, host, "-", "-", "-", "-", f"{CASES[who, host]:g}", f"NO: {error}"], False
        rows.append(found)
        passed &= met or (where["simulated"] and "WRONG" not in found[-1])
    notes.append(f"{given.gib:g} GiB each; out and in at once the link would take {link_s:.3f} s")
    return finish(
        "two users",
        where,
        given.json,
        headings=[
            "users",
            "host memory",
            "exchange",
            "of the link's",
            "the call",
            "of the link's",
            "wanted",
            "kept",
        ],
        rows=rows,
        passed=passed and bool(rows),
        notes=notes,
    )


if __name__ == "__main__":
    sys.exit(main())

"""Two Unix users at the machine's own controller: `python tests/gpu two_users`, as root, on an unused machine.

Needs jupyter-affinode and a Python that every user may run, and an NVIDIA GPU. `jupyter affinode node --system`
serves; each user has a program of `--gib` on the same GPU, too much for both. They work in turns for `--rounds`,
each time finding every 2 MiB of its memory as it was left, while the other is parked to make room. Then the second
user tries to see, park, hold, bring back, describe and end the first one's kernel, and to change the policy;
nothing of that may be possible, or change anything. The controller is killed and started again, and both go on.
With `--gpus 2` the controller is asked where to start a third program, and the GPU that it names first must be the
empty one. Tells every wait. Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from controlled import NO_GPU_STATUS, finish, machine, options, say

from jupyter_affinode import environment
from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from jupyter_affinode.provisioning import preload as launch_environment

ALICE, BOB = 61001, 61002
GIB = 1 << 30
COMES_WITHIN_S = 20.0
PAUSE_S = 1.5  # longer than a thinking user's kernel is left alone
PROGRAM = """
import ctypes, json, sys, time
from jupyter_affinode.bench.driver import Driver
size, number = int(sys.argv[1]) >> 21 << 21, int(sys.argv[2])
started = time.monotonic()
driver = Driver()
block = driver.allocate(size)
word, value, wrong = (ctypes.c_uint32 * 1)(), None, 0
def fill(new):
    driver.call("cuMemsetD32_v2", ctypes.c_uint64(block), new, ctypes.c_size_t(size // 4))
    driver.synchronize()
    return new
fill(0)
took = time.monotonic() - started
print(json.dumps({"took_s": took, "wrong": 0}), flush=True)
value = 0
for turn, _ in enumerate(sys.stdin, 1):
    started = time.monotonic()
    driver.call("cuMemcpyDtoH_v2", word, ctypes.c_uint64(block), ctypes.c_size_t(4))
    took, wrong = time.monotonic() - started, int(word[0] != value)
    for at in range(block + 4 * (turn % 1000), block + size, 1 << 21):
        driver.call("cuMemcpyDtoH_v2", word, ctypes.c_uint64(at), ctypes.c_size_t(4))
        wrong += word[0] != value
    value = fill(number * 1_000_003 + turn)
    print(json.dumps({"took_s": took, "wrong": wrong}), flush=True)
"""
ASK = """
import asyncio, json, sys
from jupyter_affinode.client.api import ControllerClient, ControllerRefused
method, path, body = sys.argv[1:]
async def ask():
    try:
        return 200, await ControllerClient()._json(method, path, json.loads(body))
    except ControllerRefused as refused:
        return refused.status, refused.message
print(json.dumps(asyncio.run(ask())))
"""
ATTACKS = [
    ("GET", "", None),
    ("DELETE", "", None),
    *[("POST", f"/{what}", {}) for what in ("park", "resume", "hold", "release", "cancel", "dying", "focus")],
    ("POST", "/end", {"process": 1}),
]


class User:
    """A user on the machine, with a program."""

    def __init__(self, uid: int, socket: Path):
        self.uid = uid
        self._env = environment.controller_environment()
        self._env |= {environment.SOCKET: str(socket), "HOME": "/nonexistent", "TMPDIR": "/tmp"}
        self.kernel_id = f"of-{uid}"
        self.waits: list[float] = []
        self.wrong = 0
        self.program: subprocess.Popen[str] | None = None

    def start(self, size: int, visible: str | None = None) -> None:
        """Start the program; it answers once it has its memory."""
        env = dict(self._env)
        command = [sys.executable, "-c", PROGRAM, str(size), str(self.uid % 1000)]
        launch_environment.manage(env, self.kernel_id, command, python=False)
        if visible is not None:
            env["CUDA_VISIBLE_DEVICES"] = visible
        pipe = subprocess.PIPE
        self.program = subprocess.Popen(
            command, env=env, stdin=pipe, stdout=pipe, text=True, cwd="/", **self._identity()
        )
        self._hear()

    def work(self) -> None:
        """One cell of it."""
        assert self.program is not None and self.program.stdin is not None
        self.program.stdin.write("\n")
        self.program.stdin.flush()
        self._hear()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request to the controller, as this user."""
        command = [sys.executable, "-c", ASK, method, path, json.dumps(body)]
        done = subprocess.run(
            command, env=self._env, cwd="/", capture_output=True, text=True, check=True, **self._identity()
        )
        status, answer = json.loads(done.stdout)
        return status, answer

    def kernel(self) -> dict[str, Any]:
        """What the controller tells this user of the program."""
        kernel: dict[str, Any] = self.ask("GET", f"/kernels/{self.kernel_id}")[1]
        return kernel

    def end(self) -> None:
        """End the program."""
        if self.program is not None:
            self.program.kill()
            self.program.wait()

    def _hear(self) -> None:
        assert self.program is not None and self.program.stdout is not None
        line = self.program.stdout.readline()
        if not line:
            raise RuntimeError(f"the program of user {self.uid} ended with status {self.program.wait()}")
        found = json.loads(line)
        self.waits.append(found["took_s"])
        self.wrong += found["wrong"]

    def _identity(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.uid, "extra_groups": []}


class Daemon:
    """`jupyter affinode node --system`; it ends with the context."""

    def __init__(self, socket: Path, log: Path):
        self.socket, self._log = socket, log

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def start(self) -> None:
        """Start it, and wait until it answers. Raises RuntimeError."""
        env = environment.controller_environment() | {environment.SOCKET: str(self.socket)}
        command = [
            sys.executable,
            "-m",
            "jupyter_affinode.cli",
            "node",
            "--system",
            "--contended-idle-timeout=1",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--low-watermark=0", "--settle=0.1"], env=env, stdout=log, stderr=log, cwd="/"
            )
        deadline = time.monotonic() + COMES_WITHIN_S
        while True:
            with contextlib.suppress(ControllerUnavailable):
                asyncio.run(ControllerClient(self.socket).node())
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the controller did not come:\n{self.log()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """As the kernel does when memory is short."""
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text(errors="replace")


def attack(victim: User, attacker: User) -> list[str]:
    """What one user can do to the other's kernel; [] if nothing."""
    found = []
    before = victim.kernel()
    seen = attacker.ask("GET", "/kernels")[1]["kernels"]
    if [kernel["id"] for kernel in seen] != [attacker.kernel_id]:
        found.append(f"sees {seen}")
    for method, action, body in ATTACKS:
        status, answer = attacker.ask(method, f"/kernels/{victim.kernel_id}{action}", body)
        if status == 200:
            found.append(f"{method} {action}: {answer}")
    status, _ = attacker.ask("PATCH", "/policy", {"park_when": "idle"})
    if status != 403:
        found.append(f"may change the policy ({status})")
    after = victim.kernel()
    changed = [
        key for key in ("residency", "name", "hold", "parks", "resumes") if before.get(key) != after.get(key)
    ]
    return found + [f"changed {key}" for key in changed]


def placed(user: User) -> list[str]:
    """Which GPUs a new kernel of the user should see."""
    status, answer = user.ask("POST", "/kernels/new/place", {})
    return list(answer["visible_devices"]) if status == 200 else []


def on_gpu(user: User) -> str:
    """The GPU that a user's kernel has memory on."""
    return next((str(gpu["uuid"]) for gpu in user.kernel()["gpus"] if gpu["resident_bytes"]), "none")


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=90.0)
    parser.add_argument("--gib", type=float, default=75.0, help="what each program holds (75)")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each (6)")
    parser.add_argument("--gpus", type=int, default=1, choices=(1, 2), help="how many there are to use (1)")
    parser.add_argument(
        "--socket", type=Path, default=environment.NODE_SOCKET, help="where the daemon serves"
    )
    given = parser.parse_args()
    if os.getuid() != 0:
        print("this needs root: it starts programs of two users.", file=sys.stderr)
        return NO_GPU_STATUS
    where = machine(given.gpus)
    log = Path(tempfile.mkdtemp(prefix="affinode-users-", dir="/tmp")) / "node.log"
    alice, bob, third = (User(uid, given.socket) for uid in (ALICE, BOB, BOB + 1))
    wrong, notes, moves = [], [], [(0, 0), (0, 0)]
    with Daemon(given.socket, log) as daemon:
        try:
            wrong += take_turns(daemon, alice, bob, given)
            if given.gpus > 1:
                wrong += check_placement(alice, third, int(given.gib * GIB), notes)
            moves = [(kernel["parks"], kernel["resumes"]) for kernel in (alice.kernel(), bob.kernel())]
        except (RuntimeError, ControllerRefused, ControllerUnavailable, KeyError) as error:
            wrong.append(f"{error}\n{daemon.log()[-2000:]}")
        finally:
            for user in (alice, bob, third):
                user.end()
    rows = [
        (
            f"{user.uid}",
            f"{len(user.waits)}",
            f"{median(user.waits or [0]):.2f}, {max(user.waits, default=0):.2f} s",
            f"{parks}, {resumes}",
            f"{user.wrong}",
        )
        for user, (parks, resumes) in zip((alice, bob), moves, strict=True)
    ]
    wrong += [f"{user.wrong} wrong words of user {user.uid}" for user in (alice, bob) if user.wrong]
    if any(not parks for parks, _ in moves):
        wrong.append("not every program was parked")
    notes += [f"{len(ATTACKS) + 2} kinds of requests of one user for the other's kernel, and for the policy"]
    return finish(
        "two users",
        where,
        given.json,
        headings=("user", "turns", "wait: median, longest", "parks, resumes", "wrong"),
        rows=rows,
        passed=not wrong,
        notes=[*notes, *(f"NOT AS IT MUST BE: {each}" for each in wrong)],
    )


def take_turns(daemon: Daemon, alice: User, bob: User, given: argparse.Namespace) -> list[str]:
    """Both start and work, one after the other; in the midst of it one attacks, and the controller is killed.

    What one could do to the other.
    """
    found: list[str] = []
    for user in (alice, bob):
        user.start(int(given.gib * GIB), "0" if given.gpus > 1 else None)
        say(f"user {user.uid} has {given.gib:g} GiB after {user.waits[0]:.2f} s")
        time.sleep(PAUSE_S)
    begins, attacks_at = time.monotonic(), given.rounds // 2
    for number in range(given.rounds):
        if number == attacks_at:
            found = attack(alice, bob)
            daemon.kill()
            daemon.start()
            say("the controller was killed, and is back")
        for user in (alice, bob):
            user.work()
            say(f"user {user.uid} works after {user.waits[-1]:.2f} s")
            time.sleep(PAUSE_S)
        if time.monotonic() - begins > given.time and number >= attacks_at:
            break
    return found


def check_placement(alice: User, third: User, size: int, notes: list[str]) -> list[str]:
    """Where a third user's program is sent, and that it is there."""
    used = on_gpu(alice)
    order = placed(third)
    third.start(min(size, 8 * GIB), ",".join(order))
    sits = on_gpu(third)
    notes.append(f"a new kernel was told {order}; the two users' GPU is not the first: {order[:1] != [used]}")
    return (
        []
        if order and order[0] == sits and sits != used
        else [f"told {order}, is on {sits}, others on {used}"]
    )


if __name__ == "__main__":
    sys.exit(main())

"""A process comes back on another GPU: `python tests/gpu elsewhere [--programs torch,driver] [--json FILE]`.

Needs jupyter-affinode installed, two NVIDIA GPUs of one kind that no other program uses, and a driver of CUDA
13.0; PyTorch for its program. Each program runs twice: where it sees all GPUs, and where it sees the first
alone. In each cycle it is parked at context depth and resumed where it was, then parked and resumed on the
other GPU, parked (at both depths) and resumed there, and brought back. After each resume its results must
be what they were before, those of kernels that it never used until then right, and NVML must show its memory
on the one GPU that its page names, and none on the other. Then it is asked to go to a GPU that does not
exist, and to the other one while another program fills it: it must stay parked, and be right where it was. On the
other GPU it begins to use device 1, which must be the GPU that its page says. At last it is killed on the
way, after which no memory may be left anywhere. What the driver says of the device after a move is told
below the table, whatever it is. Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from context_depth import DRIVER, LEAVES_FREE_BYTES, TORCH, Gpu, gpus, seconds
from controlled import NO_GPU_STATUS, ballast, finish, machine, options, say
from linked import LinkedProgram, park
from waiting import NotInTime, wait_until

from jupyter_affinode.bench.shim_peer import Move, MoveFailed, ShimPeer
from jupyter_affinode.node.protocol.page import Depth
from jupyter_affinode.node.protocol.wire import HelloFlag

ABSENT = "GPU-00000000-0000-0000-0000-000000000000"
KILLED_AFTER_S = (0.05, 0.3)
GIVEN_BACK_WITHIN_S = 20.0
# What a driver keeps of an unused GPU comes and goes; a context and contents are more.
NOISE_BYTES = 200 << 20
WAYS = ("resume, same", "resume, other", "there: context", "there: memory", "resume, back")
SERVE = """
import ctypes, json, sys, uuid
cuda = ctypes.CDLL("libcuda.so.1")
def identity():
    raw, bus, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(64), ctypes.create_string_buffer(128)
    say = getattr(cuda, "cuDeviceGetUuid_v2")(raw, 0), cuda.cuDeviceGetPCIBusId(bus, 64, 0)
    cuda.cuDeviceGetName(name, 128, 0)
    return json.dumps({"uuid": "GPU-" + str(uuid.UUID(bytes=bytes(raw))), "pci": bus.value.decode().lower(),
                       "name": name.value.decode(), "errors": say})
def second():
    before, context, block = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    cuda.cuCtxGetCurrent(ctypes.byref(before))
    errors = [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1), cuda.cuCtxSetCurrent(context),
              cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(64 << 20)), cuda.cuCtxSetCurrent(before)]
    return str(any(errors))
for line in sys.stdin:
    print(globals()[line.strip()](), flush=True)
"""
FRESH = {
    "torch": """
ways = [lambda v: v.sort().values, lambda v: v.cumsum(0), lambda v: v.roll(3).cumprod(0), lambda v: v.flip(0).diff(),
        lambda v: v.bincount(), lambda v: v.unique(), lambda v: v.view(8, -1).T.tril(), lambda v: v.topk(7).values,
        lambda v: v.kthvalue(5).values, lambda v: v.view(-1, 4).median(1).values, lambda v: v.view(-1, 2).prod(1),
        lambda v: v.bitwise_xor(v.roll(1)).cummax(0).values]
def fresh():
    ways.append(ways.pop(0))
    way, on_host = ways[-1], torch.arange(4096) * 7919 % 13
    return str(bool((way(on_host.cuda()).cpu() == way(on_host)).all()))
""",
    "driver": """
def fresh():
    block = Driver().allocate(4 << 20)
    return "True"
""",
}
PROGRAMS = {"torch": TORCH, "driver": DRIVER}


class Wrong(RuntimeError):
    """Something is not as it must be."""


@dataclass
class Found:
    """What came of one program; durations in seconds."""

    program: str
    sees: str
    parked_bytes: int = 0
    mended: int = 0
    park_s: list[float] = field(default_factory=list)
    resume_s: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    cycles: int = 0
    said: dict[str, str] = field(default_factory=dict)  # by the driver, of the device after a move
    problem: str = ""


@dataclass
class Watched:
    """The GPUs, with what was used of each before the program began."""

    first: Gpu
    other: Gpu
    before: Mapping[str, int]
    noise_bytes: int

    def grown(self) -> dict[str, int]:
        """What is used of each beyond that."""
        return {gpu.uuid: gpu.used_bytes - self.before[gpu.uuid] for gpu in gpus()}

    def expect(self, peer: ShimPeer, where: Gpu, least_bytes: int) -> None:
        """Its memory is on that GPU alone, and its page says so. Raises Wrong."""
        paged = [gpu.uuid for gpu in peer.page().gpus if gpu.resident_bytes]
        if paged != [where.uuid]:
            raise Wrong(f"its page says that it is on {paged}, not on {where.uuid}")
        for uuid, grown in self.grown().items():
            if uuid == where.uuid and grown < least_bytes:
                raise Wrong(f"NVML shows {grown >> 20} MiB of it on {uuid}, where it must be")
            if uuid != where.uuid and grown > self.noise_bytes:
                raise Wrong(f"NVML shows {grown >> 20} MiB of it on {uuid}, where it must not be")

    def expect_nothing(self, within_s: float = 0.0) -> None:
        """Nothing of it is on any GPU. Raises Wrong."""
        try:
            wait_until(lambda: max(self.grown().values()) <= self.noise_bytes, within_s)
        except NotInTime:
            raise Wrong(f"memory is left on a GPU: {self.grown()}") from None


def deep(linked: LinkedProgram, watched: Watched, found: Found) -> ShimPeer:
    """Park it at context depth, and see that it is gone."""
    peer = linked.connect()
    parked = park(peer, "context")
    if parked.depth != Depth.CONTEXT:
        raise Wrong(f"it stayed at memory depth: {parked.text}")
    watched.expect_nothing(2.0)
    found.park_s.append(parked.seconds)
    found.parked_bytes = parked.bytes
    return peer


def resume(
    linked: LinkedProgram, watched: Watched, found: Found, way: str, where: Gpu, before: str, on_gpu: str = ""
) -> None:
    """Bring it back and see that it is there, right, and able to do what it never did."""
    peer = linked.connect()
    resumed: Move = peer.resume(on_gpu=on_gpu)
    watched.expect(peer, where, found.parked_bytes)
    found.resume_s[way].append(resumed.seconds)
    found.mended += resumed.mended_chunks
    if linked.ask("work") != before:
        raise Wrong(f"another result after: {way}")
    if resumes := len(linked.resumes):
        raise Wrong(f"it was brought back {resumes} times by itself")


def cycle(linked: LinkedProgram, watched: Watched, found: Found, before: str) -> None:
    first, other = watched.first, watched.other
    deep(linked, watched, found)
    resume(linked, watched, found, "resume, same", first, before)
    deep(linked, watched, found)
    resume(linked, watched, found, "resume, other", other, before, other.uuid)
    if linked.ask("fresh") != "True":
        raise Wrong("a kernel used for the first time after the move computes something else")
    compare(found, "on the other GPU", other, linked.ask("identity"))
    park(linked.connect(), "memory")
    resume(linked, watched, found, "there: memory", other, before)
    deep(linked, watched, found)
    resume(linked, watched, found, "there: context", other, before)
    deep(linked, watched, found)
    resume(linked, watched, found, "resume, back", first, before, first.uuid)
    if linked.ask("fresh") != "True":
        raise Wrong("a kernel used for the first time after the way back computes something else")
    compare(found, "back", first, linked.ask("identity"))
    found.cycles += 1


def compare(found: Found, when: str, gpu: Gpu, said: str) -> None:
    """Note what the driver says of device 0, beside where it is."""
    answer = json.loads(said)
    uuid = "its UUID" if answer["uuid"] == gpu.uuid else f"another UUID ({answer['uuid']})"
    same_bus = answer["pci"].split(":")[1:] == gpu.pci.lower().split(":")[1:]
    pci = "its place on the bus" if same_bus else f"another place on the bus ({answer['pci']}, not {gpu.pci})"
    found.said[when] = f"{uuid}, {pci}, errors {answer['errors']}"


def stays_where_it_was(linked: LinkedProgram, watched: Watched, found: Found, before: str) -> None:
    """A GPU that is full, and one that is none."""
    peer = deep(linked, watched, found)
    with suppress(MoveFailed):
        peer.resume(on_gpu=ABSENT)
        raise Wrong("it was resumed on a GPU that is none")
    with ballast(LEAVES_FREE_BYTES, watched.other.uuid), suppress(MoveFailed):
        peer.resume(on_gpu=watched.other.uuid)
        raise Wrong("it was resumed on a full GPU")
    watched.expect_nothing(GIVEN_BACK_WITHIN_S)
    resume(linked, watched, found, "resume, same", watched.first, before)


def second_device(linked: LinkedProgram, watched: Watched, found: Found) -> None:
    """On the other GPU, what the process calls device 1 must be the GPU that its page says."""
    peer = deep(linked, watched, found)
    peer.resume(on_gpu=watched.other.uuid)
    if linked.ask("second") != "False":
        raise Wrong("device 1 cannot be used after the move")
    peer.park()  # and what it has there moves as anything else
    peer.resume()
    grown, paged = (
        watched.grown(),
        {gpu.uuid: gpu.resident_bytes for gpu in peer.page().gpus if gpu.resident_bytes},
    )
    if set(paged) != {watched.first.uuid, watched.other.uuid}:
        raise Wrong(f"with memory on devices 0 and 1, its page says that it is on {sorted(paged)}")
    for uuid, resident_bytes in paged.items():
        if grown[uuid] < resident_bytes:
            raise Wrong(f"its page says {resident_bytes >> 20} MiB on {uuid}, NVML {grown[uuid] >> 20} MiB")


def killed_on_the_way(code: str, env: Mapping[str, str], watched: Watched, found: Found) -> None:
    for after_s in KILLED_AFTER_S:
        with LinkedProgram(code, env=env) as linked:
            linked.ask("work")
            peer = deep(linked, watched, found)
            killing = threading.Timer(after_s, linked.process.kill)
            killing.start()
            with suppress(MoveFailed, OSError):
                peer.resume(on_gpu=watched.other.uuid)
            killing.join()
            linked.process.wait(GIVEN_BACK_WITHIN_S)
        watched.expect_nothing(GIVEN_BACK_WITHIN_S)


def one(program: str, sees: str, cycles: int, kill: bool, watched: Watched, log: Path) -> Found:
    found = Found(program, sees)
    code = PROGRAMS[program] + FRESH[program] + SERVE
    env = {"AFFINODE_DEPTH": "context", "AFFINODE_LOG": str(log)}
    if sees != "all":
        env["CUDA_VISIBLE_DEVICES"] = watched.first.uuid
    else:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML numbers them: device 0 is the first
    try:
        with LinkedProgram(code, env=env) as linked:
            before = linked.ask("work")
            if not linked.connect().hello.flags & HelloFlag.MIGRATES:
                raise Wrong("its shim does not say that it may be resumed elsewhere")
            for _ in range(cycles):
                cycle(linked, watched, found, before)
            stays_where_it_was(linked, watched, found, before)
            if sees == "all":
                second_device(linked, watched, found)
        watched.expect_nothing(GIVEN_BACK_WITHIN_S)
        if kill:
            killed_on_the_way(code, env, watched, found)
    except (RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
        found.problem = f"{type(error).__name__}: {error}"
        say(f"  {program}, sees {sees}: {found.problem}; the shim's log: {log}")
    return found


def pair() -> tuple[Gpu, Gpu]:
    """The first GPU and another of its kind; ends the program kindly if there is none."""
    every = gpus()
    like = [gpu for gpu in every[1:] if gpu.name == every[0].name]
    if not like:
        print("this needs two GPUs of one kind.", file=sys.stderr)
        sys.exit(NO_GPU_STATUS)
    return every[0], like[0]


def main() -> int:
    parser = options(__doc__, time_s=400)
    parser.add_argument("--programs", default="torch,driver", help="which, with commas between")
    parser.add_argument(
        "--sees", default="all,first", help="which GPUs they see: all, first, or both in turn"
    )
    parser.add_argument("--cycles", type=int, default=3, help="there and back, of each (3)")
    parser.add_argument("--no-kill", action="store_true", help="leave out being killed on the way")
    given = parser.parse_args()
    programs = given.programs.split(",")
    where = machine(2, modules=["torch"] if "torch" in programs else [])
    first, other = pair()
    noise = 0 if where["simulated"] else NOISE_BYTES
    folder = Path(tempfile.mkdtemp(prefix="affinode-elsewhere-", dir="/tmp"))
    begin, results = time.monotonic(), []
    for program in programs:
        for sees in given.sees.split(","):
            if time.monotonic() - begin > given.time:
                continue
            say(f"{program}, sees {sees}")
            watched = Watched(first, other, {gpu.uuid: gpu.used_bytes for gpu in gpus()}, noise)
            kill = not given.no_kill and sees == "all"
            results.append(one(program, sees, given.cycles, kill, watched, folder / f"{program}-{sees}.log"))
    return tell(results, where, given)


def tell(results: list[Found], where: dict[str, Any], given: Any) -> int:
    rows = [
        [
            f"{found.program}, sees {found.sees}",
            f"{found.cycles}/{given.cycles}",
            f"{found.parked_bytes / 2**30:.2f} GiB",
            seconds(found.park_s),
            *(seconds(found.resume_s[way]) for way in WAYS),
            found.problem or "right",
        ]
        for found in results
    ]
    notes = [
        f"{found.program}, sees {found.sees}: {when} the driver says {said}"
        for found in results
        for when, said in found.said.items()
    ]
    headings = ["program", "there and back", "parked", "park, context", *WAYS, "result"]
    passed = bool(results) and all(found.cycles == given.cycles and not found.problem for found in results)
    return finish(
        "elsewhere",
        where,
        given.json,
        headings=headings,
        rows=rows,
        passed=passed,
        notes=notes,
        mended=sum(found.mended for found in results),
    )


if __name__ == "__main__":
    sys.exit(main())

"""Recorded answers of `affinode/api/status`, for pages of machines and states that are not at hand."""

from __future__ import annotations

import math
from typing import Any

import jupyter_affinode

GIB = 2**30
MINUTE = 30  # one figure each two seconds


def kernel(number: int, path: str | None = None, **changes: object) -> dict[str, Any]:
    """One kernel; `changes` replace its fields."""
    return {
        "id": f"kernel-{number}",
        "own": True,
        "user": None,
        "name": "Python 3 (ipykernel)",
        "path": path or f"work/notebook-{number}.ipynb",
        "paths": [path or f"work/notebook-{number}.ipynb"],
        "language": "python",
        "server": "http://localhost:8888",
        "residency": "none",
        "text": "",
        "reason": None,
        "refusal": None,
        "depth": "none",
        "depth_refusal": None,
        "resident_bytes": 0,
        "parked_bytes": 0,
        "copy_bytes": 0,
        "retained_bytes": 0,
        "footprint_bytes": 0,
        "unmovable": [],
        "gpus": [],
        "processes": [],
        "idle_s": None,
        "cell_open": False,
        "eligible": False,
        "eligible_in_s": None,
        "held_for_s": None,
        "place": None,
        "waiting_s": None,
        "wait_reason": None,
        "estimate_s": None,
        "simulated": False,
        "tracked": True,
        "calls": 0,
        "move": None,
        "last_park": None,
        "last_resume": None,
        "resume_estimate_s": None,
        "reason_code": None,
        "reason_args": {},
        "refusal_code": None,
        "refusal_args": {},
        "depth_refusal_code": None,
        "wait": None,
        "disk_bytes": 0,
        "busy_percent": None,
        "host_bytes": None,
        "park_takes_bytes": None,
        **changes,
    }


def resident(
    number: int, gib: float, path: str | None = None, gpu: int = 0, **changes: object
) -> dict[str, Any]:
    """A kernel on a GPU."""
    size = int(gib * GIB)
    return kernel(
        number,
        path,
        **{
            "residency": "resident",
            "resident_bytes": size,
            "footprint_bytes": size,
            "gpus": [share(gpu, resident_bytes=size)],
            "idle_s": 185.0,
            "eligible_in_s": 108.0,
            "busy_percent": 31 if changes.get("cell_open") else 0,
            "host_bytes": int(1.4 * GIB),
            "park_takes_bytes": size,
            "resume_estimate_s": size / 40 / GIB,
            **changes,
        },
    )


def parked(
    number: int, gib: float, path: str | None = None, gpu: int = 0, **changes: object
) -> dict[str, Any]:
    """A kernel whose memory is on the host."""
    size = int(gib * GIB)
    return kernel(
        number,
        path,
        **{
            "residency": "parked",
            "depth": "memory",
            "parked_bytes": size,
            "copy_bytes": size,
            "footprint_bytes": size,
            "gpus": [share(gpu, parked_bytes=size)],
            "idle_s": 2400.0,
            "reason_code": "room",
            "reason_args": {"for": "own"},
            "last_park": {"bytes": size, "duration_s": size / 31 / GIB, "ago_s": 190.0},
            "resume_estimate_s": size / 40 / GIB,
            **changes,
        },
    )


def waiting(
    number: int, gib: float, blockers: list[dict[str, Any]], place: int = 1, **changes: object
) -> dict[str, Any]:
    """A kernel that waits for room."""
    return kernel(
        number,
        **{
            "residency": "queued",
            "cell_open": True,
            "place": place,
            "waiting_s": 42.0,
            "estimate_s": None,
            "wait": {
                "code": blockers[0]["why"] if blockers else "full",
                "args": {"bytes": int(gib * GIB)},
                "blockers": blockers,
            },
            **changes,
        },
    )


def blocker(number: int | None, why: str, free_in_s: float | None = None) -> dict[str, Any]:
    """A kernel in the way; None: another user's."""
    return {
        "kernel_id": None if number is None else f"kernel-{number}",
        "own": number is not None,
        "why": why,
        "free_in_s": free_in_s,
    }


def share(gpu: int, resident_bytes: int = 0, parked_bytes: int = 0) -> dict[str, Any]:
    """A kernel's share of a GPU."""
    return {
        "uuid": f"GPU-{gpu}",
        "resident_bytes": resident_bytes,
        "parked_bytes": parked_bytes,
        "unmovable_bytes": 0,
    }


def elsewhere(
    number: int, gib: float, gpu: int = 0, server: str | None = "http://localhost:8889", **changes: object
) -> dict[str, Any]:
    """A kernel of the same user on another server, or on none."""
    unnamed = {"own": False, "name": None, "path": None, "paths": [], "server": server}
    return {**resident(number, gib, gpu=gpu), **unnamed, **changes}


def others(number: int, gib: float, user: str) -> dict[str, Any]:
    """Another user's kernel, as an administrator is told of it."""
    return elsewhere(number, gib, id=f"uid-{user}/kernel-{number}", user=user)


def machine(
    kernels: list[dict[str, Any]], gpus: int = 1, others: dict[str, int] | None = None, **changes: object
) -> dict[str, Any]:
    """The whole answer, of GPUs that hold these kernels, the first also those of other users (`others`, as sums)."""
    total, context = 80 * GIB, int(0.6 * GIB)
    made = []
    for index in range(gpus):
        shares = [each for one in kernels for each in one["gpus"] if each["uuid"] == f"GPU-{index}"]
        managed = sum(each["resident_bytes"] for each in shares)
        contexts = context * len(shares)
        if others and index == 0:
            managed += others["resident_bytes"]
            contexts += context * others["kernels"]
        used = min(managed + contexts, total)
        busy = [int(50 + 45 * math.sin(index + look / 3)) for look in range(MINUTE)]
        made.append(
            {
                "uuid": f"GPU-{index}",
                "index": index,
                "name": "NVIDIA H100 80GB HBM3",
                "total_bytes": total,
                "used_bytes": used,
                "free_bytes": total - used,
                "managed_bytes": managed,
                "context_bytes": contexts,
                "unmanaged_bytes": 0,
                "unmanaged": [],
                "utilization_percent": busy[-1],
                "utilization_history": busy,
            }
        )
    copies = sum(one["copy_bytes"] for one in kernels)
    node = {
        "simulated": False,
        "nvml": True,
        "gpus": made,
        "host": {
            "total_bytes": 512 * GIB,
            "available_bytes": 380 * GIB - copies,
            "reserve_bytes": 0,
            "parked_bytes": sum(one["parked_bytes"] for one in kernels),
            "copy_bytes": copies,
            "retained_bytes": 0,
            "cgroup_headroom_bytes": None,
        },
        "queue": [one["id"] for one in kernels if one["residency"] == "queued"],
        "policy": {
            "may_change": True,
            "park_when": "needed",
            "idle_timeout_s": 300,
            "contended_idle_timeout_s": 15,
        },
        "today": {"freed_gpu_s": 11700, "parks": 14},
        "others": others,
        "controller": {"system": False},
        **changes,
    }
    version = jupyter_affinode.__version__
    return {
        "version": version,
        "available": True,
        "message": None,
        "code": None,
        "may_act": True,
        "kept": [],
        "node": node,
        "kernels": kernels,
    }


def activity(look: int) -> dict[str, Any]:
    """The CUDA calls of a kernel, at the look of this number."""
    often = {"launch": 5200, "copy": 340, "sync": 12, "alloc": 3, "free": 2}
    classes = ("host", "query", "free", "launch", "copy", "alloc", "sync", "module")
    names = {"cuLaunchKernel": 5100, "cuMemcpyHtoDAsync_v2": 300, "cuStreamSynchronize": 12}
    return {
        "calls": {each: often.get(each, 0) * look for each in classes},
        "entry_points": [{"name": name, "calls": calls * look} for name, calls in names.items()],
        "age_s": 2.0 * look,
    }


def past(answer: dict[str, Any], now: float, *, seconds: float = 3600, changes: int = 6) -> dict[str, Any]:
    """The last `seconds` of a machine, in which each kernel was freed, waited and came back so often."""
    step = max(10.0, seconds / 360)
    steps, since = int(seconds / step), now - seconds
    gpus = []
    for gpu in answer["node"]["gpus"]:
        lanes = [
            _lane(kernel, since, seconds, changes)
            for kernel in answer["kernels"]
            if any(share["uuid"] == gpu["uuid"] for share in kernel["gpus"])
        ]
        figures = {name: gpu[name] for name in ("uuid", "index", "name", "total_bytes")}
        sizes = {kernel["id"]: kernel["footprint_bytes"] for kernel in answer["kernels"]}
        used = [
            None
            if 20 < place < 25
            else min(2 * GIB + _resident(lanes, sizes, since + place * step), 80 * GIB)
            for place in range(steps)
        ]
        others = {
            "resident": [place // 40 % 4 for place in range(steps)],
            "parked": [1 for place in range(steps)],
            "queued": [place // 90 % 2 for place in range(steps)],
        }
        gpus.append(
            {
                **figures,
                "used_bytes": used,
                "utilization_percent": [place * 7 // 40 * 31 % 90 for place in range(steps)],
                "lanes": lanes,
                "others": others if answer["node"]["others"] else None,
            }
        )
    return {"since": since, "until": now, "step_s": step, "gpus": gpus}


def _resident(lanes: list[dict[str, Any]], sizes: dict[str, int], at: float) -> int:
    """Bytes that are on the GPU at some moment."""
    states = {
        lane["kernel_id"]: [change["state"] for change in lane["changes"] if change["at"] <= at][-1:]
        for lane in lanes
    }
    return sum(sizes[each] for each, last in states.items() if last == ["resident"])


def _lane(kernel: dict[str, Any], since: float, seconds: float, count: int) -> dict[str, Any]:
    """A kernel's lane, which ends with its present state."""
    last = kernel["id"].rsplit("-", 1)[-1]
    number = int(last) if last.isdecimal() and len(last) < 9 else 1  # real kernels' have letters
    cycle = [("resident", "cell"), ("parked", "room"), ("queued", None)]
    first = cycle[number % 2][0]
    moments = sorted((number * 37 + 61 * place * place) % 997 / 1000 * seconds for place in range(count))
    changes = [{"at": since, "state": first, "cause": None}]
    for moment in moments:
        state, cause = cycle[([each for each, _ in cycle].index(changes[-1]["state"]) + 1) % 3]
        changes.append({"at": since + moment, "state": state, "cause": cause})
        if state == "queued":
            changes.append({"at": since + moment + 0.01 * seconds, "state": "resident", "cause": "cell"})
    changes = [
        change
        for place, change in enumerate(changes)
        if place == 0 or change["at"] > changes[place - 1]["at"]
    ]
    if kernel["residency"] in ("resident", "parked", "queued"):
        now = {"at": since + seconds * 0.999, "state": kernel["residency"], "cause": kernel["reason_code"]}
        changes = [*[change for change in changes if change["at"] < now["at"]], now]
    own = {name: kernel[name] for name in ("own", "user", "name", "path")}
    return {"kernel_id": kernel["id"], **own, "changes": changes}


def busy_machine() -> dict[str, Any]:
    """30 kernels on 8 GPUs, none of them a kernel of another state: a page remembers which rows its user has opened."""
    kernels = [
        waiting(100, 40, [blocker(102, "computing"), blocker(103, "held", 1500)]),
        waiting(101, 24, [blocker(None, "idle", 90)], place=2, estimate_s=115),
    ]
    names = ["train", "finetune", "embeddings", "diffusion", "analysis", "tokenizer", "eval", "rag"]
    for number in range(102, 119):
        name = names[number % len(names)]
        folder = "thesis" if number < 110 else "course/week-3"
        is_active = number % 3 == 2
        kernels.append(
            resident(
                number,
                3 + 2.5 * (number % 7),
                f"{folder}/{name}.ipynb",
                gpu=number % 8,
                cell_open=is_active,
                idle_s=1.0 if is_active else 37.0 * (number - 100),
                held_for_s=1500.0 if number == 103 else None,
            )
        )
    kernels += [parked(number, 8 + number % 5, gpu=number % 8) for number in range(119, 124)]
    kernels += [elsewhere(number, 10, gpu=number % 8) for number in range(124, 127)]
    kernels += [kernel(number) for number in range(127, 130)]
    return machine(kernels, gpus=8)


def kept() -> list[dict[str, Any]]:
    """Kernels that ran on without a server: of this one, and of others."""
    here = {"id": "kernel-1", "name": "Python 3 (ipykernel)", "here": True, "folder": None, "server": None}
    return [
        {**here, "path": "thesis/train.ipynb", "since": "13:02 CET"},
        {**here, "id": "kernel-70", "path": None, "since": "2026-11-24 09:12 CET"},
        {
            **here,
            "id": "kernel-71",
            "path": "a-notebook-with-a-rather-long-name.ipynb",
            "here": False,
            "folder": "/home/alice/projects/course-on-machine-learning",
            "server": "alice/gpu",
            "since": "13:02 CET",
        },
    ]


def states() -> dict[str, dict[str, Any]]:
    """Every state of the panel, by name; the first kernel of each is the one to look at."""
    no_gpu = machine([kernel(5, "plain.ipynb")], gpus=0)
    away = {**machine([]), "available": False, "node": None}
    usual = _usual_states()
    return {
        **usual,
        "no-controller": {**away, "code": "ended"},
        "starting": {**away, "code": "starting"},
        "disabled": {**away, "code": "disabled"},
        "remote": {**away, "code": "remote"},
        "other-version": {**usual["freed"], "version": "99.0.0"},
        "reader": {**usual["resident"], "may_act": False},
        "without-notebook": {**usual["resident"], "kept": kept()},
        **_troubled_states(),
        "nothing": machine([]),
        "no-gpu": no_gpu,
        "many": busy_machine(),
    }


def _usual_states() -> dict[str, dict[str, Any]]:
    """Kernels whose memory is here, there and under way."""
    train = resident(1, 31, "thesis/train.ipynb", cell_open=True, idle_s=0.5, eligible_in_s=None)
    notes = resident(2, 22, "thesis/notes.ipynb")
    kept = resident(3, 12, "tokenizer.ipynb", held_for_s=1500.0, eligible_in_s=None)
    freed = parked(4, 12, "analysis.ipynb")
    idle = kernel(5, "plain.ipynb")
    leaving = {"kind": "park", "bytes": 12 * GIB, "age_s": 0.2}
    moving_out = resident(6, 12, "leaving.ipynb", residency="parking", move=leaving)
    moving_in = parked(
        7,
        12,
        "returning.ipynb",
        residency="resuming",
        move={"kind": "resume", "bytes": 12 * GIB, "age_s": 0.1},
        last_resume={"bytes": 12 * GIB, "duration_s": 0.31, "ago_s": 4000.0},
    )
    on_disk = parked(8, 30, "large.ipynb", disk_bytes=22 * GIB, copy_bytes=8 * GIB, resume_estimate_s=9.0)
    asks = waiting(12, 40, [blocker(1, "computing"), blocker(3, "held", 1500), blocker(2, "idle", 90)])
    bounded = waiting(13, 10, [blocker(None, "computing")], place=2, estimate_s=115.0)
    queued, busy = waiting(18, 40, [blocker(19, "computing")]), elsewhere(19, 70, cell_open=True)
    twins = [resident(14, 5, "thesis/a/train.ipynb"), resident(15, 6, "course/train.ipynb")]
    return {
        "resident": machine(
            [notes, train, kept, freed, idle, elsewhere(16, 7), elsewhere(17, 4, server=None)]
        ),
        "waiting": machine([asks, bounded, train, notes, kept]),
        "waiting-elsewhere": machine([queued, busy]),
        "moving": machine([moving_out, moving_in]),
        "freed": machine([freed, on_disk, train]),
        "same-names": machine([*twins, train], gpus=2),
    }


def _troubled_states() -> dict[str, dict[str, Any]]:
    """What needs the user, or is not the user's to change."""
    lost = kernel(9, "broken.ipynb", residency="lost", depth="memory")
    pool = {"reason": "pool", "bytes": 2 * GIB, "text": ""}
    refused = resident(10, 7, "graphs.ipynb", refusal_code="busy", unmovable=[pool])
    process = {"number": 1, "pid": 4711, "residency": "resident", "command": "python"}
    stuck = resident(
        11, 3, "pool.ipynb", processes=[{**process, "stuck": {"reason": "peer-gone", "text": ""}}]
    )
    outside = machine([resident(1, 31, "thesis/train.ipynb", cell_open=True, idle_s=0.5, eligible_in_s=None)])
    outside["node"]["gpus"][0].update(
        unmanaged_bytes=20 * GIB,
        unmanaged=[{"pid": 4242, "command": "simulate.py", "bytes": 20 * GIB}],
        free_bytes=28 * GIB,
        used_bytes=52 * GIB,
    )
    sums = {"kernels": 3, "resident_bytes": 40 * GIB, "parked_bytes": 12 * GIB, "waiting": 1}
    not_own = {**machine([])["node"]["policy"], "may_change": False}
    return {
        "problems": machine([lost, refused, stuck]),
        "outside": outside,
        "administered": machine(
            [resident(2, 22, "thesis/notes.ipynb")], policy=not_own, simulated=True, others=sums
        ),
        "administrator": machine(
            [resident(2, 22, "thesis/notes.ipynb"), others(16, 9, "alice"), others(17, 4, "bob")],
            policy=not_own,
        ),
    }


def around() -> dict[str, dict[str, Any]]:
    """Every state of what stands around a notebook, by name; the first kernel is the notebook's."""
    train = resident(1, 31, "thesis/train.ipynb", cell_open=True, idle_s=0.5, eligible_in_s=None)
    kept = resident(3, 12, "tokenizer.ipynb", held_for_s=1500.0, eligible_in_s=None)
    shown = states()
    return {
        "none": machine([kernel(5, "plain.ipynb"), train]),
        "resident": machine([resident(2, 22, "notes.ipynb"), train]),
        "kept": machine([kept, train]),
        "freed": shown["freed"],
        "moving": shown["moving"],
        "waiting": shown["waiting"],
        "lost": shown["problems"],
    }

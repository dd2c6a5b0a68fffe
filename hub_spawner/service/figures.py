"""What the page shows of a machine: the API's JSON as texts, in the page's order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from jupyter_affinode.keeping.records import KEPT_SINCE
from jupyter_affinode.settings.policy import SETTINGS
from jupyter_affinode.settings.traits import help_of
from jupyter_affinode.units import bound_in_words, bytes_in_words, duration_in_words, ordinal

from ..free_room import free_room
from ..nodes import NodePicture

USAGE_COLUMNS = ("User", "On the GPU", "Used", "Idle", "Freed", "Times freed", "Waits", "Longest wait")
BAR_WIDTH = 1000  # of a GPU's bar, in the units of its SVG
MOVING = ("parking", "resuming")

Json = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One part of a bar: from where, how wide, and its class in the style sheet."""

    kind: str
    start: float
    width: float


@dataclass(frozen=True)
class Bar:
    """A bar, and the same in words: a GPU's memory, or a kernel's hour."""

    title: str
    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class KernelView:
    """One kernel, with the actions that are possible."""

    id: str
    name: str
    server: str
    text: str
    memory: str
    idle: str
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """One setting of the policy as a form field: `choices`, or a line of text."""

    name: str
    value: str
    hint: str
    choices: tuple[str, ...] = ()


def gpu_views(picture: NodePicture) -> list[Bar]:
    """Return the machine's GPUs."""
    assert picture.node is not None
    return [_gpu_view(gpu) for gpu in picture.node["gpus"]]


def summary(picture: NodePicture) -> str:
    """Return the machine in one line."""
    assert picture.node is not None
    node, host = picture.node, picture.node["host"]
    words = [
        free_room([picture]).text(0),
        f"host memory: {bytes_in_words(host['available_bytes'])} available,"
        f" {bytes_in_words(host['parked_bytes'])} hold freed GPU memory",
        f"controller {node['controller']['version']}, up {duration_in_words(node['controller']['uptime_s'])}",
    ]
    if not node["nvml"]:
        words.append("no NVML: what is free is not known")
    if node["history"]["problem"]:
        words.append(f"no history is written: {node['history']['problem']}")
    return " · ".join(filter(None, words))


def kernels_by_user(picture: NodePicture) -> list[tuple[str, str, list[KernelView]]]:
    """Return (user, what the user's kernels have together, the kernels), the most GPU memory first."""
    users: dict[str, list[Json]] = {}
    for kernel in picture.kernels:
        if kernel["processes"] or _is_kept(kernel):
            users.setdefault(kernel["user"] or "", []).append(kernel)
    ordered = sorted(users.items(), key=lambda item: (-_on_gpu(item[1]), item[0]))
    return [
        (
            user or "this machine's user",
            f"{bytes_in_words(_on_gpu(kernels))} on GPUs,"
            f" {bytes_in_words(sum(kernel['parked_bytes'] for kernel in kernels))} freed",
            [
                _kernel_view(kernel)
                for kernel in sorted(kernels, key=lambda kernel: -kernel["footprint_bytes"])
            ],
        )
        for user, kernels in ordered
    ]


def queue_rows(picture: NodePicture) -> list[tuple[str, str, str, str]]:
    """Return (place, user, kernel, why it waits and how much longer) of everything that waits."""
    assert picture.node is not None
    known = {kernel["id"]: kernel for kernel in picture.kernels}
    starting = iter(picture.node.get("starting", ()))  # a controller of an earlier release has none
    rows = []
    for place, name in enumerate(picture.node["queue"], 1):
        kernel, request = known.get(name), None
        if kernel is None:
            request = next(starting, None)
        if kernel is not None:
            row = (kernel["user"] or "", _name(kernel), _why_it_waits(kernel))
        elif request is not None:
            size = bytes_in_words(request["bytes"])
            row = (request["user"] or "", f"{name}, for {size}", _why_it_waits(request))
        else:  # it was added between the two requests that the picture is made of
            row = ("", name, "")
        rows.append((ordinal(place), *row))
    return rows


def _why_it_waits(waiter: Json) -> str:
    why = waiter["wait_reason"] or ""
    if waiter["waiting_s"] is not None:
        since = f"waits {duration_in_words(waiter['waiting_s'])}"
        why = f"{since}: {why}" if why else since
    return f"{why}; {bound_in_words(waiter['estimate_s'])}" if why else ""


def usage_rows(report: Json) -> list[tuple[str, ...]]:
    """Return a cell for each of USAGE_COLUMNS, of each row of a report by user."""
    rows = [*report["rows"], {**report["total"], "user": "all"}] if report["rows"] else []
    return [
        (
            row["user"] or "",
            *(hours(row[f"{name}_gib_hours"]) for name in ("held", "used", "idle", "given_back")),
            str(row["parks"]),
            str(row["waits"]),
            "" if row["waited_most_s"] is None else duration_in_words(row["waited_most_s"]),
        )
        for row in rows
    ]


def audit_rows(rows: Iterable[Json]) -> list[tuple[str, str, str, str, str, str]]:
    """Return (moment, administrator, address, action, object, outcome) of what administrators did."""
    return [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["at"])),
            row["actor"] or row["program"],
            row["place"] or row["program"],
            row["action"],
            " ".join(filter(None, (row["user"], row["kernel_id"].rpartition("/")[2], row["detail"]))),
            row["outcome"],
        )
        for row in rows
    ]


def policy_words(settings: Json) -> str:
    """Return the policy in a line."""
    when = {"needed": "when another kernel needs its GPU memory", "idle": "as soon as it is idle"}
    full = {
        "wait": "Where all are busy, others wait.",
        "time_slice": "Where all are busy, they take turns.",
        "terminate_newest": "Where all are busy, the newest is ended for an older one.",
    }
    return (
        f"A kernel that has not used the GPU for {duration_in_words(settings['idle_timeout_s'])} is freed"
        f" {when.get(settings['park_when'], settings['park_when'])}. {full.get(settings['when_full'], '')}"
    )


def query(**values: str) -> str:
    """Return values as the query of a link."""
    return urlencode(values)


def settings_form(settings: Json) -> list[Setting]:
    """Return the policy's settings as form fields; their declarations say which values each may have."""
    return [_setting(name, value) for name, value in settings.items()]


def changed_settings(settings: Json, form: dict[str, str]) -> Json:
    """Return what a filled form changes. Raises ValueError, with words for users."""
    changes: Json = {}
    for setting in settings_form(settings):
        text = form.get(setting.name, setting.value).strip()
        if text != setting.value:
            changes[setting.name] = _parsed(setting.name, text)
    return changes


def _gpu_view(gpu: Json) -> Bar:
    title = f"GPU {gpu['index']}, {gpu['name']}"
    managed = f"kernels {bytes_in_words(gpu['managed_bytes'])}"
    if gpu["total_bytes"] is None:
        return Bar(title, managed, ())
    others = (gpu["unmanaged_bytes"] or 0) + (gpu["context_bytes"] or 0)
    text = [
        f"{bytes_in_words(gpu['free_bytes'])} of {bytes_in_words(gpu['total_bytes'])} free",
        managed,
        f"contexts and other programs {bytes_in_words(others)}",
    ]
    if gpu["utilization_percent"] is not None:
        text.append(f"computes {gpu['utilization_percent']} % of the time")
    shares = [("kernels", gpu["managed_bytes"]), ("others", others)]
    return Bar(title, " · ".join(text), tuple(_parts(shares, max(gpu["total_bytes"], 1))))


def _parts(shares: Sequence[tuple[str, int]], total: int) -> Iterable[Part]:
    start = 0.0
    for kind, size in shares:
        width = min(BAR_WIDTH * size / total, BAR_WIDTH - start)
        yield Part(kind, round(start, 1), round(width, 1))
        start += width


def _kernel_view(kernel: Json) -> KernelView:
    residency, is_held = kernel["residency"], kernel["held_for_s"] is not None
    is_on_gpu = residency == "resident"
    actions = [
        "park" if is_on_gpu else "",
        "resume" if residency == "parked" else "",
        "release" if is_held else "hold",
    ]
    text = kernel["text"]
    for more in (kernel["refusal"], kernel["reason"]):
        text += f" ({more})" if more and more not in text else ""
    return KernelView(
        kernel["id"],
        _name(kernel),
        kernel["server"] or "",
        text,
        bytes_in_words(kernel["footprint_bytes"]),
        "" if kernel["idle_s"] is None or not is_on_gpu else duration_in_words(kernel["idle_s"]),
        (
            *(() if residency in (*MOVING, "lost", "none", "hibernated") else filter(None, actions)),
            *(("end",) if _is_kept(kernel) else ()),
        ),
    )


def _is_kept(kernel: Json) -> bool:
    """Return whether no server has a kernel, and it runs on."""
    return str(kernel["server"] or "").startswith(KEPT_SINCE)


def _name(kernel: Json) -> str:
    return str(kernel["path"] or kernel["name"] or kernel["id"])


def _on_gpu(kernels: Iterable[Json]) -> int:
    return sum(kernel["footprint_bytes"] - kernel["parked_bytes"] for kernel in kernels)


def hours(value: float) -> str:
    """Return GiB times hours."""
    return "<0.01" if 0 < value < 0.005 else f"{value:.2f}"


def _setting(name: str, value: Any) -> Setting:
    declared = SETTINGS.get(name)  # a controller of another version may have others
    hint = help_of(declared).replace("`", "") if declared else ""
    if name.endswith("_bytes") and isinstance(value, int):
        hint = f"{bytes_in_words(value)}. {hint}".strip()
    choices = declared.choices if declared else ()
    if declared and declared.kind == "bool":
        choices = ("true", "false")
    return Setting(name, _shown(value), hint, choices)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def _parsed(name: str, text: str) -> Any:
    declared = SETTINGS.get(name)
    if declared is None or declared.kind == "str":
        return text
    if not text and declared.allows_none:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{name}: {text[:40]!r} is no number") from None

"""What an administrator or a person may set, checked; used by the application and by PATCH /policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from .rules import LARGEST, RuleError, names, numbers, sizes

MIB = 1 << 20
GIB = 1 << 30

LONGEST_S = 1e9  # a time-out of 30 years never ends
LEAST = {"quantum_s": 0.1}  # else the controller would do nothing but take turns
MOST = {"settle_s": 3600.0, "low_watermark": 1, "high_watermark": 1}

CHOICES = {
    "park_when": ("needed", "idle"),
    "depth": ("memory", "context"),
    "when_full": ("wait", "time_slice", "terminate_newest"),
}
RULES = {
    "user_limits": sizes,
    "group_limits": sizes,
    "user_priorities": numbers,
    "group_priorities": numbers,
    "opt_out": names,
}


# Restoring a context needs a lock on its GPU that no stranger can hold for ever, and all kernels there to heed it.
NOT_FOR_MANY_USERS = (
    "depth must be memory with --system: a CUDA context leaves a GPU only where all kernels are one user's"
)


class SettingsRefused(ValueError):
    """A setting that is unknown or makes no sense; the message says which and what would."""


@dataclass(frozen=True)
class Settings:
    """The policy's settings. Times in seconds, sizes in bytes, watermarks as fractions of a GPU's memory."""

    park_when: str = (
        "needed"  # "needed": only for someone, or below the low watermark; "idle": as soon as eligible
    )
    depth: str = "memory"  # "context": the CUDA context leaves the GPU too, where kernel and GPU allow it
    idle_timeout_s: float = 300.0
    cell_idle_timeout_s: float = 600.0
    queue_idle_timeout_s: float = 15.0
    queue_cell_idle_timeout_s: float = 60.0
    low_watermark: float = 0.05
    high_watermark: float = 0.15
    min_footprint_bytes: int = 64 * MIB
    margin_bytes: int = 64 * MIB
    host_reserve_bytes: int | None = None  # None: default_host_reserve of what the machine has then
    lot_bytes: int = 0
    drop_caches_before_park: bool = False
    hold_default_s: float = 3600.0
    hold_max_s: float = 86400.0
    hold_kernels_max: int | None = None  # how many kernels one user may hold at a time
    hold_bytes_max: int | None = None  # … and how much GPU memory of theirs together
    when_full: str = "wait"  # the GPU is full of busy kernels: "wait", "time_slice" or "terminate_newest"
    quantum_s: float = 120.0  # time_slice: what each may run before it has to make room
    end_after_s: float = 120.0  # terminate_newest: the least that somebody has waited then
    resume_elsewhere: bool = True  # who left its GPU altogether may come back on another one of the same kind
    backfill: bool = False  # who waits behind others goes first where that delays none of them
    ageing_s: float = 60.0  # who has waited that much longer goes before the next higher priority class
    user_priorities: str = ""  # "alice=1, hub:bob=2, *=0": rules.py has the form; classes from -5 to 5
    group_priorities: str = ""
    user_limits: str = ""  # "alice=80GiB, *=40GiB": GPU memory on all GPUs together
    group_limits: str = ""
    opt_out: str = ""  # "alice, @staff": whose kernels are never parked but by their own wish
    kernelspec_opt_out: bool = True  # whether a kernelspec's metadata may say the same
    settle_s: float = 1.0
    keep_alive_s: float = 60.0

    def changed(self, **changes: Any) -> Settings:
        """These settings with some changed; SettingsRefused if they make no sense."""
        known = {field.name: field for field in fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise SettingsRefused(f"there is no setting {name!r}; there are {', '.join(known)}")
            _check(name, value, str(known[name].type))
        settings = replace(self, **changes)
        if settings.low_watermark > settings.high_watermark:
            raise SettingsRefused("low_watermark must not be above high_watermark")
        if settings.hold_default_s > settings.hold_max_s:
            raise SettingsRefused("hold_default_s must not be above hold_max_s")
        return settings

    def host_reserve(self, total_bytes: int) -> int:
        """What parking leaves of a machine that has `total_bytes` now."""
        if self.host_reserve_bytes is None:
            return default_host_reserve(total_bytes)
        return self.host_reserve_bytes

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _check(name: str, value: Any, kind: str) -> None:
    if name in RULES:
        if not isinstance(value, str):
            raise SettingsRefused(f"{name} must be text, not {value!r}")
        try:
            RULES[name](value)
        except RuleError as error:
            raise SettingsRefused(f"{name}: {error}") from None
        return
    if kind == "str":
        if value not in CHOICES[name]:
            wanted = " or ".join(f'"{choice}"' for choice in CHOICES[name])
            raise SettingsRefused(f"{name} must be {wanted}, not {value!r}")
        return
    if kind == "bool":
        if not isinstance(value, bool):
            raise SettingsRefused(f"{name} must be true or false, not {value!r}")
        return
    if value is None and kind.endswith("| None"):
        return
    is_whole = kind.startswith("int")
    least, most = bounds(name, is_whole=is_whole)
    is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        what = "a whole number" if is_whole else "a number"
        raise SettingsRefused(f"{name} must be {what} from {least:g} to {most:g}{_not(value)}")


def bounds(name: str, *, is_whole: bool) -> tuple[float, float]:
    """What a setting that is a number may be, both included."""
    return LEAST.get(name, 0), MOST.get(name, LARGEST if is_whole else LONGEST_S)


def _not(value: object) -> str:
    """What was given instead; a number of thousands of digits is not written out."""
    is_large = isinstance(value, int) and abs(value) > LARGEST
    return "" if is_large else f", not {value!r}"


def default_host_reserve(total_bytes: int) -> int:
    """What parking leaves free for everything else: 10 %, at least 2 GiB, at most a quarter."""
    return min(max(2 * GIB, total_bytes // 10), total_bytes // 4)


class SettingTimes:
    """When each setting was configured. Several servers of one user tell a new controller theirs in any order: the one
    that started last decides.
    """

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}

    def newest(self, changes: Mapping[str, Any], said_at: float) -> dict[str, Any]:
        """Return those of the changes that no later one has settled."""
        return {name: value for name, value in changes.items() if said_at >= self._said_at.get(name, said_at)}

    def take(self, names: Iterable[str], said_at: float) -> None:
        """Note that these settings are taken."""
        self._said_at.update(dict.fromkeys(names, said_at))

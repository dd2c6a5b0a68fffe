"""The settings of the policy. PATCH /policy changes them while the controller runs; servers may configure them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .declaration import Setting, SettingsRefused, setting, settings_of
from .rules import folder, names, numbers, sizes

MIB = 1 << 20
GIB = 1 << 30
HIGH_OVER_LOW = 3  # what the high watermark is of the low one
CELL_PATIENCE = 4  # a running cell without GPU use keeps the GPU this many times as long as no cell

_RULES = """ Written "alice=VALUE, @staff=VALUE, *=VALUE": alice is a user of this machine, hub:bob one that a grant
    names, as JupyterHub's are; @ marks groups (@staff, @hub:ml); * is every user that is not
    named, @* every such group."""

# Restoring a context needs a lock on its GPU that no other user can hold for ever, and all kernels there to heed it.
NOT_FOR_MANY_USERS = (
    "depth must be memory with --system: a CUDA context leaves a GPU only where all kernels are one user's"
)


@dataclass(frozen=True)
class _Idle:
    """When idle kernels are parked"""

    park_when: str = setting(
        "needed",
        """When eligible kernels are parked: "needed", when a kernel waits for room or free GPU memory falls under the
        low watermark; "idle", as soon as they are eligible. Choose "idle" where programs outside Jupyter share the
        GPU, or where idle machines are scaled down.""",
        choices=("needed", "idle"),
    )
    depth: str = setting(
        "memory",
        """What a parked kernel leaves on the GPU: "memory", its CUDA context (about 0.6 GiB); "context", nothing.
        A context leaves only kernels that were started with AFFINODE_DEPTH=context (the extension's setting of this
        name sees to that) and are one process on one GPU, while every process on that GPU is managed: the driver
        loses a process that finds no room when it resumes. Needs CUDA 12.8's driver. Choose "context" where many
        kernels share a GPU and the contexts add up.""",
        choices=("memory", "context"),
    )
    idle_timeout_s: float = setting(
        300.0, "Time after its last use of the GPU from which a kernel without a running cell may be parked."
    )
    cell_idle_timeout_s: float = setting(
        600.0,
        """The same for a kernel whose cell runs on without using the GPU: for cells that wait for a user's input or a
        network.""",
    )
    contended_idle_timeout_s: float = setting(
        15.0,
        """The same while another kernel waits for the GPU, or as long as parking and resuming the idle kernel takes,
        if that is more. Once a kernel has waited for a third of this time, or for twice that round trip, being idle
        for a round trip (a second at least) is enough, so that users with short pauses keep no GPU from others. Where
        the two kernels can change places, a fifteenth of this time, or one round trip, is long enough to wait; and
        where pauses on this machine mostly outlast a round trip, it is enough that the idle kernel has been idle for
        that fifteenth (a second at least). While its cell runs on without using the GPU, a kernel has four times as
        long.""",
    )
    low_watermark: float = setting(
        0.05,
        """Free fraction of a GPU's memory below which eligible kernels are parked though no kernel waits, until three
        times as much is free. 0: park only for kernels that wait.""",
        most=1,
    )
    drop_caches_before_park: bool = setting(
        False,
        """Ask PyTorch and CuPy in an idle IPython kernel to drop what they only cache on the GPU before it is parked,
        so that less is moved and held in host memory. Off by default: it runs their code in a user's process unasked,
        their statistics change, and the next cells allocate from the driver again (some milliseconds a GiB).""",
    )


@dataclass(frozen=True)
class _Memory:
    """GPU memory and host memory"""

    margin_bytes: int = setting(
        64 * MIB,
        """GPU memory left free beside what is granted, for what drivers and libraries take unseen. Raise it if the log
        shows grants that fail.""",
    )
    host_reserve_bytes: int | None = setting(
        None,
        """Host memory that parking leaves for other programs; raise it where they need memory suddenly. Below it,
        resident kernels give back the host copies that they retain for their next park.""",
        shown_default="a tenth of the machine's memory, at least 2 GiB, at most a quarter",
    )
    lot_bytes: int | None = setting(
        None,
        """Host memory that the controller touches in advance, in the background, and lends to kernels that are parked.
        First parks are several times faster with it, one user's kernels use the same memory one after the other, and
        in Kubernetes parked bytes are then charged to the controller's container, not to the user's. Without a figure
        it is taken before a park only where one is likely (less than a tenth of a GPU is free, a kernel was parked,
        waited or could not be parked in the last five minutes, or `park_when` is "idle"), and for kernels that were
        never parked no more than a third of the machine's memory; else when a park needs it. With a figure
        so much is taken even while no kernel is parked (never of the reserve), and never more. 0: none. Huge pages
        are used where enough of them are set aside (vm.nr_hugepages), or where the controller can have a file system
        in memory of its own.""",
        shown_default="what parks that are likely would take; none on a controller of all users",
    )
    share_dir: str = setting(
        "",
        """Folder in host memory (a tmpfs, as /dev/shm) in which the parked kernels of one user have once what they have
        in common, as the weights of one model. Each user has a folder of their own in it that no other user can enter,
        so it must have the sticky bit (mode 1777), or belong to the one user. It must have room for what is in common:
        containers have 64 MiB of /dev/shm unless told otherwise. Contents of different users are never compared. Off by
        default: what a kernel shares comes back by the processor, not straight from the memory that the GPU reads,
        and parked kernels are looked through once after each park. Set it where host memory limits how many kernels
        with the same model can be parked. Empty: each kernel has its own.""",
        read=folder,
    )
    spill_dir: str = setting(
        "",
        """Folder on a local disk to which parked memory goes when host memory is short, the least recently used first,
        so that parking is not refused for want of host memory. Each kernel has a file without a name in it, so users
        must be able to write in it. It must belong to root or to the user; if others may write in it, it must have the
        sticky bit (mode 1777). In containers it must have the same path for the kernels and the controller. A kernel on
        disk returns at the speed of the disk. Empty: none.""",
        read=folder,
    )
    spill_limit_bytes: int | None = setting(
        None,
        """How much parked memory of all kernels together may be on disk. Each user with kernels may use an equal part
        of it.""",
        shown_default="half of what is free in spill_dir",
    )
    spill_daily_bytes: int = setting(
        1024 * GIB,
        """How much may be written to spill_dir, and to images of kernels that are made to hibernate, in any 24 hours,
        since flash wears out. Lower it for disks that stand
        less than a TiB a day. Each user with kernels may write an equal part even if others have used all of it up, so
        that twice as much is written at most.""",
    )


@dataclass(frozen=True)
class _Queue:
    """When every GPU is busy"""

    when_full: str = setting(
        "wait",
        """What happens when a kernel waits and every kernel on the GPU is busy. "wait": it waits until one is idle.
        "time_slice": the kernel that has had the GPU longest gives it up after `time_slice_s`, at its next CUDA call,
        and waits in turn; choose it where cells compute for hours. Kernels of several processes or GPUs are never
        preempted. "terminate_newest": the youngest kernel is shut down for an older one by its own Jupyter server,
        which tells its user; all its variables are lost. Choose that only where users expect it.""",
        choices=("wait", "time_slice", "terminate_newest"),
    )
    time_slice_s: float = setting(
        120.0,
        """time_slice: how long a kernel keeps the GPU at least while others wait. Raise it where moving takes long: a
        kernel of 80 GiB needs some three seconds to be parked and resumed. terminate_newest: how long a kernel must
        have waited before another one is shut down for it.""",
        least=0.1,  # else the controller would do nothing but move kernels
    )
    max_computing_per_gpu: int | None = setting(
        None,
        """How many kernels compute on a GPU at once: a waiting kernel is brought back only where fewer do. Choose it
        where cells slow each other down, as `jupyter affinode plan` says when compute and not memory is what is short.
        It bounds only which waiting kernels are brought back: a kernel that is on the GPU already begins its cells
        unasked. Kernels that compute take turns only with `when_full="time_slice"`; else a kernel may wait for as long
        as the cells of others last.""",
        least=1,
        most=1000,
        shown_default="any number",
    )
    allow_migration: bool = setting(
        True,
        """Let a kernel that was parked with `depth="context"`, and whose GPU is full when it is needed again, resume on
        another GPU of the same kind. Only where the CUDA_VISIBLE_DEVICES that its process began with allows it. Turn it
        off where it matters on which GPU a kernel is.""",
    )
    ageing_s: float = setting(
        60.0,
        """Time of waiting that is worth one priority class: with classes from -5 to 5 no kernel is overtaken by one
        that comes more than ten times that later. 0: classes make no difference.""",
    )


@dataclass(frozen=True)
class _Users:
    """What each user may have"""

    priorities: str = setting(
        "",
        """Priority classes, from -5 to 5; higher ones resume first. A user who is not named has the highest class of
        their groups, else the one of *, else 0."""
        + _RULES,
        read=numbers,
        names_users=True,
    )
    quotas: str = setting(
        "",
        """How much GPU memory the kernels of one user, or of all users of a group together, may have on all GPUs.
        Beyond it their idle kernels are parked and their others wait. Example: "alice=80GiB, *=40GiB, @staff=1TiB"."""
        + _RULES,
        read=sizes,
        names_users=True,
    )
    hold_max_s: float = setting(86400.0, "How long a kernel can be held at most.")
    hold_bytes_max: int | None = setting(
        None,
        "How much GPU memory one user may hold at a time, all held kernels together.",
        shown_default="any",
    )
    opt_out: str = setting(
        "",
        """Users whose kernels are parked only on their own request: "alice, @staff, hub:bob, @hub:ml", where @ marks
        groups and hub: users and groups that a grant names; or * for all.""",
        read=names,
        names_users=True,
    )
    kernelspec_opt_out: bool = setting(
        True,
        """Whether a kernelspec may say the same of its kernels, by `"metadata": {"affinode": {"park": false}}`. By
        default not with --system: users write kernelspecs of their own, and holds have quotas.""",
        shown_default="True; with --system False",
    )


@dataclass(frozen=True)
class _Life:
    """The controller's own life"""

    settle_s: float = setting(
        1.0,
        "Time after the start before anything is decided, so that every kernel is known by then.",
        most=3600,
    )
    keep_alive_s: float = setting(60.0, "Time without any kernel or client after which the controller ends.")
    hibernate_at_end_s: float = setting(
        0.0,
        """How long kernels are given to hibernate, all at once, when the controller is told to end by SIGTERM: as the
        machine shuts down, or a pod or a spot machine is taken away. Kernels that cannot hibernate, or run a cell, stay
        as they are. As a service of systemd that is done only while the machine shuts down, not when the service is
        restarted alone. 0: none.""",
        most=3600,
    )


# Of several base classes the fields of the last come first.
@dataclass(frozen=True)
class Settings(_Life, _Users, _Queue, _Memory, _Idle):
    """All settings of the policy."""

    def changed(self, **changes: Any) -> Settings:
        """Return these settings with some changed. Raises SettingsRefused if they make no sense."""
        check_each(changes)
        return replace(self, **changes)

    @property
    def high_watermark(self) -> float:
        """Return the free fraction of a GPU's memory up to which kernels are parked once it fell below the low one."""
        return min(HIGH_OVER_LOW * self.low_watermark, 1.0)

    @property
    def contended_cell_idle_timeout_s(self) -> float:
        """Return the idle timeout of a kernel with a running cell while another kernel waits: the cell may hold what
        that kernel waits for.
        """
        return min(self.cell_idle_timeout_s, CELL_PATIENCE * self.contended_idle_timeout_s)

    def host_reserve(self, total_bytes: int) -> int:
        """Return what parking leaves of a machine that has `total_bytes` now."""
        if self.host_reserve_bytes is None:
            return default_host_reserve(total_bytes)
        return self.host_reserve_bytes

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


SETTINGS: Mapping[str, Setting] = {each.name: each for each in settings_of(Settings)}


def check_each(changes: Mapping[str, Any]) -> None:
    """Raise SettingsRefused if a setting does not exist or cannot have its value, whatever the others are."""
    for name, value in changes.items():
        if name not in SETTINGS:
            raise SettingsRefused(f"there is no setting {name!r}; there are {', '.join(SETTINGS)}")
        SETTINGS[name].check(value)


def default_host_reserve(total_bytes: int) -> int:
    """Return the host memory that parking keeps free: 10 %, at least 2 GiB, at most a quarter."""
    return min(max(2 * GIB, total_bytes // 10), total_bytes // 4)


class SettingTimes:
    """When each setting was configured. Several servers of one user tell a new controller theirs in any order: the one
    that started last decides.
    """

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}

    def newest(self, changes: Mapping[str, Any], said_at: float) -> dict[str, Any]:
        """Return those changes that no later configuration overrides."""
        return {name: value for name, value in changes.items() if said_at >= self._said_at.get(name, said_at)}

    def take(self, names: Iterable[str], said_at: float) -> None:
        """Note that these settings are taken."""
        self._said_at.update(dict.fromkeys(names, said_at))

"""Kernels that outlive a server that SystemdSpawner started, within the server's limits.

systemd ends a unit whole. So the server's unit has KillMode=process, and once the server has ended the Hub moves what
stays, the user's keeper and kernels, into a scope beside the unit: systemd starts no unit again in which processes are
left. Unit and scopes are in a slice of their own, which has the unit's limits. Limits of the scope alone would not do:
memory stays charged to where it was taken, and the next server would have as much again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from jupyter_affinode.environment import STAYS
from jupyter_affinode.others_environ import environs_of

from .spawner_mixin import GpuPolicy

RUNNING = Path("/run/systemd/system")  # is there where systemd is process 1
MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
ASKED = ("unit_extra_properties", "dynamic_users", "isolate_tmp")  # traits by which kernels may end
WITHIN_S, LOOK_EVERY_S = 10.0, 0.1
# What limits a unit also as a whole slice; see systemd.resource-control(5).
LIMITS = re.compile(
    r"Memory(Min|Low|High|Max|SwapMax|ZSwapMax)|CPU(Weight|Quota|QuotaPeriodSec)|Startup\w+|Allowed(CPUs|MemoryNodes)"
    r"|TasksMax|IO(Weight|DeviceWeight|DeviceLatencyTargetSec|(Read|Write)(Bandwidth|IOPS)Max)|Device(Allow|Policy)"
    r"|IPAddress(Allow|Deny)"
)


class SystemdRefused(RuntimeError):
    """systemd did not do it; the message says what and why."""


class SystemdGpuPolicy(GpuPolicy):
    """`GpuPolicy` for subclasses of SystemdSpawner, whose kernels stay in a scope."""

    unit_extra_properties: dict[str, Any]
    slice: str | None

    def gpu_keeps_kernels(self) -> bool:
        """Return whether kernels of the server may outlive it."""
        return (
            super().gpu_keeps_kernels()
            and why_kernels_end({name: getattr(self, name) for name in ASKED}) is None
        )

    async def start(self) -> Any:
        """Start the server as the spawner does, in a slice that holds its limits and those of the kernels that stay."""
        keeps = self.gpu_keeps_kernels()
        await self._empty_unit(keeps, "SIGKILL")
        if not keeps:
            return await super().start()
        self.unit_extra_properties = {"KillMode": "process", **self.unit_extra_properties}
        self.slice = self._slice
        started = await super().start()
        try:
            await limit_slice(self._slice, self._limits())
        except SystemdRefused:
            await self.stop()
            raise
        return started

    async def stop(self, *args: Any, **kwargs: Any) -> Any:
        """Stop the server as the spawner does, and have its kernels leave its unit."""
        from jupyterhub.utils import maybe_future

        stopped = await maybe_future(super().stop(*args, **kwargs))
        if self.gpu_keeps_kernels():
            await self._empty_unit(True, "SIGTERM")
        return stopped

    @cached_property
    def _slice(self) -> str:
        """The server's own slice, in the one that the site has its servers in."""
        above = (self.slice or "system.slice").removesuffix(".slice")
        return f"{'' if above == '-' else above + '-'}{escaped(self.unit_name)}.slice"

    def _limits(self) -> dict[str, Any]:
        """Return the limits of the server's unit."""
        limits = {
            "MemoryMax": "infinity" if self.mem_limit is None else str(self.mem_limit),
            "CPUQuota": "" if self.cpu_limit is None else f"{int(self.cpu_limit * 100)}%",
        }
        more = {name: value for name, value in self.unit_extra_properties.items() if LIMITS.fullmatch(name)}
        return {**limits, **more}

    async def _empty_unit(self, keeps: bool, signal: str) -> None:
        """Leave nothing in the unit of a server that has ended: what stays moves, and the rest gets a signal."""
        unit = escaped(self.unit_name, also="-@\\") + ".service"
        try:
            if not await processes_of(unit):
                return
            await call("systemctl", "stop", unit)
            if keeps:
                await self._move(unit)
        except SystemdRefused as refused:
            if keeps:
                self.log.error("Kernels of %s end with the next server's start: %s", self.user.name, refused)
            if not keeps or signal != "SIGKILL":
                return
        try:
            await end_rest(unit, signal)
        except SystemdRefused as refused:
            self.log.error("The unit of %s is not empty: %s", self.user.name, refused)

    async def _move(self, unit: str) -> None:
        """Move what stays of a unit into a scope. Raises SystemdRefused, and then nothing is to get a signal."""
        staying = await asyncio.to_thread(those_that_stay, await processes_of(unit))
        if not staying:
            return
        scope = f"{unit.removesuffix('.service')}-kept-{secrets.token_hex(4)}.scope"
        await start_scope(scope, self._slice, staying, f"Kernels without a server, of {self.user.name}")
        await until(f"the kernels of {self.user.name} are in {scope}", lambda: has_left(unit, staying))
        self.log.info("%d processes of %s stay, in %s", len(staying), self.user.name, scope)


def why_kernels_end(configured: Mapping[str, Any]) -> str | None:
    """Return why kernels end with a server of SystemdSpawner's, by the spawner's traits; None where they do not."""
    properties = configured.get("unit_extra_properties") or {}
    if configured.get("dynamic_users") or properties.get("DynamicUser", "no") != "no":
        return "dynamic_users gives a server a user that ends with it"
    if configured.get("isolate_tmp") or properties.get("PrivateTmp", "no") != "no":
        return "isolate_tmp gives a server a /tmp that ends with it"
    if properties.get("KillMode", "process") != "process":
        return f"unit_extra_properties has KillMode={properties['KillMode']}"
    if not RUNNING.exists():
        return "systemd does not run this machine"
    if shutil.which("busctl") is None:
        return "busctl, by which systemd is asked, is not installed"
    return None


def those_that_stay(processes: Iterable[int]) -> list[int]:
    """Return those of some processes that are marked as staying, and all that descend from these."""
    parents = {pid: parent_of(pid) for pid in processes}
    mark = f"{STAYS}=1".encode()
    staying = {pid for pid, environ in environs_of(parents).items() if mark in environ}
    for pid in parents:
        line = [pid]
        while line[-1] not in staying and parents.get(line[-1]) in parents:
            line.append(parents[line[-1]])
        if line[-1] in staying:
            staying.update(line)
    return sorted(staying)


def parent_of(pid: int) -> int:
    """Return a process's parent; 0 for one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def escaped(name: str, also: str = "") -> str:
    """Return a name as systemd takes it in a unit's; `also`: what else may stay."""
    text = "".join(
        chr(byte)
        if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in f":_.{also}")
        else f"\\x{byte:02x}"
        for byte in name.encode()
    )
    return f"\\x2e{text[1:]}" if text.startswith(".") else text


# ---- systemd, asked by its own programs


async def processes_of(unit: str) -> list[int]:
    """Return the processes in a unit, also in one that has ended; none of a unit that is not there.

    Raises SystemdRefused.
    """
    try:
        answer = await call("busctl", "--json=short", "call", *MANAGER, "GetUnitProcesses", "s", unit)
        return [pid for _, pid, _ in json.loads(answer)["data"][0]]
    except SystemdRefused as refused:
        if f"{unit} not loaded" in str(refused):
            return []
        raise
    except (ValueError, LookupError, TypeError) as error:
        raise SystemdRefused(f"GetUnitProcesses cannot be read: {error!r}") from None


async def start_scope(name: str, slice_name: str, processes: list[int], description: str) -> None:
    """Move processes into a new scope, which ends when they have. Raises SystemdRefused."""
    properties = [
        *("Description", "s", description, "Slice", "s", slice_name),
        *("CollectMode", "s", "inactive-or-failed"),
        *("PIDs", "au", str(len(processes)), *map(str, processes)),
    ]
    await call(
        "busctl",
        *("call", *MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))"),
        *(name, "fail", "4", *properties, "0"),
    )


async def limit_slice(name: str, limits: Mapping[str, Any]) -> None:
    """Have a slice hold these limits, and vanish when nothing is in it. Raises SystemdRefused."""
    loaded = await call("systemctl", "show", "--property=Transient", "--value", name)
    if loaded.strip() != "yes":
        await call(
            "busctl",
            *("call", *MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))"),
            *(name, "fail", "1", "StopWhenUnneeded", "b", "true", "0"),
        )
    wanted = [
        f"{key}={each}"
        for key, value in limits.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    await call("systemctl", "set-property", "--runtime", name, *wanted)


async def end_rest(unit: str, signal: str) -> None:
    """Send a signal to what is left in a unit that has ended; after SIGKILL wait until systemd has forgotten it."""
    if await processes_of(unit):
        await call("systemctl", "kill", f"--signal={signal}", unit)
    if signal != "SIGKILL":
        return

    async def is_forgotten() -> bool:
        with contextlib.suppress(SystemdRefused):  # one that has not failed
            await call("systemctl", "reset-failed", unit)
        return (await call("systemctl", "show", "--property=LoadState", "--value", unit)).strip() != "loaded"

    await until(f"{unit} is empty", is_forgotten)


async def has_left(unit: str, processes: Iterable[int]) -> bool:
    """Return whether none of some processes is in a unit any more."""
    return not {*await processes_of(unit)}.intersection(processes)


async def until(what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what systemd does a moment after it was asked. Raises SystemdRefused."""
    end = asyncio.get_running_loop().time() + WITHIN_S
    while not await is_so():
        if asyncio.get_running_loop().time() > end:
            raise SystemdRefused(f"after {WITHIN_S:g} s it is still not so that {what}")
        await asyncio.sleep(LOOK_EVERY_S)


async def call(*command: str) -> str:
    """Run a program of systemd's and return what it prints. Raises SystemdRefused."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise SystemdRefused(f"{command[0]} cannot be run: {error}") from None
    printed, said = await process.communicate()
    if process.returncode:
        raise SystemdRefused(f"{' '.join(command[:2])}: {said.decode(errors='replace').strip()}")
    return printed.decode(errors="replace")

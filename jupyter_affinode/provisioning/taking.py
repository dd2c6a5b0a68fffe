"""Take a warm kernel from the user's keeper, in place of starting one.

The keeper says which kernel, and gives it to no other program. This one hands it over itself: with one message, which
the kernel answers once it is as a new one (kernel/taking.py). Whatever goes wrong, the kernel is ended before another
is started at the same addresses.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from jupyter_client.session import Session

from ..keeping.client import Keeper, KeeperRefused, KeeperUnavailable, connected
from ..keeping.processes import Adopted, ProcessName
from ..keeping.warm_spec import command_of, read_at_start
from ..threads import on_own_thread

PATIENCE_S = 60.0  # a kernel of many GiB may have to be read from disk
ANSWERS_WITHIN_S = 15.0
ENDS_WITHIN_S = 10.0
LIMITS = (
    "RLIMIT_AS",
    "RLIMIT_CORE",
    "RLIMIT_CPU",
    "RLIMIT_DATA",
    "RLIMIT_FSIZE",
    "RLIMIT_NOFILE",
    "RLIMIT_STACK",
)


@dataclass(frozen=True)
class Launch:
    """What a kernel that is started now would get."""

    command: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    connection: dict[str, Any]
    connection_file: str
    outlives_us: bool


@dataclass(frozen=True)
class Taken:
    """A warm kernel that is this program's."""

    process: Adopted
    process_group: int | None
    has_shim: bool


@dataclass(frozen=True)
class NoneReady:
    """Why there is none, in words; `failed` is a file that says how the prelude failed."""

    why: str
    failed: str | None = None


async def take(want: dict[str, Any], launch: Launch) -> Taken | NoneReady:
    """Take a warm kernel that fits, or have some made for the next notebooks. `want`: as in `Keeper.want_warm`."""
    if launch.connection.get("curve_publickey"):
        return NoneReady("its connection is encrypted")
    try:
        async with await connected() as keeper:
            return await _taken(keeper, want, launch)
    except KeeperUnavailable as error:
        return NoneReady(str(error))


async def _taken(keeper: Keeper, want: dict[str, Any], launch: Launch) -> Taken | NoneReady:
    try:
        answer = await keeper.offer_warm(
            want,
            PATIENCE_S,
            kernel_environ=read_at_start(launch.environ),
            command=command_of(launch.command, launch.connection_file),
            pid=os.getpid(),
        )
    except KeeperRefused as refused:
        return NoneReady(str(refused))
    offer = answer["offer"]
    if offer is None:
        return NoneReady(answer["why"], answer["failed"])
    process = ProcessName(**offer["process"])
    try:
        found = Adopted(process)
    except ProcessLookupError:
        return NoneReady("its process ended")
    try:
        await on_own_thread(lambda: hand_over(offer, launch), timeout_s=None)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if found.poll() is None and offer["process_group"] == process.pid:
                os.killpg(process.pid, signal.SIGKILL)  # with what its prelude started
        found.kill()
        await on_own_thread(lambda: found.wait(ENDS_WITHIN_S), timeout_s=None)
        found.close()
        if isinstance(error, (OSError, RuntimeError, zmq.ZMQError)):
            return NoneReady(f"it could not be handed over: {error}")
        raise
    with contextlib.suppress(
        KeeperUnavailable, KeeperRefused
    ):  # it sees by this process that the kernel is taken
        await keeper.has_warm(offer["id"], outlives=launch.outlives_us)
    if found.poll() is not None:
        found.close()
        return NoneReady("its process ended as it was handed over")
    return Taken(found, offer["process_group"], offer["has_shim"])


def hand_over(offer: dict[str, Any], launch: Launch) -> None:
    """Have a warm kernel be the one that `launch` describes. Blocks; raises RuntimeError in words, and TimeoutError."""
    environ = dict(launch.environ)
    if not launch.outlives_us:
        environ["JPY_PARENT_PID"] = str(os.getpid())  # as jupyter_client has it
    mask = os.umask(0o077)
    os.umask(mask)
    content = {
        "connection": {name: _text(value) for name, value in launch.connection.items()},
        "connection_file": os.path.realpath(launch.connection_file),
        "environ": environ,
        "launched_with": offer["launched_with"],
        "cwd": os.path.abspath(launch.cwd),
        "umask": mask,
        "limits": {name: resource.getrlimit(getattr(resource, name))[0] for name in LIMITS},
        "ends_with": None if launch.outlives_us else os.getpid(),
    }
    at = offer["connection"]
    session = Session(key=at["key"].encode(), signature_scheme=at["signature_scheme"])
    with contextlib.closing(_Context()) as context:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        separator = "-" if at["transport"] == "ipc" else ":"
        socket.connect(f"{at['transport']}://{at['ip']}{separator}{at['shell_port']}")
        session.send(socket, "affinode_take", content)
        if not socket.poll(int(ANSWERS_WITHIN_S * 1000)):
            raise TimeoutError(f"it has not answered for {ANSWERS_WITHIN_S:g} s")
        _, answer = session.recv(socket, mode=0)
        told = answer["content"] if answer is not None else {"status": "error"}
        if told["status"] != "ok":
            raise RuntimeError(told.get("error", "it refused"))


class _Context(zmq.Context):  # type: ignore[type-arg]
    """A context whose end closes its sockets."""

    def close(self) -> None:
        self.destroy(linger=0)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value

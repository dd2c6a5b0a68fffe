"""Several people on one machine's controller: each a Unix user of their own, or the holder of a grant.

Credentials are a thread's own in Linux, and a socket carries those with which it was connected. So a test can
be another user for as long as it connects, by the system calls themselves (libc's would change all threads).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim
from live_machine import Machine, UnixConnection, ask

from jupyter_affinode.client.grant_signing import make_keys

CALLS = {"x86_64": (116, 117, 119), "aarch64": (159, 147, 149)}  # setgroups, setresuid, setresgid
libc = ctypes.CDLL(None, use_errno=True)


def needs_root() -> None:
    """Skip where this process cannot become another user."""
    if os.getuid() != 0 or platform.machine() not in CALLS:
        pytest.skip("these tests become other users, which takes root")


def command_of(uid: int, *command: str, starts_others: bool = False) -> list[str]:
    """A command line that runs as another user; skips where it cannot. The interpreter may lie in a closed folder.

    `starts_others`: for the processes that it starts, too.
    """
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not here")
    words = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    if starts_others:
        words += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return [*words, "--", *command]


@contextlib.contextmanager
def as_user(uid: int, *groups: int) -> Iterator[None]:
    """Be another user, in this thread."""
    setgroups, setresuid, setresgid = CALLS[platform.machine()]
    _call(setgroups, len(groups), (ctypes.c_uint32 * max(len(groups), 1))(*groups))
    _call(setresgid, -1, uid, -1)
    _call(setresuid, -1, uid, -1)
    try:
        yield
    finally:
        _call(setresuid, -1, 0, -1)
        _call(setresgid, -1, 0, -1)
        _call(setgroups, 0, None)


def _call(number: int, *arguments: Any) -> None:
    if libc.syscall(number, *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class Person:
    """A user on the machine."""

    def __init__(self, machine: Machine, uid: int | None, *groups: int, grant: str | None = None):
        """`uid` None: the user of this test."""
        self.machine, self.uid, self.groups, self.grant = machine, uid, groups, grant
        self.shims: list[FakeShim] = []

    def being(self) -> contextlib.AbstractContextManager[None]:
        """Be this person."""
        return contextlib.nullcontext() if self.uid is None else as_user(self.uid, *self.groups)

    def ask(self, method: str, path: str, body: Any = None, grant: str | None = None) -> tuple[int, Any]:
        """One request to the API: (status, JSON or None)."""
        grant = grant or self.grant
        headers = {"Authorization": f"Bearer {grant}"} if grant else {}
        with contextlib.closing(UnixConnection(self.machine.socket, timeout=60)) as connection:
            with self.being():
                connection.connect()
            return ask(connection, method, f"/api/v1{path}", body, **headers)

    def kernels(self) -> dict[str, dict[str, Any]]:
        """What this person sees, by id."""
        status, answer = self.ask("GET", "/kernels")
        assert status == 200, answer
        return {kernel["id"]: kernel for kernel in answer["kernels"]}

    def shim(self, kernel_id: str = "", **options: Any) -> FakeShim:
        """A process of this person's with a shim."""
        with self.being():
            shim = FakeShim(self.machine.socket.parent, kernel_id, grant=self.grant, **options)
        self.shims.append(shim)
        return shim

    def close(self) -> None:
        """End all shims."""
        while self.shims:
            self.shims.pop().close()


def make_hub_keys(folder: Path) -> tuple[Path, Path]:
    """A Hub's pair of keys: (the file that it signs with, the folder with the key that controllers know)."""
    private, public = make_keys()
    key, keys = folder / "hub-1.key", folder / "keys"
    key.write_bytes(private)
    keys.mkdir(mode=0o755)
    (keys / "hub-1.pem").write_bytes(public)
    return key, keys


def open_to_everyone(machine: Machine) -> None:
    """Others may enter the machine's folders, as they may enter /run."""
    machine.folder.chmod(0o755)
    machine.socket.parent.chmod(0o755)


def simulate_for_everyone(machine: Machine) -> None:
    """The same, and give the machine a simulated GPU that all may use."""
    open_to_everyone(machine)
    machine.simulate(memory="1GiB")
    gpu = machine.folder / "gpu"
    gpu.chmod(0o755)
    (gpu / "machine").touch()
    (gpu / "machine").chmod(0o666)

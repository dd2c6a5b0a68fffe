"""The environment of a kernel that is to be managed: the shim preloaded, the magics, our variables.

A kernel must start whatever happens here: each reason not to preload is raised as `Unmanaged`, and the caller then
starts the kernel without the shim.
"""

from __future__ import annotations

import contextlib
import getopt
import hashlib
import os
import re
import shutil
import struct
import subprocess
from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from .. import environment

Environment = MutableMapping[str, str]

KERNEL_STARTUP = Path(__file__).resolve().parents[1] / "kernel" / "startup.py"
PROOF_TIMEOUT_S = 10.0
PT_INTERP = 3


class Unmanaged(Exception):
    """The kernel cannot be managed; the message is the reason, for a log line and for `doctor`."""


def manage(
    env: Environment,
    kernel_id: str,
    argv: Sequence[str],
    *,
    python: bool = True,
    server: bool = False,
    depth: str | None = None,
) -> None:
    """Change `env`, the environment a kernel is about to get, so that its GPU is managed.

    `argv` is the kernel's command (its first word must work with the shim), `python` whether PYTHONSTARTUP
    means anything to it, `server` whether a Jupyter server with our extension starts it, `depth` how deep it
    may be parked, unless `env` says so already. Raises `Unmanaged` with `env` unchanged. May run two short
    processes the first time: call it outside an event loop's thread.
    """
    if env.get(environment.DISABLE) == "1":
        raise Unmanaged("AFFINODE_DISABLE=1 is set")
    dropping = drops_preload(argv)
    if dropping is not None:
        raise Unmanaged(
            f"its command begins with `{dropping}`, which drops LD_PRELOAD; take that out of the kernelspec's argv,"
            ' and name what the kernel needs in the kernelspec\'s "env"'
        )
    shim = environment.shim_path()
    if shim is None:
        raise Unmanaged("this installation has no libaffinode.so (is this Linux on x86-64 or aarch64?)")
    library = preloadable_path(shim)
    prove_preload(library, shutil.which(argv[0], path=env.get("PATH")) if argv else None)
    simulation = _simulation_folder() if environment.simulation_asked(env) else None

    env["LD_PRELOAD"] = _prepended(str(library), env.get("LD_PRELOAD", ""), r"[:\s]+")
    if simulation is not None:
        env["LD_LIBRARY_PATH"] = _prepended(str(simulation), env.get("LD_LIBRARY_PATH", ""), r"[:;]")
    env[environment.KERNEL_ID] = kernel_id
    env[environment.LIBRARY] = str(library)
    if server:
        env[environment.SERVER] = "1"
    else:
        env.pop(environment.SERVER, None)
    if depth is not None:
        env.setdefault(environment.DEPTH, depth)
    _name_controller(env)
    if python:
        _chain_startup(env)


def drops_preload(argv: Sequence[str]) -> str | None:
    """Return the words with which a command by env(1) drops LD_PRELOAD; None if it does not."""
    if not argv or os.path.basename(argv[0]) != "env":
        return None
    try:
        options, rest = getopt.getopt(list(argv[1:]), "i0vu:C:S:", ["ignore-environment", "unset="])
    except getopt.GetoptError:
        return None  # an option that is not known here
    drops = {("-i", ""), ("--ignore-environment", ""), ("-u", "LD_PRELOAD"), ("--unset", "LD_PRELOAD")}
    for name, value in options:
        if (name, value) in drops:
            return f"env {name} {value}".rstrip()
    return "env -" if rest[:1] == ["-"] else None


def preloadable_path(shim: Path) -> Path:
    """Return an absolute path to the shim that LD_PRELOAD can name: a link in the runtime folder if the shim's own
    path has a space.

    LD_PRELOAD is split at spaces and colons, without quoting.
    """
    shim = shim.absolute()
    if not re.search(r"[\s:]", str(shim)):
        return shim
    name = f"libaffinode-{hashlib.sha256(str(shim).encode()).hexdigest()[:12]}.so"
    for folder in (Path(jupyter_runtime_dir()), environment.user_folder()):
        if re.search(r"[\s:]", str(folder)):
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            environment.link(folder / name, shim)
        except OSError:
            continue
        return folder / name
    raise Unmanaged(f"no path without spaces leads to {shim}, and LD_PRELOAD cannot name another")


@lru_cache(maxsize=64)
def prove_preload(library: Path, interpreter: str | None) -> None:
    """Show that `library` can be preloaded, into `/bin/true` and by the loader of `interpreter`; once each.

    Raises `Unmanaged` with the loader's words. The interpreter is not run: its own loader only lists what it
    would load (a static or 32-bit program, a musl distribution and a foreign glibc are told apart that way).
    """
    _run_preloaded(library, [shutil.which("true") or "/bin/true"])
    if interpreter is not None:
        loader = program_loader(Path(interpreter))
        if loader is not None:
            _run_preloaded(library, [loader, "--list", interpreter])


def _run_preloaded(library: Path, command: list[str]) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "AFFINODE_"))}
    clean.update(LD_PRELOAD=str(library), AFFINODE_DISABLE="1")
    try:
        done = subprocess.run(
            command,
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=PROOF_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unmanaged(f"a trial of {library} with {command[0]} failed: {error}") from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode != 0 or said:
        raise Unmanaged(
            f"{library} does not work with {command[-1]}: "
            + (said or f"it ended with status {done.returncode}")
        )


def program_loader(program: Path) -> str | None:
    """Return the dynamic loader that an ELF program names (PT_INTERP, see elf(5)); None for scripts and static
    programs.
    """
    try:
        with program.open("rb") as file:
            head = file.read(64)
            if head[:4] != b"\x7fELF" or len(head) < 64:
                return None
            if head[4] != 2:
                raise Unmanaged(f"{program} is a 32-bit program")
            (table,) = struct.unpack_from("=Q", head, 32)
            entry_size, entries = struct.unpack_from("=HH", head, 54)
            for index in range(entries):
                file.seek(table + index * entry_size)
                entry = file.read(56)
                if len(entry) == 56 and struct.unpack_from("=I", entry)[0] == PT_INTERP:
                    offset, size = (
                        struct.unpack_from("=Q", entry, 8)[0],
                        struct.unpack_from("=Q", entry, 32)[0],
                    )
                    file.seek(offset)
                    return file.read(min(size, 4096)).rstrip(b"\0").decode()
    except OSError:
        pass
    return None


def _prepended(first: str, existing: str, separators: str) -> str:
    """Return a list with `first` before the present entries, each once."""
    rest = [item for item in re.split(separators, existing) if item and item != first]
    return ":".join([first, *rest])


def _simulation_folder() -> Path:
    try:
        return environment.simulation_folder()
    except (environment.SimulationRefused, OSError) as refused:
        raise Unmanaged(f"AFFINODE_SIM=1 is set, but {refused}") from None


def _name_controller(env: Environment) -> None:
    """Name the folder in which this process looks for the controller, whatever `env` says about users' folders.

    The folder is named and not the socket, so that the kernel finds the machine's controller when one appears.
    """
    if os.environ.get(environment.SOCKET):
        env.setdefault(environment.SOCKET, os.environ[environment.SOCKET])
    if env.get(environment.SOCKET):
        return
    with contextlib.suppress(OSError):
        # there may be the machine's controller, which needs no folder of the user's
        folder = environment.user_folder()
        environment.make_folder(folder)
        env[environment.FOLDER] = str(folder)


def _chain_startup(env: Environment) -> None:
    """Name our startup file and remember the one that was there. Doing so again, at a restart or nested, changes
    nothing.
    """
    ours = str(KERNEL_STARTUP)
    theirs = env.get("PYTHONSTARTUP", "")
    if theirs and theirs != ours:
        env[environment.STARTUP_CHAIN] = theirs
    elif not theirs:
        env.pop(environment.STARTUP_CHAIN, None)
    env["PYTHONSTARTUP"] = ours

"""The environment of a kernel that is to be managed: the shim preloaded, the magics, our variables.

A kernel must start whatever happens here: each reason not to preload is raised as `Unmanaged`, and the caller then
starts the kernel without the shim.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from .. import environment
from .command import Command

Environment = MutableMapping[str, str]

KERNEL_STARTUP = Path(__file__).resolve().parents[1] / "kernel" / "startup.py"
PROOF_TIMEOUT_S = 10.0
PT_INTERP = 3
SANITIZER = re.compile(r"lib(a|t|m|l|ub|hwa|rt)san\.so|libclang_rt\.\w*san")
LINK_ORDER = "verify_asan_link_order"


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

    `argv` is the kernel's command (the shim must reach its end), `python` whether PYTHONSTARTUP
    means anything to it, `server` whether a Jupyter server with our extension starts it, `depth` how deep it
    may be parked, unless `env` says so already. Raises `Unmanaged` with `env` unchanged. May run a few short
    processes the first time: call it outside an event loop's thread.
    """
    if env.get(environment.DISABLE) == "1":
        raise Unmanaged("AFFINODE_DISABLE=1 is set")
    shim = environment.shim_path()
    command = Command(argv, env, shim or environment.library_folder() / environment.SHIM_NAME)
    if command.obstacle is not None:
        raise Unmanaged(command.obstacle)
    if shim is None:
        raise Unmanaged("this installation has no libaffinode.so (is this Linux on x86-64 or aarch64?)")
    library = preloadable_path(shim)
    simulation = _simulation_folder() if environment.simulation_asked(env) else None
    loading = _loading(env, library, simulation)
    surroundings = Surroundings.of({**env, **loading})
    for program in (None, *command.programs):
        prove_preload(library, program, surroundings)

    env.update(loading)
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
        chain_startup(env)


def _loading(env: Mapping[str, str], library: Path, simulation: Path | None) -> dict[str, str]:
    """Return the variables for the dynamic loader.

    A sanitizer's runtime ends a program in which it is not the first. AddressSanitizer's is so strict that programs
    built in a cell would end, too, since what a kernel preloads comes before it: that check is switched off.
    """
    others = [
        item for item in re.split(r"[:\s]+", env.get("LD_PRELOAD", "")) if item and item != str(library)
    ]
    first = [item for item in others if SANITIZER.match(os.path.basename(item))]
    rest = [item for item in others if item not in first]
    loading = {"LD_PRELOAD": ":".join([*first, str(library), *rest])}
    options = env.get("ASAN_OPTIONS", "")
    if LINK_ORDER not in options:
        loading["ASAN_OPTIONS"] = ":".join(filter(None, [options, f"{LINK_ORDER}=0"]))
    if simulation is not None:
        folders = [str(simulation), *re.split(r"[:;]", env.get("LD_LIBRARY_PATH", ""))]
        loading["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(filter(None, folders)))
    return loading


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


@dataclass(frozen=True)
class Surroundings:
    """The environment of a trial. Two are alike if the dynamic loader reads the same in them."""

    loading: tuple[tuple[str, str], ...]
    env: Mapping[str, str] = field(compare=False)

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Surroundings:
        """Return those of a program with the environment `env`."""
        read = {
            name: value
            for name, value in env.items()
            if name.startswith("LD_") or name.endswith("SAN_OPTIONS") or name == "GLIBC_TUNABLES"
        }
        return cls(tuple(sorted(read.items())), dict(env))


@lru_cache(maxsize=256)
def prove_preload(library: Path, program: str | None, surroundings: Surroundings | None = None) -> None:
    """Show that `library` can be preloaded into `program`, None: into a small program; once each.

    `surroundings` have it in LD_PRELOAD, with whatever else the kernel gets there. Raises `Unmanaged` with the loader's
    words. The program is not run: its own loader only lists what it would load (a static or 32-bit program, a musl
    distribution and a foreign glibc are told apart that way).
    """
    if surroundings is None:
        surroundings = Surroundings.of({**os.environ, "LD_PRELOAD": str(library)})
    if program is None:
        _run_preloaded(library, [shutil.which("cat") or "/bin/cat", "/proc/self/maps"], surroundings.env)
    else:
        loader = program_loader(Path(program))
        # What these print names the library, too, as the loader's errors do.
        env = {
            name: value for name, value in surroundings.env.items() if name not in ("LD_DEBUG", "LD_AUDIT")
        }
        if loader is not None:
            _run_preloaded(library, [loader, "--list", program], env)


def _run_preloaded(library: Path, command: list[str], env: Mapping[str, str]) -> None:
    """Run a command that prints what is loaded, the library among it; Unmanaged if the library keeps it from that.

    What else is preloaded, or in /etc/ld.so.preload, may print what it likes, and may fail: as long as it does so
    without the library as well.
    """
    done = _run_trial(library, command, env)
    only_lists = command[1] == "--list"
    if done.returncode == 0 and not only_lists and str(library.resolve()).encode() in done.stdout:
        return
    said = done.stderr.decode(errors="replace").strip()
    about_us = "\n".join(line for line in said.splitlines() if str(library) in line)
    if not about_us and (done.returncode == 0 or (not only_lists and _fails_alone(library, command, env))):
        return
    raise Unmanaged(
        f"{library} does not work with {command[-1] if only_lists else command[0]}: "
        + (about_us or said or f"it ended with status {done.returncode}")
    )


def _fails_alone(library: Path, command: list[str], env: Mapping[str, str]) -> bool:
    """Return whether the command fails without the library, too."""
    others = ":".join(item for item in env.get("LD_PRELOAD", "").split(":") if item != str(library))
    return _run_trial(library, command, {**env, "LD_PRELOAD": others}).returncode != 0


def _run_trial(
    library: Path, command: list[str], env: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            env={**env, environment.DISABLE: "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROOF_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unmanaged(f"a trial of {library} with {command[0]} failed: {error}") from None


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


def chain_startup(env: Environment) -> None:
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

"""Every environment variable between our own parts, and the files and folders that they lead to.

Read by the controller, its client, the provisioner, the extension and the command line; the shim's half
is shim/src/base/environment.h. A shim takes them as they are at its program's first `cuInit`.

| name | set by → read by | meaning |
|---|---|---|
| AFFINODE_SOCKET | admin, provisioner → all | the controller's API socket; `link.sock` lies beside it |
| AFFINODE_FOLDER | provisioner, `run` → shim, clients | the folder of the user's own controller |
| AFFINODE_GRANT | spawner → shim, clients | the signed text that says which user the processes belong to |
| AFFINODE_GRANT_FILE | spawner → shim, clients | a file with it, read anew for each connection; goes before the other |
| AFFINODE_GRANT_URL | spawner → server | where the server has its grant renewed |
| AFFINODE_KERNEL_ID | provisioner, `run` → shim, magics | the Jupyter kernel this process tree is of |
| AFFINODE_LIBRARY | spawner → provisioner; provisioner → magics | absolute path of libaffinode.so, as in LD_PRELOAD |
| AFFINODE_SERVER | provisioner → magics | "1" if a Jupyter server with our extension started the kernel |
| AFFINODE_STARTUP_CHAIN | provisioner → startup file | the PYTHONSTARTUP that was there before ours |
| AFFINODE_DEPTH | a user, provisioner → shim | "context": may give up the CUDA context too; else memory alone |
| AFFINODE_DISABLE | anyone → shim, provisioner | "1": stay inert |
| AFFINODE_KEEP_KERNELS | spawner → server | which kernels outlive it: "never", "parked", "all", "hibernated" |
| AFFINODE_KEEP_KERNELS_FOR_S | spawner → server | for how many seconds |
| AFFINODE_KEEP_KERNELS_PER_USER | spawner → server | how many of a user at a time |
| AFFINODE_KEEP_KERNELS_MEMORY | spawner → server | with how much host memory |
| AFFINODE_STAYS | server → Hub, startup file | "1": this process is to go on when its server's unit ends |
| AFFINODE_HIBERNATE_DIR | spawner, a user → server, command line | where images of hibernated kernels are |
| AFFINODE_HIBERNATES | provisioner → startup file, magics | a file that is there while output would be lost |
| AFFINODE_WARM | keeper → startup file | the entry of a kernel that no notebook has had yet |
| AFFINODE_PRELUDE | provisioner → startup file | a Python file that the kernel runs before its first cell |
| AFFINODE_PRELUDE_FAILED | provisioner → startup file | what to show in place of a prelude that has just failed |
| AFFINODE_CRIU | admin, a user → keeper | how CRIU is called, if it is not `criu` |
| AFFINODE_SIM | a user → server, provisioner, controller's start | "1": use the simulated GPU |
| AFFINODE_SIM_DIR | tests, a user → simulator | folder of the simulated machine's state |
| AFFINODE_SIM_MEMORY | tests, a user → simulator | bytes of each GPU (KiB, MiB, GiB); default 4GiB |
| AFFINODE_SIM_GPUS | tests, a user → simulator | how many simulated GPUs; default 1 |
| AFFINODE_SIM_INTEGRATED | tests → simulator | 1: the GPUs' memory is said to be the host's |
| AFFINODE_SIM_COPY_RATE | tests, a user → simulator | bytes a second of copies; default: no limit |
| AFFINODE_SIM_FAULTS | tests → simulator | faults to inject, `cuMemCreate:OUT_OF_MEMORY:3` |
| AFFINODE_SIM_FAULT_BOARD | tests → simulator | a file through which a running program's faults are changed |
| AFFINODE_SIM_NVML_HOLD | tests → simulator | a file; while it is there, NVML's answer about memory waits |
| AFFINODE_SIM_NVML_FAILS | tests → simulator | a file; while it is there, NVML says "Unknown Error" of each GPU |
| AFFINODE_LOG | a user → shim | file to which the shim logs; default none |
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket as host
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from . import private_folders
from .private_folders import FolderRefused

SOCKET = "AFFINODE_SOCKET"
FOLDER = "AFFINODE_FOLDER"
GRANT = "AFFINODE_GRANT"
GRANT_FILE = "AFFINODE_GRANT_FILE"
GRANT_URL = "AFFINODE_GRANT_URL"
KERNEL_ID = "AFFINODE_KERNEL_ID"
LIBRARY = "AFFINODE_LIBRARY"
SERVER = "AFFINODE_SERVER"
STARTUP_CHAIN = "AFFINODE_STARTUP_CHAIN"
DEPTH = "AFFINODE_DEPTH"
DISABLE = "AFFINODE_DISABLE"
KEEP_KERNELS = "AFFINODE_KEEP_KERNELS"
KEEP_KERNELS_FOR_S = "AFFINODE_KEEP_KERNELS_FOR_S"
KEEP_KERNELS_PER_USER = "AFFINODE_KEEP_KERNELS_PER_USER"
KEEP_KERNELS_MEMORY = "AFFINODE_KEEP_KERNELS_MEMORY"
STAYS = "AFFINODE_STAYS"
HIBERNATE_DIR = "AFFINODE_HIBERNATE_DIR"
HIBERNATES = "AFFINODE_HIBERNATES"
WARM = "AFFINODE_WARM"
PRELUDE = "AFFINODE_PRELUDE"
PRELUDE_FAILED = "AFFINODE_PRELUDE_FAILED"
CRIU = "AFFINODE_CRIU"
SIM = "AFFINODE_SIM"
SIM_DIR = "AFFINODE_SIM_DIR"
SIM_MEMORY = "AFFINODE_SIM_MEMORY"
SIM_GPUS = "AFFINODE_SIM_GPUS"
SIM_COPY_RATE = "AFFINODE_SIM_COPY_RATE"
SIM_FAULTS = "AFFINODE_SIM_FAULTS"
LOG = "AFFINODE_LOG"

NODE_LEDGER = Path("/var/lib/affinode/ledger.sqlite")  # the history of the machine's own controller
NODE_SOCKET = Path("/run/affinode/node.sock")  # the machine's own controller, if an administrator runs one
# Beside the socket, and locked while a controller is being started; shim/src/base/discovery.c looks at it.
START_LOCK_NAME = "starting.lock"
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
SOCKET_NAME = "node.sock"
SOCKET_PATH_MAX = 107  # bytes of a Unix socket's path
TEMPORARY = Path("/tmp")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SHIM_NAME = "libaffinode.so"
SIM_LINKS = {  # what the loader asks for → what we ship
    "libcuda.so.1": "libaffinode-sim-cuda.so",
    "libcuda.so": "libaffinode-sim-cuda.so",
    "libnvidia-ml.so.1": "libaffinode-sim-nvml.so",
}
DRIVER_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # Linux; Windows' GPU inside WSL


class SimulationRefused(RuntimeError):
    """The simulated GPU cannot, or must not, take the driver's place here; the message says why."""


def socket_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the controller's API socket is, or would be: the first place that shim and clients look in.

    The machine's own controller counts only while it listens. Makes nothing. Raises FolderRefused.
    """
    environ = os.environ if environ is None else environ
    if environ.get(SOCKET):
        return Path(environ[SOCKET])
    if listens(NODE_SOCKET):
        return NODE_SOCKET
    return user_folder(environ) / SOCKET_NAME


def listens(path: Path) -> bool:
    """Return whether a process of ours or root's listens at a Unix socket."""
    try:
        status = path.stat()
    except OSError:
        return False
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (0, os.getuid()):
        return False
    with host.socket(host.AF_UNIX, host.SOCK_STREAM | host.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:  # a full backlog
            return True
        except OSError:
            return False
    return True


def grant(environ: Mapping[str, str] | None = None) -> str | None:
    """The grant to show to a controller, as it is now; None if there is none."""
    environ = os.environ if environ is None else environ
    if environ.get(GRANT_FILE):
        with contextlib.suppress(OSError, ValueError):
            text = Path(environ[GRANT_FILE]).read_text(encoding="ascii").strip()
            if text:
                return text
    return environ.get(GRANT, "").strip() or None


def user_folders(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return the folders in which the user's own controller may be, the preferred one first; nothing is verified.

    Like tmux's sockets, ours are in /tmp itself: it is local and outlives a log-out, unlike $XDG_RUNTIME_DIR, and
    kernels with another $TMPDIR find it. Another user can make our folder there before us. The others are for that.
    """
    environ = os.environ if environ is None else environ
    named, runtime = environ.get(FOLDER, ""), environ.get("XDG_RUNTIME_DIR", "")
    folders = [Path(named)] if named.startswith("/") else []
    folders.append(TEMPORARY / f"affinode-{os.getuid()}")
    folders.append(_state_folder(environ) / f"run-{boot_id()[:8]}")  # a home folder may be many machines'
    if runtime.startswith("/"):
        folders.append(Path(runtime) / "affinode")
    return list(dict.fromkeys(folders))


def user_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's own folder for sockets and links: where their controller listens, or the first that will do.

    It is there and ours alone, or can be made. Raises FolderRefused.
    """
    usable: list[Path] = []
    refusal = "there is no folder for the controller's socket"
    for folder in user_folders(environ):
        try:
            _verify_usable(folder)
        except OSError as error:
            refusal = str(error) if isinstance(error, FolderRefused) else f"{refusal}: {error}"
        else:
            usable.append(folder)
    if not usable:
        raise FolderRefused(refusal)
    served = [folder for folder in usable if (folder / SOCKET_NAME).exists()]
    if served == usable[:1]:
        return usable[0]
    return next((folder for folder in served if listens(folder / SOCKET_NAME)), usable[0])


def gpu_lock_folder(socket: Path) -> Path:
    """Return the folder of the locks on GPUs: one for all controllers of the user, as long as there is any."""
    for folder in user_folders({name: value for name, value in os.environ.items() if name != FOLDER}):
        with contextlib.suppress(OSError):
            _verify_usable(folder)
            return folder
    return socket.parent


def boot_id() -> str:
    """Return what tells this start of this machine from all others; "" if that is not known."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def ledger_path(socket: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Where the controller that serves `socket` keeps its history, unless it is told otherwise.

    A simulated machine's lies beside its socket, as does that of a socket that was named: it is another
    machine to them. Else it outlives the machine's restart; it has the host's name in it, since home folders
    are shared by machines. Makes nothing.
    """
    environ = os.environ if environ is None else environ
    if socket == NODE_SOCKET:
        return NODE_LEDGER
    if simulation_asked(environ) or socket.parent not in user_folders(environ):
        return socket.with_name("ledger.sqlite")
    return _state_folder(environ) / f"ledger-{host.gethostname() or 'localhost'}.sqlite"


def _state_folder(environ: Mapping[str, str]) -> Path:
    named = environ.get("XDG_STATE_HOME", "")
    state = Path(named) if named.startswith("/") else Path(os.path.expanduser("~")) / ".local" / "state"
    return state / "affinode"


def key_folder() -> Path:
    """Return where the user's own key is; it outlives the machine's restart. Makes nothing."""
    return _state_folder(os.environ)


def make_folder(folder: Path, setting: str = SOCKET) -> None:
    """Make a folder, and those above, that only we can enter; FolderRefused if others could change it.

    `setting`: what names another folder.
    """
    if not folder.exists():
        private_folders.make_folder(folder, private_folders.OWN_FILES)
    verify_owned(folder, setting=setting)


def verify_owned(folder: Path, *, private: bool = False, setting: str = SOCKET) -> None:
    """FolderRefused unless it is a folder of this user that no other user may write to (or, private, enter)."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise FolderRefused(f"{folder} is not a folder; remove it, or set {setting} to another place")
    if status.st_uid != os.getuid() or status.st_mode & (0o077 if private else 0o022):
        raise FolderRefused(
            f"{folder} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}; it must be"
            f" yours and closed to others (chmod 700). Set {setting} to use another place"
        )
    private_folders.verify_folder(folder, private_folders.OWN_FILES)


def _verify_usable(folder: Path) -> None:
    """OSError unless the folder is there and ours alone, or can be made, and a socket in it has a path."""
    if len(os.fsencode(folder / SOCKET_NAME)) > SOCKET_PATH_MAX:
        raise OSError(f"the path of {folder} is too long for a socket")
    try:
        return verify_owned(folder, private=True)
    except FileNotFoundError:
        pass
    private_folders.verify_way_to(folder, private_folders.OWN_FILES)
    above = next(parent for parent in folder.parents if parent.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be made in {above}")


def library_folder() -> Path:
    """Where the native libraries of this installation lie."""
    return Path(__file__).resolve().parent / "lib"


def shim_path(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the shim, to be preloaded into kernels; None where it was not built.

    It is the one that a spawner brought, the version of the node's controller, or else this installation's.
    """
    environ = os.environ if environ is None else environ
    brought = Path(environ.get(LIBRARY, ""))
    for path in (brought, library_folder() / SHIM_NAME):
        if path.is_absolute() and path.is_file():
            return path
    return None


def sim_paths() -> dict[str, Path] | None:
    """The simulated driver and NVML by the names that the loader asks for; None where they were not built."""
    paths = {name: library_folder() / ours for name, ours in SIM_LINKS.items()}
    return paths if all(path.is_file() for path in paths.values()) else None


def simulation_asked(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user asked for the simulated GPU."""
    environ = os.environ if environ is None else environ
    return environ.get(SIM) == "1"


def simulation_folder() -> Path:
    """A folder for LD_LIBRARY_PATH in which the simulated GPU's libraries have the driver's names.

    One per user and installation. Raises SimulationRefused where a real driver could be shadowed, or where
    there is nothing to simulate with.
    """
    driver = real_driver()
    if driver is not None:
        raise SimulationRefused(
            f"this machine has a real GPU driver ({driver}), which the simulated GPU must not shadow."
            f" Unset {SIM}"
        )
    paths = sim_paths()
    if paths is None:
        raise SimulationRefused(
            f"this installation has no simulated GPU in {library_folder()} (make -C shim)"
        )
    make_folder(user_folder())
    installation = hashlib.sha256(str(library_folder()).encode()).hexdigest()[:12]
    folder = user_folder() / "sim" / installation
    make_folder(folder.parent)
    make_folder(folder)
    for name, target in paths.items():
        link(folder / name, target)
    return folder


def real_driver() -> Path | None:
    """The CUDA driver's library, if both it and its device are here; None otherwise."""
    if not any(device.exists() for device in DRIVER_DEVICES):
        return None
    for folder in _loader_folders():
        library = folder / "libcuda.so.1"
        if library.exists() and library.resolve().parent != library_folder():
            return library
    return None


def controller_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment to start a controller with: no shim, no kernel's identity, simulated if asked."""
    started = {**(os.environ if environ is None else environ), STAYS: "1"}
    preloads = [
        name for name in started.pop("LD_PRELOAD", "").replace(":", " ").split() if SHIM_NAME[:-3] not in name
    ]
    if preloads:
        started["LD_PRELOAD"] = ":".join(preloads)
    for name in (KERNEL_ID, LIBRARY, SERVER, STARTUP_CHAIN, DISABLE):
        started.pop(name, None)
    if simulation_asked(started):
        folders = [str(simulation_folder()), *filter(None, started.get("LD_LIBRARY_PATH", "").split(":"))]
        started["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(folders))
    return started


def link(path: Path, target: Path) -> None:
    """Make or renew a symbolic link in one step, also if another process does so at the same moment."""
    if path.is_symlink() and Path(os.readlink(path)) == target:
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        fresh.symlink_to(target)
        fresh.replace(path)


def _loader_folders() -> list[Path]:
    """Folders in which the dynamic loader looks for libcuda.so.1, in its order as far as it matters here."""
    folders = [Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if ldconfig is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            listed = subprocess.run(
                [ldconfig, "-p"], check=False, capture_output=True, text=True, timeout=10, env={}
            )
            for line in listed.stdout.splitlines():
                if line.strip().startswith("libcuda.so.1 ") and "=> " in line:
                    folders.append(Path(line.rsplit("=> ", 1)[1]).parent)
    return [*folders, *map(Path, ("/usr/lib/wsl/lib", "/usr/lib64", "/usr/lib", "/lib64", "/lib"))]

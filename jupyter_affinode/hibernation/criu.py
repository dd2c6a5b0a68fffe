"""CRIU, the program that writes processes to disk and starts them again from there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from .. import environment
from ..keeping.processes import ProcessName
from ..private_folders import by_descriptor
from . import tree
from .disk import IN_WORDS

T = TypeVar("T")
OLDEST = (4, 2)  # earlier ones do not start on today's Linux
GHOST_BYTES = 64 << 20  # of a file that has no name any more
# "ignore": the processes belong to the control groups of the program that wakes them. A file's permissions may change
# while a kernel is away, as they may while it runs.
COMMON = (
    "--tcp-close",
    "--file-locks",
    "--shell-job",
    "--manage-cgroups=ignore",
    "--skip-file-rwx-check",
    "-v2",
)
CAPABILITIES = "cap_checkpoint_restore,cap_setpcap+eip"
ADMIN = 21  # CAP_SYS_ADMIN
NAME_BYTES = 15  # of a program's, that Linux keeps
KILLED_S, LOOK_EVERY_S = 5.0, 0.02
PATIENCE_S, BYTES_A_SECOND = 60.0, 20 << 20  # CRIU has for its work; then it hangs, and is ended
WORK = "criu"  # beside the folder with what CRIU writes: its log, and figures that it leaves at each call
# What CRIU says, and what that means for a user. The first that fits counts.
REASONS = (
    (
        r"Can't dump half of stream unix|External socket is used",
        "it is connected to another program by a Unix socket",
    ),
    (r"anon_inode:\[io_uring\]", "it uses io_uring, which cannot be written to disk"),
    (
        r"Can't dump file \d+ of that type \[\d+\] \((?P<what>[^)]*)\)|"
        r"Unsupported file type|anon_inode:\[(?P<other>[^\]]+)\]",
        "it has something open that cannot be written to disk ({what})",
    ),
    (r"[Ee]xternal pipe|pipe .*not supported", "a pipe leads from it to another program"),
    (r"tty: .*", "it has a terminal open that another program has, too"),
    (r"Can't dump ghost file (?P<what>\S+) of", "it has a large file open that was deleted ({what})"),
    (
        r"Can't create link remap for (?P<what>\S+)\.",
        "a file that it has open was replaced or renamed ({what}): restart the kernel, or close the file",
    ),
    (r"is already ptraced|already being traced", "a debugger is attached to it"),
    (r"Can't fork for (?P<what>\d+): File exists", "its process id {what} is another process's now"),
    (r"File (?P<what>\S+) has bad (size|build-ID|mode)", "the file {what} was changed since"),
    (
        r"Can't open file /?(?P<what>\S+) on restore: Permission denied",
        "this user may not open the file /{what}",
    ),
    (
        r"Can't open file /?(?P<what>\S+) on restore|Can't open /(?P<other>\S+): No such file",
        "/{what} is not there any more",
    ),
    (r"\d+ killed by signal (?P<what>\d+)", "its process was ended on its way, by signal {what}"),
    (r"si_code=4 .*si_status=(?P<what>\d+)", "it was stopped by signal {what} meanwhile: try again"),
    (
        r"Can't bind .*Address already in use",
        "another program has taken a port that it listens on: try again when that has ended",
    ),
    (r"Can ?not set .*lock", "another program has locked a file that it had locked: end that first"),
    (r"No space left on device", IN_WORDS[errno.ENOSPC]),
    (r"Disk quota exceeded", IN_WORDS[errno.EDQUOT]),
    (
        r"Can't lookup mount=\d+ for fd=-?\d+ path=(?P<what>\S+)",
        "it has a file of another mount in memory ({what})",
    ),
    (
        r"CAP_CHECKPOINT_RESTORE|Operation not permitted|Unable to drop capability",
        "CRIU may not do it: `setcap " + CAPABILITIES + " {command}` lets it",
    ),
)
# What ends all processes of a unit, job or container at once is not to end CRIU at its work. CRIU keeps what is ignored
# so, and gives a process that it starts the handlers of then.
UNDISTURBED = ("/bin/sh", "-c", 'trap "" TERM HUP; exec "$@"', "criu")
HARMLESS = re.compile(r"RLIMIT_NOFILE|kdat cache")


class CriuUnavailable(RuntimeError):
    """There is no CRIU that works here; the message says what to do."""


class CriuFailed(RuntimeError):
    """CRIU did not do it; the message says why. What it was to write is not whole, what it was to start not there."""


class CriuKilled(CriuFailed):
    """CRIU was ended by a signal: a process that it wrote may have ended with it."""


def command() -> list[str]:
    """Return how CRIU is called: AFFINODE_CRIU, else `criu`. Raises CriuUnavailable."""
    named = shlex.split(os.environ.get(environment.CRIU, ""))
    found = shutil.which(named[0] if named else "criu", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise CriuUnavailable(
            f"hibernating needs CRIU {'.'.join(map(str, OLDEST))} or newer, and {named[0] if named else 'criu'} is not"
            f" found: install it, or say where it is by {environment.CRIU}"
        )
    return [found, *named[1:]]


_works: dict[tuple[object, ...], str] = {}  # which CRIU was found to work here, and its version


def is_name(name: str) -> bool:
    """Return whether a process of CRIU may have that name."""
    with contextlib.suppress(CriuUnavailable):
        return name in {Path(word).name[:NAME_BYTES] for word in command()}
    return False


async def check() -> str:
    """Return the version of a CRIU that works here. Raises CriuUnavailable.

    One that has worked is not asked again in this process, unless its file has changed: a kernel would wait for it.
    """
    called = command()
    status_of = os.stat(called[0])
    known = (*called, status_of.st_mtime_ns, status_of.st_ctime_ns, status_of.st_size)
    if known not in _works:
        _works[known] = await _checked(called)
    return _works[known]


async def _checked(called: Sequence[str]) -> str:
    status, said = await _to_its_end(_run([*called, "--version"]))
    version = re.search(r"Version: (\d+)\.(\d+)\S*", said)
    if status or version is None:
        raise CriuUnavailable(f"{called[0]} does not work here: {_last_line(said)}")
    if (int(version[1]), int(version[2])) < OLDEST:
        raise CriuUnavailable(f"{called[0]} is too old ({version[1]}.{version[2]}): 4.2 or newer is needed")
    status, said = await _to_its_end(_run([*called, "check", *_as_user()]))
    if status:
        raise CriuUnavailable(f"{called[0]} does not work here: {_last_line(said)}")
    return version[0][len("Version: ") :]


async def dump(pid: int, folder: Path, lock: int, size: int = 0, external: Iterable[str] = ()) -> None:
    """Write a process and all below it into a folder, and leave them stopped. Raises CriuFailed: then they run on.

    `lock`: a descriptor that CRIU has open as long as it runs, also when its keeper is killed. `size`: about how many
    bytes it will write. `external`: what leads to other programs and is written all the same, as CRIU names it.
    """
    options = ("--leave-stopped", "--skip-in-flight", "--ghost-limit", str(GHOST_BYTES))
    others = [word for each in external for word in ("--external", each)]
    await _carry_out("dump", folder, lock, size, ["-t", str(pid), *options, *others])


async def restore(folder: Path, lock: int, size: int = 0) -> None:
    """Start what `dump` wrote, with the same process ids, and leave it stopped. `size`: about how many bytes it reads.

    Raises CriuFailed: nothing is there, unless CRIU was killed.
    """
    await _carry_out("restore", folder, lock, size, ["--restore-detached", "--leave-stopped"])


def patience_for(size: int) -> float:
    """Return for how many seconds CRIU may work on so many bytes."""
    return PATIENCE_S + size / BYTES_A_SECOND


async def try_out() -> str:
    """Write a small process to disk and start it again; return CRIU's version. Raises CriuUnavailable: that failed."""
    version = await check()
    with tempfile.TemporaryDirectory(prefix="affinode-criu-") as folder:
        sleeper = subprocess.Popen(
            ["sleep", "600"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        process = Path(folder) / "process"
        process.mkdir(mode=0o700)
        try:
            await dump(sleeper.pid, process, lock)
            sleeper.kill()
            sleeper.wait()
            await restore(process, lock)
            os.kill(sleeper.pid, signal.SIGKILL)
        except CriuFailed as error:
            raise CriuUnavailable(str(error)) from None
        finally:
            os.close(lock)
            sleeper.kill()  # unless it has ended
            sleeper.wait()
    return version


def end_at(folder: Path) -> bool:
    """End each process of CRIU that works on a folder, whichever keeper started it; return whether there was one.

    `folder`: its name without symbolic links.

    CRIU tries Linux out in processes of its own. If it is killed then, they stay, stopped, and have the image locked.
    What it is about to make a kernel of ends with it: it may have none of CRIU's memory any more.
    """
    found: list[ProcessName] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if not is_own(int(path.parent.name)):
                continue
            words = path.read_bytes().split(b"\0")
            if b"-D" in words and os.fsencode(folder) in words:
                found += tree.tree_of(int(path.parent.name))
    tree.kill(found)
    return bool(found)


def is_own(pid: int) -> bool:
    """Return whether a process is this user's or root's: the command line of another's may never answer."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1]) in (0, os.geteuid())
    return False


async def _end_all_at(folder: Path) -> None:
    end = time.monotonic() + KILLED_S
    while end_at(folder) and time.monotonic() < end:
        await asyncio.sleep(LOOK_EVERY_S)


def advice() -> str:
    """Return the one command that lets CRIU work here, for a user or an administrator."""
    try:
        called = command()
    except CriuUnavailable:
        return "Install CRIU 4.2 or newer: apt install criu, dnf install criu, or https://criu.org/Packages"
    if is_privileged():
        return f"CRIU's own words: {shlex.join([*called, 'check'])}"
    if os.geteuid() == 0:
        return "Give the container the capability SYS_ADMIN, or CHECKPOINT_RESTORE and SETPCAP."
    if len(called) > 1:
        return (
            f"Name CRIU itself by {environment.CRIU}: started by another program it has no rights of its own."
        )
    return f"sudo setcap {CAPABILITIES} {called[0]}"


def is_privileged() -> bool:
    """Return whether CRIU may do all that root may: root in many a container may not."""
    return os.geteuid() == 0 and bool(capabilities(os.getpid()) >> ADMIN & 1)


def capabilities(pid: int | str) -> int:
    """Return the capabilities that a process may use, as a set of bits; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


async def _carry_out(action: str, folder: Path, lock: int, size: int, options: Sequence[str]) -> None:
    called, log_name = command(), f"{action}.log"
    with _opened(folder) as written, _beside(written) as work:
        name = Path(os.readlink(by_descriptor(written)))
        log = by_descriptor(work) / log_name
        log.unlink(missing_ok=True)
        # CRIU gets the folders themselves, by descriptors. The last -D counts; the first one is for `end_at`.
        folders = ["-D", str(name), "-D", str(by_descriptor(written)), "-W", str(by_descriptor(work))]
        whole = [*called, action, *folders, "-o", log_name, *COMMON, *_as_user(), *options]
        running = _run_for(patience_for(size), whole, name, lock, written, work)
        status, said = await _to_its_end(running)
        if status < 0:
            await _end_all_at(name)
            raise CriuKilled(f"CRIU was ended by {signal.Signals(-status).name}")
        if status:
            with contextlib.suppress(OSError):
                said += log.read_text(errors="replace")
            raise CriuFailed(reason(said, called[0]))


@contextlib.contextmanager
def _opened(folder: Path | str, above: int | None = None) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder, flags, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _beside(written: int) -> Iterator[int]:
    """Yield a descriptor of the folder for CRIU's logs, which is made at its first use."""
    with _opened("..", written) as above:
        with contextlib.suppress(FileExistsError):
            os.mkdir(WORK, 0o700, dir_fd=above)
        with _opened(WORK, above) as work:
            yield work


async def _run_for(
    patience_s: float, called: Sequence[str], folder: Path, *descriptors: int
) -> tuple[int, str]:
    """Run CRIU; one that hangs is ended with all that it has started, which would be no child of it afterwards."""
    running = asyncio.ensure_future(_run(called, *descriptors))
    if not (await asyncio.wait({running}, timeout=patience_s))[0]:
        await _end_all_at(folder)
        running.cancel()
        await asyncio.wait({running})
        raise CriuFailed(f"CRIU came to no end within {patience_s:.0f} s")
    return running.result()


def reason(said: str, called: str) -> str:
    """Return in words why CRIU refused, by what it wrote."""
    errors = [line for line in said.splitlines() if "Error" in line and not HARMLESS.search(line)]
    for pattern, words in REASONS:
        for line in errors:
            if found := re.search(pattern, line):
                named = found.groupdict()
                what = named.get("what") or named.get("other") or "?"
                return words.format(what=what, command=called)
    return f"CRIU says: {_last_line(chr(10).join(errors[:1]) or said)}"


def _as_user() -> list[str]:
    return [] if is_privileged() else ["--unprivileged"]


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return re.sub(r"^\([\d.]+\)\s*", "", lines[-1]) if lines else "it says nothing"


async def _to_its_end(work: Awaitable[T]) -> T:
    """Wait for CRIU's end also where this is cancelled.

    CRIU has code of its own in the process that it writes: if it is killed then, the process may die of that. And what
    it has started itself, as for its check, would live on.
    """
    done = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await done
        raise


async def _run(called: Sequence[str], *descriptors: int) -> tuple[int, str]:
    """Run a program to its end, whatever it leaves; it is killed if this is cancelled."""
    environ = {
        name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")
    }
    with tempfile.TemporaryFile() as said:  # no pipe: what a killed CRIU leaves would have its other end open
        try:
            process = await asyncio.create_subprocess_exec(
                *UNDISTURBED,
                *called,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=asyncio.subprocess.STDOUT,
                env=environ,
                pass_fds=descriptors,
            )
        except OSError as error:
            return 1, f"Error: {error}"
        try:
            status = await process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=KILLED_S)
            raise
        said.seek(0)
        return status, said.read().decode(errors="replace")

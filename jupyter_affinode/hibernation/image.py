"""An image: one folder, which a manifest makes whole.

| file | what it is |
|---|---|
| `process/` | what CRIU wrote, contents of memory compressed (pages.py) |
| `criu/` | CRIU's logs |
| `gpu-PID.N` | what the process had on the GPU, written by its shim, which knows each part's digest |
| `away` | there while shims must stay away from their controller: until the kernel runs again |
| `unheard` | there while the kernel must publish no output, since what it says would be lost |
| `manifest.json` | written last: with it the image is whole, without it the image is nothing |
| `waking.json` | the manifest of an image that CRIU starts processes from, which have done nothing yet |
| `woken.json` | the manifest of an image that was woken: its process lives, or did |
| `semaphores.json` | names that are there while CRIU writes (semaphores.py) |
| `in-use` | locked while CRIU works on the image, by CRIU itself: it may outlive the keeper that called it |
| `warned` | when it was said that the image will be deleted by age |

What images of one user have in common of GPU memory is in one file with a name in each of them (hard links,
shim/src/host/pack.h). So each image is whole by itself, and can be deleted or copied as any folder.

The manifest names each of CRIU's files with size and digest, and is signed by a key that the user has elsewhere: an
image that was changed is refused, since it says what its process may do. What was compared is the folder itself, held
by a descriptor (`Image.held`), and CRIU gets that: a name may lead to another folder by then.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import private_folders
from ..keeping.processes import ProcessName
from . import criu_files, files, pages, semaphores, tree
from .disk import in_words, sync
from .files import Known, Saved
from .kernel_processes import Processes
from .machine import Origin, this_machine
from .pages import Packed, Packing, PagesRefused, PlainPages
from .signing import signature_of

VERSION = 3
PROCESS, AWAY, UNHEARD = "process", "away", "unheard"
MANIFEST, WAKING, WOKEN = "manifest.json", "waking.json", "woken.json"
IN_USE, WARNED, SEMAPHORES = "in-use", "warned", "semaphores.json"
GPU_PREFIX = "gpu-"
CORE = re.compile(r"core-(\d+)\.img")  # CRIU's of each process and thread
FILE_NAME = re.compile(rf"{PROCESS}/[A-Za-z0-9_][A-Za-z0-9_.-]*")
MANIFEST_BYTES_MAX = 1 << 30  # with all that the kernel said and no server has delivered
CHANGED = "a file of it was changed, or the disk is damaged"
PART_BYTES = 8 << 20  # hashed by one thread
THREADS = 8


class ImageRefused(RuntimeError):
    """An image is not whole, was changed, or cannot be woken on this machine; the message says which."""


@dataclass(frozen=True)
class Manifest:
    """What is known of an image."""

    record: dict[str, Any]  # of the kernel (keeping/records.py)
    undelivered: dict[str, Any]  # what the kernel said and no server has delivered (keeping/messages.py)
    processes: list[ProcessName]
    ids: list[int]  # of processes and threads, which must be free
    made_at: float  # by the time of day
    monotonic_s: float  # the machine's clock that goes on by itself, as it was
    machine: dict[str, str]
    files: dict[str, list[Any]]  # below the image: size, digest
    gpu_bytes: int
    pages: dict[str, Packed] = field(default_factory=dict)  # below `process/`
    needed: Known = field(default_factory=dict)  # files elsewhere that its processes have open
    saved: Saved = field(default_factory=dict)  # of these, those that a restart of the machine removes
    processors: dict[str, list[int]] = field(default_factory=dict)  # by thread: see tree.bound_to_processors
    version: int = VERSION
    has_cuda: bool = False
    environ: str = ""  # the digest of its first process's environment, as /proc shows it

    @property
    def plain_bytes(self) -> int:
        """What contents of memory take while CRIU reads them."""
        return sum(each.size for each in self.pages.values())

    @property
    def origin(self) -> Origin:
        """Where it was made."""
        return Origin(self.machine, self.monotonic_s, self.has_cuda)


class Image:
    """One image, whole or not."""

    def __init__(self, folder: Path):
        """Name a folder; nothing is made."""
        self.folder = folder
        self._at = folder  # by a descriptor while it is held

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have all that follows be about the folder that is there now. Raises ImageRefused.

        It must be this user's alone, and no other user may be able to exchange it.
        """
        if self._at != self.folder:
            yield
            return
        with contextlib.ExitStack() as opened:
            try:
                at = opened.enter_context(private_folders.opened(self.folder, private_folders.IMAGES))
            except FileNotFoundError as error:
                raise ImageRefused(f"it is gone: there is no {error.filename}") from None
            except OSError as error:
                raise ImageRefused(in_words(error)) from None
            self._at = at
            try:
                yield
            finally:
                self._at = self.folder

    @property
    def process_folder(self) -> Path:
        """The folder of what CRIU writes."""
        return self._at / PROCESS

    @property
    def process_name(self) -> Path:
        """The name of that folder without symbolic links, by which a CRIU that works on it is found."""
        return Path(os.path.realpath(self._at)) / PROCESS

    @property
    def unheard_file(self) -> Path:
        """The file that is there while the kernel must publish no output."""
        return self.folder / UNHEARD

    @property
    def is_whole(self) -> bool:
        """Whether it can be woken."""
        return (self._at / MANIFEST).exists()

    @property
    def was_woken(self) -> bool:
        """Whether its process was started again from it."""
        return (self._at / WOKEN).exists()

    @property
    def is_being_woken(self) -> bool:
        """Whether CRIU starts its process, or did, and the process has done nothing yet."""
        return (self._at / WAKING).exists()

    @property
    def warned_at(self) -> float | None:
        """When it was said that it will be deleted by age, by the time of day; None if it was not."""
        with contextlib.suppress(OSError):
            return (self._at / WARNED).lstat().st_mtime
        return None

    @property
    def bytes(self) -> int:
        """What it takes on the disk. What it shares with others counts in each of them in part, and once in all."""
        return sum(status.st_blocks * 512 // status.st_nlink for status in self.files())

    @property
    def own_bytes(self) -> int:
        """What the disk gets back when it is deleted."""
        return sum(status.st_blocks * 512 for status in self.files() if status.st_nlink == 1)

    def files(self) -> Iterator[os.stat_result]:
        """Yield the status of each of its files."""
        for path in self._at.rglob("*"):
            with contextlib.suppress(OSError):
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    yield status

    def begin(self) -> None:
        """Make it, for a kernel that has none or has an older one: what the GPU's files have stays. Raises OSError."""
        private_folders.make_folder(self.folder, private_folders.IMAGES)
        with private_folders.opened(self.folder, private_folders.IMAGES) as at:
            for name in (MANIFEST, WAKING, WOKEN, WARNED):
                (at / name).unlink(missing_ok=True)
            shutil.rmtree(at / PROCESS, ignore_errors=True)
            (at / PROCESS).mkdir(mode=0o700)
            for name in (AWAY, UNHEARD):
                (at / name).touch(mode=0o600)

    def name_semaphores(self, pids: Iterable[int]) -> None:
        """Have CRIU find the named semaphores of processes while it writes. Raises OSError."""
        semaphores.link_shown_names(pids, self._at / SEMAPHORES)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[int]:
        """Have it for CRIU; yield the descriptor that CRIU gets. Raises OSError if another CRIU works on it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._at / IN_USE, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        except BlockingIOError:
            raise OSError("CRIU works on its image still: try again in a while") from None
        finally:
            os.close(descriptor)

    def is_in_use(self) -> bool:
        """Return whether CRIU works on it, for a keeper that may have been killed."""
        try:
            with self.in_use():
                return False
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def note_warned(self) -> None:
        """Note that it was said that it will be deleted by age. Raises OSError."""
        (self._at / WARNED).touch(mode=0o600)

    def let_back(self) -> None:
        """Let the shims find their controller again."""
        (self._at / AWAY).unlink(missing_ok=True)

    def let_speak(self) -> None:
        """Let the kernel publish its output: it is heard."""
        (self._at / UNHEARD).unlink(missing_ok=True)

    def keep_gpu_file(self) -> None:
        """Its process lives, and what was on the GPU is back: only the shims' files are needed, for the next time."""
        self.let_back()
        self.let_speak()
        (self._at / WOKEN).unlink(missing_ok=True)
        shutil.rmtree(self.process_folder, ignore_errors=True)

    def be_nothing(self) -> None:
        """Count no more from now on: its process lives, and nothing is left to do but to `give_up` its files."""
        self.let_back()
        self.let_speak()
        (self._at / WOKEN).unlink(missing_ok=True)

    def give_up(self) -> None:
        """Delete it: it will not become whole, or is not needed any more. What a process has open stays for that."""
        self.let_back()
        self.let_speak()
        semaphores.remove_shown_names(self._at / SEMAPHORES)
        with (
            contextlib.suppress(OSError),
            private_folders.opened(self.folder.parent, private_folders.OWN) as store,
        ):
            shutil.rmtree(store / self.folder.name, ignore_errors=True)

    def plain_pages(self, size: int) -> PlainPages:
        """Return the place for contents of memory as CRIU writes and reads them: about so many bytes."""
        return PlainPages(self.process_folder, size)

    def packing(self) -> Packing:
        """Return what compresses contents of memory, which CRIU is about to write."""
        return Packing(self.process_folder)

    def unpack(self, manifest: Manifest, plain: PlainPages) -> None:
        """Have contents of memory there for CRIU, compared with the manifest. Raises ImageRefused and OSError."""
        try:
            pages.unpack(self.process_folder, manifest.pages, plain)
        except PagesRefused as refused:
            raise ImageRefused(f"{CHANGED}: {PROCESS}/{refused}") from None

    def sync_gpu_memory(self) -> None:
        """Have what the shims wrote on the disk. Raises OSError."""
        with ThreadPoolExecutor(THREADS) as disk:
            for _ in disk.map(sync, self._gpu_files()):
                pass

    def _gpu_files(self) -> list[Path]:
        return [path for path in self._at.glob(f"{GPU_PREFIX}*") if path.is_file()]

    def finish(self, **known: Any) -> Manifest:
        """Make it whole: its processes are stopped, their memory and that of the GPU is on the disk. Raises OSError.

        `known`: what the manifest says, `pages` among it.
        """
        pids = [process.pid for process in known["processes"]]
        named = semaphores.own_names(pids)
        semaphores.remove_shown_names(self._at / SEMAPHORES)
        kernel = Processes(pids)
        others = files.needed_by(pids, kernel.outer, kernel.logs) | {path: [] for path in named.values()}
        criu_files.relax(self.process_folder, others, named)
        criu_files.mute(self.process_folder, kernel.outer.values())
        threads = [thread for pid in pids for thread in tree.threads_of(pid)]
        criu_files.call_again(self.process_folder, threads)
        criu_files.outlive_parent(self.process_folder, tree.threads_of(pids[0]))
        saved = files.save(others, self.process_folder)
        pages.remove_plain(self.process_folder)
        written = sorted(
            path
            for path in self.process_folder.rglob("*")
            if path.is_file() and path.name not in known["pages"]
        )
        with ThreadPoolExecutor(THREADS) as disk:  # while the digests are computed
            syncs = [disk.submit(sync, path) for path in (*written, self.process_folder)]
            digests = {
                str(path.relative_to(self._at)): [path.stat().st_size, _digest(path)] for path in written
            }
            for each in syncs:
                each.result()
        cores = {int(found[1]) for path in written if (found := CORE.fullmatch(path.name))}
        ids = sorted(cores | tree.groups_of(pids))
        manifest = Manifest(
            files=digests,
            ids=ids,
            processors=tree.bound_to_processors(ids),
            needed=others,
            saved=saved,
            gpu_bytes=sum(path.stat().st_blocks * 512 for path in self._gpu_files()),
            made_at=time.time(),
            monotonic_s=time.clock_gettime(time.CLOCK_MONOTONIC),
            machine=this_machine(),
            **known,
        )
        self._write(MANIFEST, manifest)
        for above in (self.folder.parent, self.folder.parent.parent):  # they may be new
            with contextlib.suppress(PermissionError):
                sync(above)
        return manifest

    def manifest(self) -> Manifest:
        """Return its manifest, signed by this user. Raises ImageRefused."""
        name = MANIFEST if self.is_whole else WAKING if self.is_being_woken else WOKEN
        try:
            told = json.loads(_read(self._at / name, MANIFEST_BYTES_MAX))
            signature = told.pop("signature")
            if told.get("version") != VERSION:
                raise ImageRefused("it was written by another release")
            if not hmac.compare_digest(signature, signature_of(told)):
                raise ImageRefused("its manifest was changed, or another user made it")
            named = [*told["files"], *(f"{PROCESS}/{each}" for each in told["pages"])]
            if strange := [each for each in named if not FILE_NAME.fullmatch(each)]:
                raise ImageRefused(f"its manifest names a file elsewhere: {strange[0]!r}")
            processes = [ProcessName(**each) for each in told["processes"]]
            packed = {name: Packed(**each) for name, each in told["pages"].items()}
            return Manifest(**{**told, "processes": processes, "pages": packed})
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            why = in_words(error) if isinstance(error, OSError) else "it is damaged"
            raise ImageRefused(f"its manifest cannot be read: {why}") from None

    def verify(self, manifest: Manifest) -> None:
        """Compare what CRIU wrote with the manifest, but for contents of memory. Raises ImageRefused."""
        with self.held():
            self._verify(manifest)

    def _verify(self, manifest: Manifest) -> None:
        if not private_folders.is_private(self.process_folder):
            raise ImageRefused(f"{self.process_name} is no folder of yours alone")
        pages.remove_plain(self.process_folder)  # of a wake that was killed
        there = {str(path.relative_to(self._at)) for path in self.process_folder.rglob("*")}
        known = {*manifest.files, *(f"{PROCESS}/{each}" for each in manifest.pages)}
        if extra := sorted(there - known):
            raise ImageRefused(f"there is a file in it that was not written with it: {extra[0]}")
        for name, (size, digest) in manifest.files.items():
            path = self._at / name
            try:
                is_same = _is_plain(path.lstat(), size) and _digest(path) == digest
            except OSError:
                raise ImageRefused(f"a file of it is gone: {name}") from None
            if not is_same:
                raise ImageRefused(f"{CHANGED}: {name}")

    def note_waking(self) -> None:
        """Note that its process is about to be started from it. Raises OSError."""
        self._is_now(WAKING, MANIFEST)

    def note_woken(self) -> None:
        """Note that its process is about to go on. Raises OSError."""
        self._is_now(WOKEN, WAKING)

    def not_woken(self) -> None:
        """Note that it counts again: its process was not started, or has ended. Raises OSError."""
        self._is_now(MANIFEST, WAKING if self.is_being_woken else WOKEN)

    def _is_now(self, name: str, before: str) -> None:
        os.rename(self._at / before, self._at / name)
        sync(f"{self._at}/.")

    def _write(self, name: str, manifest: Manifest) -> None:
        told = asdict(manifest)
        path = self._at / f".{name}"
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({**told, "signature": signature_of(told)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path, self._at / name)
        sync(f"{self._at}/.")


def verify_private(folder: Path) -> None:
    """Raise ImageRefused unless a folder is this user's alone, and no other user can put another in its place."""
    try:
        private_folders.verify_folder(folder, private_folders.IMAGES)
    except OSError as error:
        raise ImageRefused(in_words(error)) from None


def _is_plain(status: os.stat_result, size: int) -> bool:
    """Return whether a file is one that CRIU wrote for this user: no link, no pipe, and of that size."""
    is_ours = status.st_uid == os.geteuid() and status.st_nlink == 1
    return stat.S_ISREG(status.st_mode) and is_ours and status.st_size == size


def _read(path: Path, most: int) -> bytes:
    """Return what is in a plain file of this user. Raises OSError, also for anything else of that name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not _is_plain(status, status.st_size) or status.st_size > most:
            raise OSError(f"{path} is not a file that this user's keeper wrote")
        return file.read(most)


def _digest(path: Path) -> str:
    """Return the digest of a file. Several threads read its parts."""
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def of_part(offset: int) -> bytes:
        return hashlib.blake2b(os.pread(descriptor, PART_BYTES, offset), digest_size=32).digest()

    try:
        offsets = range(0, size, PART_BYTES)
        if len(offsets) < 2:
            parts = map(of_part, offsets)
            return hashlib.blake2b(b"".join(parts), digest_size=32).hexdigest()
        with ThreadPoolExecutor(THREADS) as pool:
            return hashlib.blake2b(b"".join(pool.map(of_part, offsets)), digest_size=32).hexdigest()
    finally:
        os.close(descriptor)

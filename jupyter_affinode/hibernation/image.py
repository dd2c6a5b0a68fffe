"""An image: one folder, which a manifest makes whole.

| file | what it is |
|---|---|
| `process/` | what CRIU wrote |
| `gpu-PID` | what the process had on the GPU, written by its shim, which knows each part's digest |
| `away` | there while shims must stay away from their controller: the process is being written, or is to be woken |
| `manifest.json` | written last: with it the image is whole, without it the image is nothing |
| `woken.json` | the manifest of an image that was woken: its process lives, or did |

The manifest names each of CRIU's files with size and digest, and is signed by a key that the user has elsewhere: an
image that was changed is refused, since it says what its process may do.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import environment
from ..keeping.processes import ProcessName

VERSION = 1
PROCESS, AWAY, MANIFEST, WOKEN = "process", "away", "manifest.json", "woken.json"
GPU_PREFIX = "gpu-"
PAGES = "pages-"  # CRIU's files with contents of memory
KEY_NAME, KEY_BYTES = "image.key", 32
PART_BYTES = 8 << 20  # hashed by one thread
THREADS = 8
DRIVER = Path("/proc/driver/nvidia/version")


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
    version: int = VERSION
    has_cuda: bool = False


class Image:
    """One image, whole or not."""

    def __init__(self, folder: Path):
        """Name a folder; nothing is made."""
        self.folder = folder

    @property
    def process_folder(self) -> Path:
        """The folder of what CRIU writes."""
        return self.folder / PROCESS

    @property
    def is_whole(self) -> bool:
        """Whether it can be woken."""
        return (self.folder / MANIFEST).exists()

    @property
    def was_woken(self) -> bool:
        """Whether its process was started again from it."""
        return (self.folder / WOKEN).exists()

    @property
    def is_away(self) -> bool:
        """Whether shims must stay away from their controller."""
        return (self.folder / AWAY).exists()

    @property
    def bytes(self) -> int:
        """What it takes on the disk."""
        total = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_blocks * 512
        return total

    def begin(self) -> None:
        """Make it, for a kernel that has none or has an older one: what the GPU's files have stays. Raises OSError."""
        environment.make_folder(self.folder)
        for name in (MANIFEST, WOKEN):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.process_folder, ignore_errors=True)
        self.process_folder.mkdir(mode=0o700)
        (self.folder / AWAY).touch(mode=0o600)

    def let_back(self) -> None:
        """Let the shims find their controller again."""
        (self.folder / AWAY).unlink(missing_ok=True)

    def keep_gpu_file(self) -> None:
        """Its process lives, and what was on the GPU is back: only the shims' files are needed, for the next time."""
        self.let_back()
        (self.folder / WOKEN).unlink(missing_ok=True)
        shutil.rmtree(self.process_folder, ignore_errors=True)

    def give_up(self) -> None:
        """Delete it: it will not become whole, or is not needed any more. What a process has open stays for that."""
        self.let_back()
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self, **known: Any) -> Manifest:
        """Have all of it on the disk, and make it whole. Raises OSError."""
        written = [
            path
            for path in sorted(self.process_folder.rglob("*"))
            if path.is_file() and path.suffix != ".log"
        ]
        gpu = [path for path in self.folder.glob(f"{GPU_PREFIX}*") if path.is_file()]
        with ThreadPoolExecutor(THREADS) as disk:  # while the digests are computed
            syncs = [disk.submit(_sync, path) for path in (*gpu, *written, self.process_folder)]
            files = {
                str(path.relative_to(self.folder)): [path.stat().st_size, _digest(path)] for path in written
            }
            for sync in syncs:
                sync.result()
        manifest = Manifest(
            files=files,
            gpu_bytes=sum(path.stat().st_blocks * 512 for path in gpu),
            made_at=time.time(),
            monotonic_s=time.clock_gettime(time.CLOCK_MONOTONIC),
            machine=this_machine(),
            **known,
        )
        self._write(MANIFEST, manifest)
        return manifest

    def manifest(self) -> Manifest:
        """Return its manifest, signed by this user. Raises ImageRefused."""
        name = MANIFEST if self.is_whole else WOKEN
        try:
            told = json.loads((self.folder / name).read_bytes())
            signature = told.pop("signature")
            if told.get("version") != VERSION:
                raise ImageRefused("it was written by another release")
            if not hmac.compare_digest(signature, _signature(told)):
                raise ImageRefused("its manifest was changed, or another user made it")
            return Manifest(**{**told, "processes": [ProcessName(**each) for each in told["processes"]]})
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ImageRefused(f"its manifest cannot be read ({type(error).__name__})") from None

    def verify(self, manifest: Manifest, *, pages: bool) -> None:
        """Compare what CRIU wrote with the manifest: contents of memory, or all else. Raises ImageRefused."""
        verify_private(self.folder)
        there = {
            str(path.relative_to(self.folder))
            for path in self.process_folder.rglob("*")
            if path.suffix != ".log"
        }
        if extra := sorted(there - manifest.files.keys()):
            raise ImageRefused(f"there is a file in it that was not written with it: {extra[0]}")
        for name, (size, digest) in manifest.files.items():
            if (PAGES in name) is not pages:
                continue
            path = self.folder / name
            try:
                status = path.lstat()
                is_same = stat.S_ISREG(status.st_mode) and status.st_size == size and _digest(path) == digest
            except OSError:
                raise ImageRefused(f"a file of it is gone: {name}") from None
            if not is_same:
                raise ImageRefused(f"a file of it was changed, or the disk is damaged: {name}")

    def note_woken(self) -> None:
        """Note that its process is about to be started from it. Raises OSError."""
        os.rename(self.folder / MANIFEST, self.folder / WOKEN)
        _sync(self.folder)

    def not_woken(self) -> None:
        """Note that its process could not be started. Raises OSError."""
        os.rename(self.folder / WOKEN, self.folder / MANIFEST)
        _sync(self.folder)

    def _write(self, name: str, manifest: Manifest) -> None:
        told = asdict(manifest)
        path = self.folder / f".{name}"
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({**told, "signature": _signature(told)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path, self.folder / name)
        _sync(self.folder)


def images_in(store: Path) -> list[Image]:
    """Return the images of a store; [] if there is none. Raises ImageRefused if others may write to it."""
    if not store.exists() and not store.is_symlink():
        return []
    verify_private(store)
    return [Image(path) for path in sorted(store.iterdir()) if path.is_dir() and not path.is_symlink()]


def image_of(store: Path, kernel_id: str) -> Image:
    """Return the place of a kernel's image."""
    return Image(store / kernel_id.replace("/", "_"))


def verify_private(folder: Path) -> None:
    """Raise ImageRefused unless a folder is this user's, and no other may enter it."""
    try:
        environment.verify_owned(folder, private=True)
    except OSError as error:
        raise ImageRefused(str(error)) from None


def this_machine() -> dict[str, str]:
    """Return what an image needs to find again: the release of Linux, the processor's features, the GPUs' driver."""
    features = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                features = " ".join(sorted(line.partition(":")[2].split()))
                break
    driver = ""
    with contextlib.suppress(OSError):
        driver = DRIVER.read_text().splitlines()[0]
    return {
        "architecture": os.uname().machine,
        "kernel": os.uname().release,
        "features": features,
        "driver": driver,
        "boot": environment.boot_id(),
    }


def objection_to_waking(manifest: Manifest) -> str | None:
    """Return why an image cannot be woken on this machine as it is now; None: nothing is in the way."""
    here, there = this_machine(), manifest.machine
    if here["architecture"] != there["architecture"]:
        return f"it was made on a processor of another kind ({there['architecture']})"
    if lacks := set(there["features"].split()) - set(here["features"].split()):
        return f"this machine's processor lacks what the kernel may use ({', '.join(sorted(lacks)[:3])})"
    if manifest.has_cuda and here["driver"] != there["driver"]:
        return f"it was made with another GPU driver ({there['driver'] or 'none'}); here is {here['driver'] or 'none'}"
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    if os.geteuid() != 0 and now < manifest.monotonic_s:
        return (
            f"this machine's clock is {manifest.monotonic_s - now:.0f} s behind the kernel's: the machine was started"
            " again, or is another one. Only root can wake it so"
        )
    return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _signature(told: dict[str, Any]) -> str:
    text = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(_key(), text, hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Return the user's key, which is made at its first use. Raises OSError."""
    folder = environment.key_folder()
    environment.make_folder(folder)
    path = folder / KEY_NAME
    with contextlib.suppress(FileExistsError):
        partial = folder / f".{KEY_NAME}.{os.getpid()}"
        descriptor = os.open(
            partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)  # the first one stays
        finally:
            partial.unlink(missing_ok=True)
    return path.read_bytes()

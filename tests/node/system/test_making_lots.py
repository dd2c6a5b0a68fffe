"""One lot: touched, cut for every process that has its descriptor, and made only where host memory allows."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from fake_shim import MIB
from lot_stock import allocated, descriptors

from jupyter_affinode.node.system import lot_memory
from jupyter_affinode.node.system.huge_tmpfs import NoHugeTmpfs
from jupyter_affinode.node.system.lot_memory import LotFailed, make_lot

pytestmark = pytest.mark.usefixtures("ordinary_pages")
FREE_HUGE_BYTES = lot_memory.free_huge_bytes


@pytest.fixture
def memory_files(monkeypatch):
    """As where no tmpfs of huge pages can be had."""

    def refuse(size):
        raise NoHugeTmpfs("not in this test")

    monkeypatch.setattr(lot_memory, "open_huge_file", refuse)


def test_a_lot_is_touched_zeroed_and_cannot_be_grown_or_sealed_by_its_borrower(memory_files):
    lot = make_lot(64 * MIB, lambda size: True)
    assert (lot.bytes, allocated(lot.descriptor)) == (64 * MIB, 64 * MIB)
    with mmap.mmap(lot.descriptor, lot.bytes) as view:
        assert view[:] == bytes(lot.bytes)
    for forbidden in (
        lambda: os.ftruncate(lot.descriptor, 65 * MIB),
        lambda: fcntl.fcntl(lot.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK),
    ):
        with pytest.raises(PermissionError):
            forbidden()
    lot.revoke()


def test_a_revoked_lot_is_empty_for_every_process_that_still_has_its_descriptor(memory_files):
    lot = make_lot(32 * MIB, lambda size: True)
    copy = os.dup(lot.descriptor)
    os.pwrite(copy, b"contents", 0)
    lot.revoke()
    assert (os.fstat(copy).st_size, allocated(copy)) == (0, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(copy, 4096)
    os.close(copy)


def test_a_process_that_uses_a_revoked_lot_gets_a_signal_and_no_memory():
    code = """
    import mmap, os
    from jupyter_affinode.node.system.lot_memory import make_lot
    lot = make_lot(32 << 20, lambda size: True)
    view = mmap.mmap(lot.descriptor, lot.bytes)
    lot.revoke()
    view[0] = 1
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60, check=False)
    assert done.returncode == -signal.SIGBUS


def test_a_lot_that_meets_a_shortage_on_the_way_takes_nothing():
    before, asked = descriptors(), []

    def may_take(size):
        asked.append(size)
        return len(asked) < 3

    with pytest.raises(LotFailed, match="short"):
        make_lot(128 * MIB, may_take, threads=1)
    assert (asked, descriptors()) == ([32 * MIB] * 3, before)


def test_threads_ask_for_what_all_of_them_are_about_to_touch(monkeypatch):
    asked, third = [], threading.Event()

    def may_take(size):
        asked.append(size)
        if len(asked) == 3:
            third.set()
        return len(asked) < 3

    class SlowLibc:
        def madvise(self, *_):
            return 0 if third.wait(30) else -1

    monkeypatch.setattr(lot_memory, "_libc", SlowLibc())
    with pytest.raises(LotFailed, match="short"):
        make_lot(256 * MIB, may_take, threads=3)
    assert asked == [32 * MIB, 64 * MIB, 96 * MIB]


def test_several_threads_touch_every_page():
    before = descriptors()
    lot = make_lot(160 * MIB, lambda size: True, threads=3)
    assert allocated(lot.descriptor) == 160 * MIB
    lot.revoke()
    assert descriptors() == before


def test_before_linux_5_14_the_pages_are_written_instead(monkeypatch):
    class OldLibc:
        def madvise(self, *_):
            lot_memory.ctypes.set_errno(lot_memory.errno.EINVAL)
            return -1

    monkeypatch.setattr(lot_memory, "_libc", OldLibc())
    lot = make_lot(32 * MIB, lambda size: True)
    assert allocated(lot.descriptor) == 32 * MIB
    with mmap.mmap(lot.descriptor, lot.bytes) as view:
        assert view[:] == bytes(lot.bytes)
    lot.revoke()


def test_free_huge_pages_are_those_not_promised_yet(tmp_path):
    (tmp_path / "free_hugepages").write_text("100\n")
    (tmp_path / "resv_hugepages").write_text("60\n")
    assert FREE_HUGE_BYTES(tmp_path) == 80 * MIB
    assert FREE_HUGE_BYTES(tmp_path / "absent") == 0


@pytest.mark.skipif(FREE_HUGE_BYTES() < 32 * MIB, reason="no huge pages are set aside here")
def test_huge_pages_are_taken_where_there_are_enough(monkeypatch):
    monkeypatch.setattr(lot_memory, "free_huge_bytes", FREE_HUGE_BYTES)
    free = FREE_HUGE_BYTES()
    lot = make_lot(32 * MIB, lambda size: False)
    assert (lot.is_huge, os.fstat(lot.descriptor).st_blksize) == (True, 2 * MIB)
    assert free - FREE_HUGE_BYTES() == 32 * MIB
    copy = os.dup(lot.descriptor)
    lot.revoke()
    assert FREE_HUGE_BYTES() == free
    with pytest.raises(PermissionError):
        os.ftruncate(copy, 2 * MIB)
    os.close(copy)

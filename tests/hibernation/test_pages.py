"""Contents of processes' memory in an image: compressed while they are written, compared when they are read."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_affinode.hibernation import pages
from jupyter_affinode.hibernation.pages import FRAME_BYTES, Packing, PagesRefused, PlainPages, unpack

HEAD = bytes(8) + (2).to_bytes(4, "little") + b"\x08"  # of CRIU's pagemap: then the number of its file
NAME = "pages-1.img"


@pytest.fixture(params=["in memory", "on the disk"])
def where(request, monkeypatch):
    """Where plain files are."""
    monkeypatch.setattr(pages, "free_memory", lambda: 1 << 60 if request.param == "in memory" else 0)
    return request.param


def contents(seed: int = 1) -> bytes:
    """What a process may have: words, noise, and many zeros."""
    noise = random.Random(seed)
    words = b"".join(b"the same word %d " % (at % 5000) for at in range(100_000))
    return b"".join(
        [words, bytes(FRAME_BYTES * 2), noise.randbytes(FRAME_BYTES + 4096), bytes(300_000), words[:4096]]
    )


def packed(folder: Path, **files: bytes) -> dict[str, pages.Packed]:
    """Compress these files, which are gone then."""
    with PlainPages(folder, 0):
        for name, content in files.items():
            (folder / f"{name.replace('_', '-')}.img").write_bytes(content)
        packing = Packing(folder)
        packing.end(is_in_vain=False)
        return packing.run()


def test_what_was_written_is_read_and_takes_less_room(tmp_path, where):
    content = contents()
    told = packed(tmp_path, pages_1=content, pages_2=b"x" * 4096, pages_3=bytes(FRAME_BYTES))
    assert (
        {path.name for path in tmp_path.iterdir()} == set(told) == {f"pages-{n}.img.zst" for n in (1, 2, 3)}
    )
    on_disk = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
    assert FRAME_BYTES < on_disk < FRAME_BYTES * 1.2, "noise takes its room, zeros none"
    with PlainPages(tmp_path, len(content)) as plain:
        unpack(tmp_path, told, plain)
        assert (tmp_path / NAME).is_symlink() == (where == "in memory")
        assert (tmp_path / NAME).read_bytes() == content
        assert (tmp_path / "pages-2.img").read_bytes() == b"x" * 4096
        assert (tmp_path / "pages-3.img").read_bytes() == bytes(FRAME_BYTES)
    assert {path.name for path in tmp_path.iterdir()} == set(told), "nothing plain is left"


def test_it_is_compressed_while_it_is_written_and_what_is_empty_is_there_if_it_is_named(tmp_path, where):
    content, noise = contents(2), random.Random(3)
    (tmp_path / "pagemap-7.img").write_bytes(HEAD + b"\x01")
    (tmp_path / "pagemap-shmem-9.img").write_bytes(HEAD + b"\x02")
    found = {}
    with PlainPages(tmp_path, 0) as plain:
        plain.offer(3)
        packing = Packing(tmp_path)
        thread = threading.Thread(target=lambda: found.update(packing.run()))
        thread.start()
        with (tmp_path / NAME).open("wb", buffering=0) as file:
            at = 0
            while at < len(content):
                at += file.write(content[at : at + noise.randrange(1, 3 << 20)])
        (tmp_path / "pages-2.img").touch()
        packing.end(is_in_vain=False)
        thread.join(timeout=60)
    assert sorted(found) == ["pages-1.img.zst", "pages-2.img.zst"]
    with PlainPages(tmp_path, len(content)) as plain:
        unpack(tmp_path, found, plain)
        assert (tmp_path / NAME).read_bytes() == content
        assert (tmp_path / "pages-2.img").read_bytes() == b""


def test_what_is_not_needed_any_more_is_not_compressed(tmp_path):
    (tmp_path / NAME).write_bytes(contents())
    packing = Packing(tmp_path)
    packing.end(is_in_vain=True)
    assert all(each.size == 0 for each in packing.run().values())


@pytest.mark.parametrize("how", ["flipped", "longer", "shorter", "gone", "link", "hard link", "fifo"])
def test_what_is_not_as_it_was_written_is_refused_by_its_name(tmp_path, where, how):
    folder = tmp_path / "process"
    folder.mkdir()
    told = packed(folder, pages_1=contents())
    path, elsewhere = folder / f"{NAME}.zst", tmp_path / "elsewhere"
    content = bytearray(path.read_bytes())
    if how in ("flipped", "longer", "shorter"):
        content[len(content) // 2] ^= how == "flipped"
        path.write_bytes({"longer": content + b"x", "shorter": content[:-1]}.get(how, content))
    else:
        path.rename(elsewhere)
    if how == "link":
        path.symlink_to(elsewhere)
    elif how == "hard link":
        os.link(elsewhere, path)
    elif how == "fifo":
        os.mkfifo(path)
    with PlainPages(folder, 0) as plain, pytest.raises(PagesRefused, match=f"{NAME}.zst"):
        unpack(folder, told, plain)
    assert not (folder / NAME).exists()


def test_each_bit_of_a_frame_counts(tmp_path, where):
    told = packed(tmp_path, pages_1=b"word " * 50)
    path = tmp_path / f"{NAME}.zst"
    content = path.read_bytes()
    for bit in range(len(content) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with PlainPages(tmp_path, 0) as plain, pytest.raises(PagesRefused):
            unpack(tmp_path, told, plain)


def test_no_room_in_memory_and_on_the_disk_is_said_before_anything_is_made(tmp_path, monkeypatch):
    told = packed(tmp_path, pages_1=contents())
    monkeypatch.setattr(pages, "free_memory", lambda: 0)
    monkeypatch.setattr(pages.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with PlainPages(tmp_path, 0) as plain, pytest.raises(OSError, match="make room in one of them"):
        unpack(tmp_path, told, plain)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.zst"]


@pytest.mark.parametrize("limit", ["max", "1000000"])
def test_the_memory_of_a_control_group_counts(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(pages, "CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("400000\n")
    free = pages.free_memory()
    assert free == 600_000 if limit != "max" else free > 1 << 20

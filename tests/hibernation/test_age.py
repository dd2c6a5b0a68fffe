"""What a keeper says of images: that they go by age, first, and why it takes one not."""

from __future__ import annotations

import logging
import os
import time

import pytest
from written_images import GONE, made

from jupyter_affinode.hibernation import image as image_module
from jupyter_affinode.hibernation import machine
from jupyter_affinode.hibernation.claims import Claims
from jupyter_affinode.hibernation.store import image_of
from jupyter_affinode.keeping import hibernated
from jupyter_affinode.keeping.hibernated import HibernatedKernels
from jupyter_affinode.keeping.processes import ProcessName
from jupyter_affinode.keeping.records import IMAGE, Owner, Record, to_json

DAY_S = 86400.0


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with an image that is two months old, kept for one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "images"
    folder.mkdir(mode=0o700)
    record = Record(
        kernel_id="one",
        kernel_name="python3",
        owner=Owner("", "/"),
        process=ProcessName(GONE.pid, 1, ""),
        process_group=None,
        connection_file="",
        connection={},
        is_managed=False,
        place=IMAGE,
        image_keep_s=30 * DAY_S,
    )
    monkeypatch.setattr(image_module.time, "time", lambda: OLD_S)
    made(folder, record=to_json(record))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


OLD_S = time.time() - 60 * DAY_S


async def test_an_image_that_is_too_old_is_deleted_a_day_after_that_was_said(store, caplog):
    caplog.set_level(logging.WARNING)
    kernels = HibernatedKernels(logging.getLogger("keeper"))
    await kernels.look_in(str(store), set())
    image = image_of(store, "one")
    assert "will be deleted by age in 24.0 hours: wake it to keep it" in caplog.text
    (known,) = kernels
    assert known.announced_end == pytest.approx(time.time() + DAY_S, abs=60)
    assert known.objection is None
    kernels.end_old()
    assert image.folder.exists() and caplog.text.count("will be deleted") == 1

    a_day_ago = time.time() - DAY_S - 1
    os.utime(image.folder / "warned", (a_day_ago, a_day_ago))
    kernels.end_old()
    assert not image.folder.exists() and list(kernels) == []
    assert "the image of kernel one is deleted: it is 60 days old" in caplog.text


async def test_an_image_that_could_not_be_woken_now_says_so_before_it_is_needed(store, monkeypatch, tmp_path):
    kernels = HibernatedKernels(logging.getLogger("keeper"))
    await kernels.look_in(str(store), set())
    (known,) = kernels
    assert known.objection is None
    (tmp_path / "version").write_text("NVRM version: 600.1\n")
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "version")
    assert known.objection is None, "it was looked at a moment ago"
    monkeypatch.setattr(hibernated, "OBJECTION_HOLDS_S", -1.0)
    assert "another GPU driver (none); here is NVRM version: 600.1" in (known.objection or "")


async def test_why_an_image_was_not_taken_is_told_when_it_is_to_be_woken(store):
    kernels, image = HibernatedKernels(logging.getLogger("keeper")), image_of(store, "one")
    assert "there is no image of it" in kernels.why_not("one")
    other = Claims()
    other.take(image)
    await kernels.look_in(str(store), set())
    assert "another keeper of yours deals with it" in kernels.why_not("one")
    other.leave(image)
    manifest = image.folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"python3", b"pythonX"))
    await kernels.look_in(str(store), set())
    assert "its manifest was changed" in kernels.why_not("one")
    store.chmod(0o755)
    await kernels.look_in(str(store), set())
    assert "others may enter" in kernels.why_not("another")

"""What a keeper says of images: that they go by age, first, and why it takes one not."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace

import pytest
from written_images import GONE, made

from jupyter_affinode.hibernation import image as image_module
from jupyter_affinode.hibernation import machine
from jupyter_affinode.hibernation.claims import Claims
from jupyter_affinode.hibernation.hibernate import CannotWake
from jupyter_affinode.hibernation.store import image_of
from jupyter_affinode.keeping import hibernated
from jupyter_affinode.keeping.life_table import State
from jupyter_affinode.keeping.lives import Lives, NoSuchKernel
from jupyter_affinode.keeping.processes import ProcessName
from jupyter_affinode.keeping.records import Owner, Record, to_json

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
        image_keep_s=30 * DAY_S,
    )
    monkeypatch.setattr(image_module.time, "time", lambda: OLD_S)
    made(folder, record=to_json(record))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


OLD_S = time.time() - 60 * DAY_S


def lives_in(folder) -> Lives:
    """What a keeper knows, and has looked at nothing."""
    return Lives(folder / "own", logging.getLogger("keeper"), lambda kernel_id: None, lambda: None)


def why_not(lives: Lives, kernel_id: str) -> str:
    """Why a kernel is not known."""
    with pytest.raises(NoSuchKernel) as refused:
        lives.get(kernel_id)
    return str(refused.value)


async def test_an_image_that_is_too_old_is_deleted_a_day_after_that_was_said(store, caplog):
    caplog.set_level(logging.WARNING)
    kernels = lives_in(store.parent)
    await kernels.look_in(str(store))
    image = image_of(store, "one")
    assert "will be deleted by age in 24.0 hours: wake it to keep it" in caplog.text
    (known,) = kernels
    assert known.view()["deleted_at"] == pytest.approx(time.time() + DAY_S, abs=60)
    assert known.view()["objection"] is None
    kernels.look_at_ages()
    assert image.folder.exists() and caplog.text.count("will be deleted") == 1

    a_day_ago = time.time() - DAY_S - 1
    os.utime(image.folder / "warned", (a_day_ago, a_day_ago))
    kernels.look_at_ages()
    assert not image.folder.exists() and list(kernels) == []
    assert "the image of kernel one is deleted: it is 60 days old" in caplog.text


async def test_an_image_that_could_not_be_woken_now_says_so_before_it_is_needed(store, monkeypatch, tmp_path):
    kernels = lives_in(tmp_path)
    await kernels.look_in(str(store))
    (known,) = kernels
    assert known.view()["objection"] is None
    (tmp_path / "version").write_text("NVRM version: 600.1\n")
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "version")
    assert known.view()["objection"] is None, "it was looked at a moment ago"
    monkeypatch.setattr(hibernated, "OBJECTION_HOLDS_S", -1.0)
    assert "another GPU driver (none); here is NVRM version: 600.1" in (known.view()["objection"] or "")


async def test_an_image_for_ever_is_not_deleted_though_it_was_made_for_a_month(store):
    """What its server says later counts, not what the manifest of an earlier release says."""
    kernels = lives_in(store.parent)
    await kernels.look_in(str(store))
    (known,) = kernels
    await known.update(replace(known.record, image_keep_s=0.0))
    os.utime(known.image.folder / "warned", (0, 0))
    kernels.look_at_ages()
    assert known.state is State.IN_IMAGE
    known.image.folder.joinpath("warned").unlink()
    again = lives_in(store.parent / "another")
    kernels.means.claims.leave(known.image)
    await again.look_in(str(store))
    (known,) = again
    assert known.record.image_keep_s == 0.0 and known.view()["deleted_at"] is None


async def test_why_an_image_was_not_taken_is_told_when_it_is_to_be_woken(store):
    kernels, image = lives_in(store.parent), image_of(store, "one")
    assert "there is no such kernel" in why_not(kernels, "one")
    other = Claims()
    other.take(image)
    await kernels.look_in(str(store))
    with pytest.raises(CannotWake, match="another keeper of yours deals with it"):
        await kernels.get("one").wake()
    other.leave(image)
    manifest = image.folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"python3", b"pythonX"))
    changed = lives_in(store.parent / "another")
    await changed.look_in(str(store))
    assert "its manifest was changed" in why_not(changed, "one")
    store.chmod(0o755)
    await kernels.look_in(str(store))
    assert "others may enter" in why_not(kernels, "another")

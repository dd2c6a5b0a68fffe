"""What was verified is what CRIU gets, whatever its name leads to by then. What is said where a folder is gone."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from written_images import made

from jupyter_affinode.hibernation import criu as criu_module
from jupyter_affinode.hibernation import tree
from jupyter_affinode.hibernation.hibernate import CannotWake, hibernate, wake
from jupyter_affinode.hibernation.image import Image
from jupyter_affinode.hibernation.store import image_of

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="as a user CRIU needs capabilities")


@pytest.fixture(autouse=True)
def own_key(tmp_path, monkeypatch):
    """The user's key is the test's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def store(tmp_path):
    """A folder for images."""
    folder = tmp_path / "images"
    folder.mkdir(mode=0o700)
    return folder


async def asleep(store: Path, name: str) -> tuple[Image, int]:
    """Put a process into an image; return that, and the process's number."""
    process = subprocess.Popen(
        ["sleep", "600"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    async def leave_gpu(folder: Path) -> bool:
        return False

    image = image_of(store, name)
    await hibernate(
        image,
        process.pid,
        leave_gpu,
        lambda: None,
        record={"kernel_id": name},
        undelivered={"messages": {}, "dropped": {}, "inputs": []},
    )
    process.wait()
    return image, process.pid


def exchange(one: Path, other: Path) -> None:
    """Exchange two folders."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@NEEDS_ROOT
@pytest.mark.parametrize("step", ["note", "restore", "go_on"])
@pytest.mark.parametrize("which", ["image", "store"])
async def test_an_image_that_was_compared_is_woken_whatever_has_its_name(
    criu, monkeypatch, store, tmp_path, step, which
):
    monkeypatch.setenv("AFFINODE_CRIU", criu)
    image, pid = await asleep(store, "one")
    others = store if which == "image" else tmp_path / "others"
    _, other_pid = await asleep(others, "two" if which == "image" else "one")
    one, other = (image.folder, others / "two") if which == "image" else (store, others)

    def at_step(name: str) -> None:
        if name == step:
            exchange(one, other)

    process = await wake(image, at_step)
    try:
        assert process.pid == pid and not Path(f"/proc/{other_pid}").exists()
    finally:
        await tree.end([process])


@pytest.mark.parametrize("step", ["check", "note", "restore"])
async def test_an_image_whose_folder_is_gone_is_refused_in_a_sentence(store, monkeypatch, step):
    image = made(store)

    async def works() -> str:
        return "4.2"

    async def restore(folder: Path, lock: int, size: int = 0) -> None:
        raise criu_module.CriuFailed("CRIU finds nothing there")

    monkeypatch.setattr(criu_module, "check", works)
    monkeypatch.setattr(criu_module, "restore", restore)
    monkeypatch.setattr("jupyter_affinode.hibernation.hibernate.objection_to_waking", lambda origin: None)

    def at_step(name: str) -> None:
        if name == step:
            store.rename(store.with_name(f"moved-{time.monotonic_ns()}"))

    with pytest.raises(CannotWake) as refused:
        await wake(image, at_step)
    assert "Error" not in str(refused.value)
    if step == "check":
        assert f"there is no {store}" in str(refused.value)

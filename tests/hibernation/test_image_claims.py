"""Two keepers of a user, on machines that share the folder for images: neither takes what the other has."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_affinode.hibernation import claims
from jupyter_affinode.hibernation.claims import Claimed, Claims
from jupyter_affinode.hibernation.image import Image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """An image's place in a store."""
    tmp_path.chmod(0o700)
    return Image(tmp_path / "store" / "kernel")


def on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what follows be on another machine."""
    monkeypatch.setattr(claims.socket, "gethostname", lambda: "other")
    monkeypatch.setattr(claims.environment, "boot_id", lambda: "other-boot")


def test_one_keeper_has_an_image_until_it_gives_it_up(image: Image) -> None:
    one, other = Claims(), Claims()
    one.take(image)
    one.take(image)
    with pytest.raises(Claimed, match="another keeper"):
        other.take(image)
    one.release(image)
    other.take(image)
    other.leave(image)
    assert list(image.folder.parent.iterdir()), "left as it is"
    one.take(image)
    one.release(image)
    assert not list(image.folder.parent.iterdir())


def test_only_where_its_processes_may_live_is_it_taken(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Claims()
    one.take(image)
    one.note_here(image)
    one.leave(image)  # as a keeper that is killed
    with monkeypatch.context() as elsewhere:
        on_another_machine(elsewhere)
        with pytest.raises(Claimed, match="may live on"):
            Claims().take(image)
    one.take(image)
    one.note_nowhere(image)
    one.leave(image)
    on_another_machine(monkeypatch)
    Claims().take(image)


def test_a_machine_that_was_started_again_takes_its_own(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Claims()
    one.take(image)
    one.note_here(image)
    one.leave(image)
    monkeypatch.setattr(claims.environment, "boot_id", lambda: "next-boot")
    Claims().take(image)

"""The words that people see."""

from __future__ import annotations

import pytest

from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.views.kernel_words import residency_in_words
from jupyter_affinode.settings.policy import GIB, MIB
from jupyter_affinode.units import bytes_in_words, duration_in_words, ordinal, sentence


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (2048, "2 KiB"),
        (300 * MIB, "300 MiB"),
        (12 * GIB, "12 GiB"),
        (GIB * 3 // 2, "1.5 GiB"),
        (2048 * GIB, "2 TiB"),
    ],
)
def test_sizes(size, words):
    assert bytes_in_words(size) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.52, "0.5 s"), (3, "3 s"), (40, "40 s"), (360, "6 min"), (3600, "1 h"), (5400, "1 h 30 min")],
)
def test_times(seconds, words):
    assert duration_in_words(seconds) == words


def test_places():
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111)
    assert [ordinal(number) for number in numbers] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("residency", "change", "words"),
    [
        (Residency.NONE, {}, "No GPU used"),
        (Residency.RESIDENT, {}, "On the GPU: 12 GiB"),
        (Residency.RESIDENT, {"is_simulated": True}, "On the GPU: 12 GiB (simulated)"),
        (Residency.RESIDENT, {"resident_bytes": 0}, "No GPU memory in use"),
        (Residency.RESIDENT, {"place": 2}, "Waiting: 2nd"),
        (Residency.PARKING, {}, "Freeing"),
        (Residency.PARKED, {}, "GPU freed, 5 GiB safe in RAM"),
        (Residency.PARKED, {"parked_bytes": 0, "is_off_gpu": True}, "GPU freed completely"),
        (Residency.QUEUED, {"place": 2}, "Waiting: 2nd"),
        (Residency.RESUMING, {}, "Getting it back"),
        (Residency.LOST, {"reason": "the driver refused"}, "GPU state lost: the driver refused"),
    ],
)
def test_residency(residency, change, words):
    facts = {
        "resident_bytes": 12 * GIB,
        "parked_bytes": 5 * GIB,
        "place": None,
        "held_for_s": None,
        "reason": None,
        "is_simulated": False,
    }
    assert residency_in_words(residency, **{**facts, **change}) == words


def test_a_sentence_begins_with_a_capital_letter_but_for_a_files_name():
    assert sentence("another user's notebook is computing") == "Another user's notebook is computing"
    assert sentence("train.ipynb is computing") == "train.ipynb is computing"
    assert sentence("") == ""

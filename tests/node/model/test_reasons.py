"""Each reason is declared once; what shows reasons has all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import jupyter_affinode
from jupyter_affinode.node.model.reasons import PARK_REFUSALS, NoticeKind, Reason, Refusal, StuckReason
from jupyter_affinode.node.model.snapshot import Residency

PACKAGE = Path(jupyter_affinode.__file__).parent
SOURCES = [path.read_text() for path in (PACKAGE / "node").rglob("*.py") if path.name != "reasons.py"]
EVENTS = PACKAGE / "server" / "schemas"


@pytest.mark.parametrize("reasons", [Refusal, NoticeKind, StuckReason])
def test_every_declared_reason_is_given_somewhere_and_means_something(reasons: type[Reason]):
    given = {name for text in SOURCES for name in re.findall(rf"\b{reasons.__name__}\.([A-Z_]+)\b", text)}
    assert given == {each.name for each in reasons}
    assert all(each.meaning.endswith(".") and re.fullmatch("[a-z]+(-[a-z]+)*", each) for each in reasons)


def test_the_event_of_notices_explains_every_kind():
    described = yaml.safe_load((EVENTS / "notice.yaml").read_text())["properties"]["kind"]["description"]
    assert set(re.findall(r"([a-z-]+):", described)) == set(NoticeKind)


def test_the_event_of_residencies_has_every_residency():
    described = yaml.safe_load((EVENTS / "kernel_residency.yaml").read_text())["properties"]
    words = [each.value for each in Residency]
    assert described["residency"]["enum"] == words and described["previous"]["enum"] == [*words, None]


def test_a_reason_is_its_word_wherever_it_is_written():
    assert f"{Refusal.BUSY}" == str(Refusal.BUSY) == Refusal.BUSY == "busy"
    assert set(PARK_REFUSALS) <= set(Refusal)

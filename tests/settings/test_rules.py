"""Rules that give users and groups sizes and classes."""

from __future__ import annotations

import pytest

from jupyter_affinode.settings.declaration import SettingsRefused
from jupyter_affinode.settings.policy import GIB, MIB, Settings
from jupyter_affinode.settings.rules import RuleError, is_named, names, numbers, rule_for, sizes


def test_rules_name_users_and_all_others():
    assert sizes("ann=80GiB, bob=512 MiB,*=1.5GiB") == {"ann": 80 * GIB, "bob": 512 * MIB, "*": 3 * GIB // 2}
    assert numbers("ann=+2, *=-5") == {"ann": 2, "*": -5}
    assert rule_for(sizes("ann=5, *=7"), "eve") == 7 and rule_for(sizes("ann=5"), "eve") is None
    assert is_named(names("ann, @staff"), "eve", ["staff"]) and not is_named(names("@eve"), "eve", [])
    assert is_named(names("*"), "eve", []) and not is_named(names(""), "", [""])


def test_a_rule_names_a_user_of_the_machine_or_of_the_hub_and_never_both():
    rules = sizes("ann=5, hub:ann=7, hub:ben@x.org=9")
    assert (rule_for(rules, "ann"), rule_for(rules, "hub:ann"), rule_for(rules, "hub:ben@x.org")) == (5, 7, 9)
    listed = names("hub:ann, @hub:staff")
    assert is_named(listed, "hub:ann", []) and not is_named(listed, "ann", ["staff"])
    assert is_named(listed, "ben", ["hub:staff"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("user:ann=5", "hub:ann"),
        ("hub:=5", "hub:alice"),
        (":ann=5", "hub:ann"),
        ("hub:@staff=5", "@hub:staff"),
        ("ann=5, ann=7", "twice"),
    ],
)
def test_a_name_that_could_mean_several_is_refused_in_words(text, says):
    with pytest.raises(SettingsRefused, match=says):
        Settings().changed(quotas=text)
    if "twice" not in says:
        with pytest.raises(SettingsRefused, match=says):
            Settings().changed(opt_out=text.partition("=")[0])


@pytest.mark.parametrize(
    "text", ["ann", "ann=", "=5", "ann=5 XiB", "ann=-5", "ann=1e9", "ann=5GiB;bob=3", "ann=" + "9" * 400]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(RuleError):
        sizes(text)
    with pytest.raises(SettingsRefused, match="quotas"):
        Settings().changed(quotas=text)


@pytest.mark.parametrize("text", ["ann=6", "ann=-6", "ann=1.0", "ann=٣"])
def test_what_is_no_class_is_refused(text):
    with pytest.raises(RuleError):
        numbers(text)

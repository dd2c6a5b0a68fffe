"""Each setting is declared once: whatever shows or takes settings has all of them, with the same default and bounds."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from traitlets import TraitError
from traitlets.config import Config

from jupyter_affinode.node.app import NodeController
from jupyter_affinode.planner.command import add_options, make_plan
from jupyter_affinode.server.extension import AffinodeExtension
from jupyter_affinode.settings.controller import ControllerSettings
from jupyter_affinode.settings.declaration import SettingsRefused, settings_of
from jupyter_affinode.settings.policy import SETTINGS, Settings

REPOSITORY = Path(__file__).parents[2]
OPENAPI = json.loads((REPOSITORY / "jupyter_affinode" / "node" / "api" / "openapi.json").read_text())
ALL = {**SETTINGS, **{setting.name: setting for setting in settings_of(ControllerSettings)}}
BEYOND = {
    name: [setting.least - 1, setting.most + 1]
    for name, setting in ALL.items()
    if setting.kind in ("int", "float")
}


def test_the_generated_files_are_what_the_declarations_say():
    checked = subprocess.run(
        [sys.executable, REPOSITORY / "docs" / "generate.py", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", ALL)
def test_a_setting_is_a_trait_and_an_option_of_the_controller(name):
    trait = NodeController.class_traits(config=True)[name]
    assert NodeController.aliases[ALL[name].option] == f"NodeController.{name}"
    assert trait.help.startswith(ALL[name].help) and trait.allow_none == ALL[name].allows_none
    if not ALL[name].shown_default:
        default = trait.default()
        assert (tuple(default) if isinstance(default, list) else default) == ALL[name].default
    assert (ALL[name].option in NodeController.flags) == (ALL[name].default is False)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_policy_is_a_trait_of_the_extension_and_in_the_api(name):
    trait = AffinodeExtension.class_traits(config=True)[name]
    assert trait.default_value is None and trait.allow_none and trait.help.startswith(ALL[name].help)
    schemas = OPENAPI["components"]["schemas"]
    assert schemas["SettingsChange"]["properties"][name]["default"] == SETTINGS[name].default
    assert schemas["Settings"]["required"] == list(Settings().as_dict()) == list(SETTINGS)


@pytest.mark.parametrize("name", ALL)
def test_a_setting_is_on_the_page(name):
    lines = (REPOSITORY / "docs" / "settings.md").read_text().splitlines()
    assert len([line for line in lines if line.startswith(f"| `{name}` | `--{ALL[name].option}` |")]) == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_the_planner_takes_a_setting_of_the_policy(name):
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = parser.parse_args(["--set", f"{name}={json.dumps(SETTINGS[name].default)}"])
    assert make_plan(options).settings == Settings()


def test_no_two_settings_have_the_same_option():
    assert len({setting.option for setting in ALL.values()}) == len(ALL)
    assert all(setting.help for setting in ALL.values())


@pytest.mark.parametrize("name", BEYOND)
def test_a_number_beyond_its_bounds_is_refused_wherever_it_is_given(name):
    for value in BEYOND[name]:
        with pytest.raises(TraitError, match=f"{name} must be"):
            NodeController(config=Config(NodeController={name: value}))
        if name in SETTINGS:
            with pytest.raises(SettingsRefused, match=f"{name} must be"):
                Settings().changed(**{name: value})
            schema = OPENAPI["components"]["schemas"]["SettingsChange"]
            assert not Draft202012Validator(schema).is_valid({name: value})
            with pytest.raises(TraitError, match=f"{name} must be"):
                AffinodeExtension(config=Config(AffinodeExtension={name: value}))

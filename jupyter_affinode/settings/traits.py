"""Traits, command-line options and flags made of the settings' declarations."""

from __future__ import annotations

from types import new_class
from typing import Any

import traitlets

from .declaration import Setting, SettingsRefused, settings_of

_KINDS: dict[str, Any] = {
    "bool": traitlets.Bool,
    "int": traitlets.Int,
    "float": traitlets.Float,
    "str": traitlets.Unicode,
}


def traits_of(declared: type, *, may_be_unset: bool = False, note: str = "") -> Any:
    """Return a base class that has the settings of a dataclass as configurable traits.

    With `may_be_unset`, None is their default and means that nothing is configured. `note` is added to each help.
    """
    settings = {setting.name: setting for setting in settings_of(declared)}

    def check(self: traitlets.HasTraits, proposal: traitlets.Bunch) -> Any:
        value = proposal["value"]
        if value is not None:
            try:
                settings[proposal["trait"].name].check(value)
            except SettingsRefused as refused:
                raise traitlets.TraitError(str(refused)) from None
        return value

    traits = {
        name: _trait(
            setting,
            default_value=None if may_be_unset else setting.default,
            allow_none=may_be_unset or setting.allows_none,
            help=help_of(setting) + note,
        ).tag(config=True)
        for name, setting in settings.items()
    }
    members = {**traits, f"_check_{declared.__name__}": traitlets.validate(*settings)(check)}
    return new_class(
        f"{declared.__name__}Traits", (traitlets.HasTraits,), exec_body=lambda body: body.update(members)
    )


def _trait(setting: Setting, **facts: Any) -> traitlets.TraitType[Any, Any]:
    if setting.choices:
        return traitlets.Enum(setting.choices, **facts)
    if setting.kind == "tuple":
        return traitlets.List(traitlets.Unicode(), **facts)
    trait: traitlets.TraitType[Any, Any] = _KINDS[setting.kind](**facts)
    return trait


def help_of(setting: Setting) -> str:
    """Return a setting's help for users, with its default if that depends on the machine."""
    unit = f" In {setting.unit}." if setting.unit else ""
    default = f" Default: {setting.shown_default}." if setting.shown_default else ""
    return f"{setting.help}{unit}{default}"


def values_of(owner: traitlets.HasTraits, declared: type) -> dict[str, Any]:
    """Return what is configured, by name."""
    values = {setting.name: getattr(owner, setting.name) for setting in settings_of(declared)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def options_of(owner: str, *declared: type) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the aliases and flags of an application whose class is called `owner`."""
    settings = [setting for each in declared for setting in settings_of(each)]
    aliases = {setting.option: f"{owner}.{setting.name}" for setting in settings}
    flags = {
        setting.option: ({owner: {setting.name: True}}, setting.help.partition(". ")[0] + ".")
        for setting in settings
        if setting.default is False
    }
    return aliases, flags

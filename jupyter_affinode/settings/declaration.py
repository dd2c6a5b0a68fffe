"""How a setting is declared: one dataclass field that carries default, bounds, help and how its text is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from .rules import LARGEST, RuleError

RULES_MAX = 16_384  # characters of a text of rules
LONGEST_S = 1e9  # a time-out of 30 years never ends
UNITS = {"s": "seconds", "bytes": "bytes", "days": "days"}  # by a word of the name


class SettingsRefused(ValueError):
    """A setting is unknown, or its value is invalid; the message names it and says what is valid."""


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting."""

    name: str
    kind: str  # "str", "bool", "int", "float" or "tuple", as the field is annotated
    default: Any
    help: str
    allows_none: bool
    section: str  # what it is about: the docstring of the class that declares it
    least: float = 0
    most: float = LONGEST_S
    choices: tuple[str, ...] = ()
    read: Callable[[str], object] | None = None  # reads a text of rules; raises RuleError
    shown_default: str = ""  # where the default depends on the machine
    names_users: bool = False  # only administrators see its value

    @property
    def unit(self) -> str:
        """Return what a number counts; "" where its name does not say."""
        return next((UNITS[word] for word in self.name.split("_") if word in UNITS), "")

    @property
    def option(self) -> str:
        """Return the name of the command-line option, without its dashes."""
        return self.name.removesuffix("_s").replace("_", "-")

    def check(self, value: Any) -> None:
        """Raise SettingsRefused if the setting cannot have this value."""
        if value is None and self.allows_none:
            return
        if self.kind == "bool":
            if not isinstance(value, bool):
                raise SettingsRefused(f"{self.name} must be true or false, not {value!r}")
        elif self.kind in ("int", "float"):
            self._check_number(value)
        elif self.choices:
            if value not in self.choices:
                wanted = " or ".join(f'"{choice}"' for choice in self.choices)
                raise SettingsRefused(f"{self.name} must be {wanted}, not {value!r}")
        elif self.kind == "str":
            self._check_text(value)

    def _check_number(self, value: Any) -> None:
        is_whole = self.kind == "int"
        is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
        if not is_number or not self.least <= value <= self.most:  # NaN neither
            what = "a whole number" if is_whole else "a number"
            # A number of thousands of digits is not written out.
            given = "" if isinstance(value, int) and abs(value) > LARGEST else f", not {value!r}"
            raise SettingsRefused(f"{self.name} must be {what} from {self.least:g} to {self.most:g}{given}")

    def _check_text(self, value: Any) -> None:
        if not isinstance(value, str):
            raise SettingsRefused(f"{self.name} must be text, not {value!r}")
        if len(value) > RULES_MAX:
            raise SettingsRefused(f"{self.name} must be at most {RULES_MAX} characters long")
        if self.read is not None:
            try:
                self.read(value)
            except RuleError as error:
                raise SettingsRefused(f"{self.name}: {error}") from None


def setting(default: Any, help: str, **facts: Any) -> Any:
    """Declare a setting as a dataclass's field. `facts` are those of `Setting`."""
    return field(default=default, metadata={"help": " ".join(help.split()), **facts})


def settings_of(declared: type) -> Iterator[Setting]:
    """Yield the settings that a dataclass declares, in the order of its fields."""
    sections = {
        name: its.__doc__ or "" for its in declared.__mro__ for name in vars(its).get("__annotations__", ())
    }
    for each in fields(declared):
        kind, _, none = str(each.type).partition(" | ")
        kind = kind.partition("[")[0]
        facts = {"most": LARGEST} if kind == "int" else {}
        yield Setting(
            name=each.name,
            kind=kind,
            default=each.default,
            allows_none=none == "None",
            section=sections[each.name],
            **{**facts, **each.metadata},
        )

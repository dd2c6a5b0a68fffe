"""Read entry_points.rules: the class of each driver entry point, its traits, and the hooks that stand before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from prototypes import Prototype, base_name

RULES = Path(__file__).resolve().parent / "entry_points.rules"

CLASSES = ("HOST", "QUERY", "FREE", "LAUNCH", "COPY", "ALLOC", "SYNC", "MODULE")
WAITING_CLASSES = frozenset({"LAUNCH", "COPY", "ALLOC", "SYNC", "MODULE"})
HOOKS = ("hook", "shadow")
# Traits that the shim's C looks at, in the order of ../src/driver/entry_point.h.
TRAITS = (
    "takes-bytes",
    "takes-described",
    "takes-some",
    "adds-nodes",
    "launches-graph",
    "takes-context",
    "changes-contexts",
    "shares",
    "never-held",
    "synchronises",
    "past-the-gate",
    "held-above",
    "asks-for-end",
    "makes-event",
    "deferrable",
    "settles",
)
# Traits that only say why an argument is safe: what the call does with the memory behind it. By argument codes.
ARGUMENT_TRAITS = {
    "aA": ("own-address", "uses-address", "other-address"),
    "hH": ("own-handle", "other-handle"),
}
_KINDS = (*CLASSES, *TRAITS, *HOOKS, *(trait for traits in ARGUMENT_TRAITS.values() for trait in traits))
_PER_THREAD = re.compile(r"_pt[sd][zs]$")


class TableError(Exception):
    """The table cannot be made, or the committed one is wrong; the message says what to do."""


@dataclass(frozen=True)
class Rule:
    """One line: a class, a trait or a kind of hook, for the names that match. `function`: a hook's, if another."""

    line: int
    kind: str
    pattern: re.Pattern[str]
    function: str | None = None


@dataclass(frozen=True)
class HookRow:
    """A hook for a name: an exact symbol, or a base name asked of cuGetProcAddress by `version` or a newer one."""

    kind: str
    function: str
    name: str
    version: int  # 0: an exact symbol


def read_rules(path: Path = RULES) -> list[Rule]:
    """Return the rules in order; TableError names the line that is not one."""
    rules = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if words[0] not in _KINDS:
            raise TableError(f"{path.name}:{number}: no class, trait or hook {words[0]}")
        if len(words) != 2 and (words[0] not in HOOKS or len(words) != 3):
            raise TableError(
                f"{path.name}:{number}: a pattern is one word, and a name follows only for hooks"
            )
        rules.append(Rule(number, words[0], re.compile(words[1]), words[2] if len(words) == 3 else None))
    return rules


class RuleBook:
    """The rules applied to the known prototypes. TableError where a name has no class, or a rule decides nothing."""

    def __init__(self, known: dict[str, Prototype], rules: list[Rule]) -> None:
        self._known = known
        self._used: set[Rule] = set()
        bases = sorted({base_name(name) for name in known})
        self.classes = {base: self._class(base, rules) for base in bases}
        self.traits = {base: self._traits(base, rules) for base in bases}
        self.hooks = [row for kind in HOOKS for row in self._hook_rows(kind, rules)]
        idle = [f"{RULES.name}:{rule.line}: decides nothing" for rule in rules if rule not in self._used]
        if idle:
            raise TableError("\n".join(idle))
        self._check_arguments()

    def _class(self, base: str, rules: list[Rule]) -> str:
        for rule in rules:
            if rule.kind in CLASSES and rule.pattern.fullmatch(base):
                self._used.add(rule)
                return rule.kind
        raise TableError(f"{RULES.name}: no rule for {base}: does it wait at a closed gate?")

    def _traits(self, base: str, rules: list[Rule]) -> frozenset[str]:
        found = {
            rule
            for rule in rules
            if rule.kind not in CLASSES and rule.kind not in HOOKS and rule.pattern.fullmatch(base)
        }
        self._used |= found
        return frozenset(rule.kind for rule in found)

    def _hook_rows(self, kind: str, rules: list[Rule]) -> list[HookRow]:
        """Return the exact names' rows, then those of base names, the newest version of each first."""
        functions: dict[str, str] = {}
        for name in sorted(self._known):
            for rule in rules:
                if rule.kind == kind and rule.pattern.fullmatch(_PER_THREAD.sub("", name)):
                    self._used.add(rule)
                    functions[name] = rule.function or base_name(name)
        rows = [HookRow(kind, function, name, 0) for name, function in functions.items()]
        for base in sorted({base_name(name) for name in functions}):
            rows += reversed(self._versions(kind, base, functions))
        return rows

    def _versions(self, kind: str, base: str, functions: dict[str, str]) -> list[HookRow]:
        """Return the rows by which a base name is found, the oldest first; one stands for newer versions too."""
        of_base = [
            (one.since, functions.get(name)) for name, one in self._known.items() if base_name(name) == base
        ]
        by_version = dict(sorted(of_base, key=lambda pair: pair[0]))
        rows: list[HookRow] = []
        for number, (since, function) in enumerate(by_version.items()):
            if any(other != function for version, other in of_base if version == since):
                raise TableError(f"{RULES.name}: symbols of {base} since {since} have different hooks")
            if function is None and rows:
                raise TableError(
                    f"{RULES.name}: {base} since {since} has no {kind}, but an older version has"
                )
            if function is not None and (not rows or rows[-1].function != function):
                rows.append(HookRow(kind, function, base, since if number else 1))
        return rows

    def _check_arguments(self) -> None:
        """TableError for a device address or a handle of memory of which it is not said what the call does with it."""
        hooked = {row.name for row in self.hooks if row.kind == "hook"}
        for name, prototype in self._known.items():
            base = base_name(name)
            for codes, traits in ARGUMENT_TRAITS.items():
                if not set(codes) & set(prototype.signature):
                    continue
                said = self.traits[base] & set(traits)
                if len(said) != 1:
                    raise TableError(
                        f"{RULES.name}: {name} takes {'an address' if 'a' in codes else 'a handle'} of memory: "
                        f"say one of {', '.join(traits)} for {base}, not {', '.join(sorted(said)) or 'nothing'}"
                    )
                if said & {"own-address", "own-handle"} and name not in hooked:
                    raise TableError(
                        f"{RULES.name}: {name} acts on memory that may be moved, but has no hook"
                    )
                if "uses-address" in said and self.classes[base] not in WAITING_CLASSES:
                    raise TableError(
                        f"{RULES.name}: {name} uses memory that may be parked, but does not wait"
                    )

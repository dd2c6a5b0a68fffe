"""Write the files that are made of declarations: schemas of the API and of the chart's values, the Lab's types, and
`docs/settings.md`.

`python docs/generate.py` writes them, `--check` only says which are stale. Add a setting by adding a field in
`jupyter_affinode/settings/`, a reason by adding a member in `jupyter_affinode/node/model/reasons.py`; then run this.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from traitlets import HasTraits
from typescript import Declarations

from hub_spawner.docker import DockerGpuPolicy
from hub_spawner.kubernetes import KubernetesGpuPolicy
from hub_spawner.spawner_mixin import GpuPolicy
from jupyter_affinode.node.model.reasons import (
    BlockerReason,
    Cause,
    DepthRefusal,
    NoticeKind,
    Reason,
    Refusal,
    StuckReason,
    WaitReason,
)
from jupyter_affinode.node.model.snapshot import Residency
from jupyter_affinode.node.protocol.page import CallClass
from jupyter_affinode.node.views.kernel_words import UNMOVABLE_WORDS, reason_slug
from jupyter_affinode.server.extension import AffinodeExtension
from jupyter_affinode.settings.controller import ControllerSettings
from jupyter_affinode.settings.declaration import LONGEST_S, RULES_MAX, Setting, settings_of
from jupyter_affinode.settings.keeping import KeepLimits
from jupyter_affinode.settings.policy import SETTINGS, Settings
from jupyter_affinode.settings.rules import LARGEST
from jupyter_affinode.settings.traits import help_of
from jupyter_affinode.units import bytes_in_words

ROOT = Path(__file__).parent.parent
OPENAPI = ROOT / "jupyter_affinode" / "node" / "api" / "openapi.json"
CHART_VALUES = ROOT / "hub_spawner" / "chart" / "values.schema.json"
LAB_SETTINGS = ROOT / "labextension" / "schema" / "model.json"
SETTINGS_PAGE = ROOT / "docs" / "settings.md"
LAB_TYPES = ROOT / "labextension" / "src" / "controllerTypes.ts"
LAB_SCHEMAS = ("Kernel", "Gpu", "Node", "Notice", "Activity")
COLUMNS = 120
WORDS: dict[str, tuple[str, Sequence[str]]] = {  # by the name of their type: what they are, and the words
    "Residency": (
        "Where a kernel's GPU state is; `queued` waits for room.",
        [each.value for each in Residency],
    ),
    "UnmovableReason": ("Why bytes stay on the GPU.", [reason_slug(each) for each in UNMOVABLE_WORDS]),
    "CallClass": ("What a CUDA call does.", [each.name.lower() for each in CallClass]),
    "StuckReason": ("Why a process can make no progress any more.", [*StuckReason]),
    "WaitReason": ("Why a kernel waits for the GPU.", [*WaitReason]),
    "BlockerReason": ("Why the memory that a waiter needs is not free.", [*BlockerReason]),
    "DepthRefusal": ("Why a kernel's CUDA context stays on the GPU when it is parked.", [*DepthRefusal]),
    "Cause": ("Why a kernel's residency changed last.", [*Cause]),
    "NoticeKind": ("What a notice is about.", [*NoticeKind]),
    "Refusal": ("Why a request is refused, for programs.", [*Refusal]),
}
WIDE = ((0, LARGEST), (0, LONGEST_S))  # bounds that no setting meets
# Settings that the chart makes of values of its own.
OF_THE_CHART = {
    *(
        "system",
        "socket",
        "grant_keys",
        "grant_audiences",
        "require_grants",
        "lot_bytes",
        "ledger",
        "metrics_ip",
    ),
    *("metrics_port", "api_ip", "api_port", "machine_name"),
}
SCHEMA_TYPES = {"tuple": "array", "bool": "boolean", "int": "integer", "float": "number", "str": "string"}


def openapi() -> str:
    """Return the API's description with the settings in it; all else in it is written by hand."""
    document = json.loads(OPENAPI.read_text())
    properties = {name: setting_schema(setting) for name, setting in SETTINGS.items()}
    schemas = document["components"]["schemas"]
    schemas["SettingsChange"] = {"type": "object", "properties": properties, "additionalProperties": False}
    schemas["Settings"] = {
        "description": "All settings.",
        "allOf": [{"$ref": "#/components/schemas/SettingsChange"}],
        "required": [*SETTINGS],
    }
    for name, (what, words) in WORDS.items():
        meanings = [f"{word}: {word.meaning}" for word in words if isinstance(word, Reason)]
        schemas[name] = {"enum": [str(word) for word in words], "description": " ".join([what, *meanings])}
    return as_json(document) + "\n"


def chart_values() -> str:
    """Return the schema of the chart's values with the controller's settings in it; all else is written by hand."""
    document = json.loads(CHART_VALUES.read_text())
    declared = [*SETTINGS.values(), *settings_of(ControllerSettings)]
    properties = {each.name: setting_schema(each) for each in declared if each.name not in OF_THE_CHART}
    for schema in properties.values():
        del schema["description"]  # docs/settings.md has it
    document["properties"]["settings"] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return as_json(document) + "\n"


def setting_schema(setting: Setting) -> dict[str, Any]:
    """Return the JSON Schema of a setting."""
    schema: dict[str, Any] = {}
    if setting.choices:
        schema["enum"] = [*setting.choices]
    else:
        kind = SCHEMA_TYPES[setting.kind]
        schema["type"] = [kind, "null"] if setting.allows_none else kind
    if setting.kind in ("int", "float"):
        schema |= {"minimum": setting.least, "maximum": setting.most}
    elif setting.read is not None:
        schema["maxLength"] = RULES_MAX
    return {**schema, "default": setting.default, "description": help_of(setting)}


def as_json(value: Any, indent: int = 0, before: int = 0) -> str:
    """Return JSON in which what fits on a line, or is an object of texts and numbers, is on one line.

    `before`: how long the line is already.
    """
    line = json.dumps(value)
    if indent + before + len(line) < COLUMNS or not isinstance(value, dict | list) or not value:
        return line
    if isinstance(value, dict) and not any(isinstance(each, dict) for each in value.values()):
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        keys = [json.dumps(key) + ": " for key in value]
        parts = [
            key + as_json(each, indent + 2, len(key)) for key, each in zip(keys, value.values(), strict=True)
        ]
        opening, closing = "{", "}"
    else:
        parts = [as_json(each, indent + 2) for each in value]
        opening, closing = "[", "]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{' ' * indent}{closing}"


def settings_page() -> str:
    """Return the page that lists all settings, by subject."""
    lines = [
        "# Every setting",
        "",
        "Everything has a default. This page is made of the declarations in the code by `docs/generate.py`.",
        "",
        "| for | write | into |",
        "|---|---|---|",
        "| your own kernels | `c.AffinodeExtension.NAME = VALUE` | `jupyter_server_config.py` |",
        "| all users of a machine | `c.NodeController.NAME = VALUE` | `/etc/affinode/jupyter_affinode_config.py` |",
        "| a JupyterHub | `c.Spawner.NAME = VALUE` | `jupyterhub_config.py` |",
        "",
        "The first two share the settings of the policy. A Jupyter server tells them to its user's own controller; a",
        "controller of all users takes them from its administrators alone, also while it runs. `jupyter affinode node`",
        "has an option for each: `--OPTION=VALUE`. JupyterLab's own settings are at the end of this page.",
    ]
    declarations = (
        ("The policy", Settings),
        ("The controller, fixed when it starts", ControllerSettings),
    )
    for title, declared in declarations:
        lines += ["", f"## {title}"]
        section = ""
        for setting in settings_of(declared):
            if setting.section != section:
                section = setting.section
                lines += ["", f"### {section}", "", "| name | option | default | |", "|---|---|---|---|"]
            lines.append(_row(setting))
    lines += ["", "## The Jupyter server alone", "", *_traits_table(AffinodeExtension, KeepLimits)]
    lines += ["", "## JupyterHub's spawner", "", *_traits_table(GpuPolicy, KeepLimits)]
    lines += ["", "## JupyterHub's spawner with Docker", "", *_traits_table(DockerGpuPolicy)]
    lines += ["", "## JupyterHub's spawner in Kubernetes", "", *_traits_table(KubernetesGpuPolicy)]
    lines += [
        "",
        "## JupyterLab",
        "",
        "Users set these in *Settings → Settings Editor → GPU*; administrators set",
    ]
    lines += ["defaults in JupyterLab's `overrides.json`, under `jupyter-affinode:model`.", "", *_lab_table()]
    return "\n".join(lines) + "\n"


def _traits_table(*declared: type[HasTraits]) -> Iterable[str]:
    """Yield the settings that classes themselves declare as traits, without examples of several lines."""
    yield from ("| name | default | |", "|---|---|---|")
    traits = [item for each in declared for item in each.class_own_traits(config=True).items()]
    for name, trait in sorted(traits):
        text = " ".join(inspect.cleandoc(trait.help).split("\n\n")[0].split())
        default = repr(trait.default()).replace("'", '"')
        yield f"| `{name}` | `{default}` | {text} |"


def _lab_table() -> Iterable[str]:
    """Yield the settings of the JupyterLab extension."""
    yield from ("| name | default | |", "|---|---|---|")
    for name, declared in json.loads(LAB_SETTINGS.read_text())["properties"].items():
        bounds = ""
        if "minimum" in declared:
            bounds = f" From {declared['minimum']} to {declared['maximum']}."
        yield f"| `{name}` | `{json.dumps(declared['default'])}` | {declared['description']}{bounds} |"


def _row(setting: Setting) -> str:
    bounds = ""
    if setting.kind in ("int", "float") and (setting.least, setting.most) not in WIDE:
        bounds = f" From {setting.least:g} to {setting.most:g}."
    elif setting.choices:
        bounds = " One of " + ", ".join(f'`"{choice}"`' for choice in setting.choices) + "."
    default = setting.shown_default or f"`{setting.default!r}`".replace("'", '"').replace(".0`", "`")
    if setting.unit == "bytes" and setting.default:
        default = bytes_in_words(setting.default)
    unit = f" In {setting.unit}." if setting.unit else ""
    text = (setting.help + unit + bounds).replace("|", "\\|")
    return f"| `{setting.name}` | `--{setting.option}` | {default} | {text} |"


def lab_types() -> str:
    """Return the types of what the Lab's code reads of the API."""
    schemas = json.loads(openapi())["components"]["schemas"]
    types = Declarations(schemas, [*LAB_SCHEMAS, *WORDS]).text()
    return f"// Made of node/api/openapi.json by docs/generate.py.\n\n{types}\n"


GENERATED = {OPENAPI: openapi, CHART_VALUES: chart_values, LAB_TYPES: lab_types, SETTINGS_PAGE: settings_page}


def stale() -> Iterable[Path]:
    """Yield the files that are not what the declarations say."""
    for path, make in GENERATED.items():
        if not path.exists() or path.read_text() != make():
            yield path


def main() -> int:
    """Write the files, or say which are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    only_check = parser.parse_args().check
    found = [*stale()]
    for path in found:
        print(f"{path.relative_to(ROOT)} {'is stale: run docs/generate.py' if only_check else 'written'}")
        if not only_check:
            path.write_text(GENERATED[path]())
    return 1 if found and only_check else 0


if __name__ == "__main__":
    sys.exit(main())

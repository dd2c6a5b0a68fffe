"""TypeScript types of JSON schemas, for what the Lab's code reads of the API. Called by `generate.py`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

PLAIN = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


class Declarations:
    """Writes the types of some schemas of one document; one that refers to another schema has no type for that."""

    def __init__(self, schemas: Mapping[str, dict[str, Any]], names: Sequence[str]):
        """Choose schemas by their names."""
        self._chosen = {name: schemas[name] for name in names}

    def text(self) -> str:
        """Return all declarations: an interface for an object, another name of its type for anything else."""
        return "\n\n".join(self._declaration(name, schema) for name, schema in self._chosen.items())

    def _declaration(self, name: str, schema: dict[str, Any]) -> str:
        if "properties" in schema:
            return f"{_comment(schema)}export interface {self._name(name)} {self._type(schema)}"
        return f"{_comment(schema)}export type {name} = {self._type(schema)};"

    def _name(self, name: str) -> str:
        if name not in self._chosen:
            return "unknown"
        return f"I{name}" if "properties" in self._chosen[name] else name

    def _type(self, schema: dict[str, Any]) -> str:
        """Return the type of what a schema describes. Raises KeyError for a kind of schema that has no type here."""
        if "$ref" in schema:
            return self._name(schema["$ref"].rpartition("/")[2])
        if "enum" in schema:
            return " | ".join(f"'{word}'" for word in schema["enum"])
        if "oneOf" in schema:
            return " | ".join(map(self._type, schema["oneOf"]))
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return " | ".join(self._kind(kind, schema) for kind in kinds)

    def _kind(self, kind: str, schema: dict[str, Any]) -> str:
        if kind == "array":
            item = self._type(schema["items"])
            return f"({item})[]" if " | " in item else f"{item}[]"
        if kind != "object":
            return PLAIN[kind]
        required = schema.get("required", [])
        fields = [
            f"{_comment(each)}{name}{'' if name in required else '?'}: {self._type(each)};"
            for name, each in schema.get("properties", {}).items()
        ]
        if isinstance(schema.get("additionalProperties"), dict):
            fields.append(f"[name: string]: {self._type(schema['additionalProperties'])};")
        return "{\n" + textwrap.indent("\n".join(fields), "  ") + "\n}"


def _comment(schema: dict[str, Any]) -> str:
    return f"/** {schema['description']} */\n" if "description" in schema else ""

"""Checks requests' bodies against `openapi.json`, so that what it allows and what is served are one.

fastjsonschema makes a function of each schema: it takes 17 ms to import, where jsonschema takes a second.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastjsonschema

from ..model.reasons import Refusal
from .errors import ApiError

SHARED = ("Text", "Wait")  # what bodies refer to
SHOWN = 40  # characters of a name that is not known
Check = Callable[[Any], Any]


def body_of(method: str, path: str, raw: bytes) -> dict[str, Any]:
    """Return a request's JSON object, with the defaults of the API. Raises ApiError unless it is as described there."""
    body = json_object(raw)
    try:
        _check(method.lower(), re.sub(r"/kernels/[^/]+", "/kernels/{kernel_id}", path))(body)
    except fastjsonschema.JsonSchemaValueException as error:
        raise ApiError(400, Refusal.BAD_REQUEST, _in_words(error)) from None
    return body


def json_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a request, {} if it is empty. Raises ApiError."""
    try:
        body = json.loads(raw or b"{}", parse_float=_number, parse_constant=_number)
        # half a surrogate pair is no text, and no pattern says so
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ApiError(400, Refusal.BAD_REQUEST, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise ApiError(400, Refusal.BAD_REQUEST, "the body must be a JSON object")
    return body


def _number(text: str) -> float:
    """Return a number that is finite; a whole one as `int`, since JSON Schema takes 1.0 for a whole number."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return int(value) if value.is_integer() else value


@functools.cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text("utf-8"))
    return document


@functools.cache
def _check(method: str, path: str) -> Check:
    """Return the check of an operation's body, made at the first request: some ms, which a start would take for all."""
    components = _document()["components"]
    body = _document()["paths"][path][method]["requestBody"]
    if "$ref" in body:
        body = components["requestBodies"][body["$ref"].rpartition("/")[2]]
    shared = {"schemas": {name: components["schemas"][name] for name in SHARED}}
    check: Check = fastjsonschema.compile(
        {**body["content"]["application/json"]["schema"], "components": shared}
    )
    return check


def _in_words(error: fastjsonschema.JsonSchemaValueException) -> str:
    described = error.definition
    if error.rule == "additionalProperties":
        unknown = sorted(error.value.keys() - described["properties"].keys())[0][:SHOWN]
        return f"{unknown!r} is not known here; known are: {', '.join(described['properties']) or 'none'}"
    if error.rule == "required":
        return f"{sorted(described['required'] - error.value.keys())[0]!r} is missing"
    if error.rule == "pattern":
        return f"{error.path[-1]!r} must be printable, and one line"
    name, _, words = error.message.partition(" ")
    return f"{name.removeprefix('data.')!r} {words}"

"""Answers of the controller's API, held against its description."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

from jsonschema import Draft202012Validator

import jupyter_affinode.node

DOCUMENT = json.loads((Path(jupyter_affinode.node.__file__).parent / "api" / "openapi.json").read_text())


def checked(method, path, answer):
    """The status and body of an answer, once the document agrees that they may be."""
    status, body = answer
    template = re.sub(r"/kernels/[^/]+", "/kernels/{kernel_id}", f"/api/v1{path}".partition("?")[0])
    responses = DOCUMENT["paths"][template][method.lower()]["responses"]
    assert str(status) in responses, f"{method} {path} answered {status}, which is not described"
    response = responses[str(status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    if "content" in response:
        described = response["content"]["application/json"]["schema"]
        Draft202012Validator({**described, "components": DOCUMENT["components"]}).validate(body)
    else:
        assert body is None
    return status, body


def raw(machine, data, timeout=60.0):
    """Send bytes to the API socket; what comes back."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout)
        client.connect(str(machine.socket))
        client.sendall(data)
        received = b""
        while True:
            try:
                part = client.recv(65536)
            except (ConnectionResetError, TimeoutError):
                break
            if not part:
                break
            received += part
        return received

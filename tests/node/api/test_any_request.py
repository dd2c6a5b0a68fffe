"""Whatever the API's description allows, and what it does not, is answered as described, and never with a failure.

Schemathesis makes the requests. AFFINODE_API_EXAMPLES makes them more than CI's.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import socket
import socketserver
import tempfile
import threading
from pathlib import Path

import hypothesis
import pytest
import requests
from api_answers import DOCUMENT
from fake_shim import MIB, FakeShim
from live_machine import Machine, UnixConnection
from thread_controller import ThreadController

from jupyter_affinode.node.api.server import BODY_BYTES_MAX, HEADER_BYTES_MAX
from jupyter_affinode.node.identity.access import EveryUserAccess

EXAMPLES = int(os.environ.get("AFFINODE_API_EXAMPLES", "3"))
METHODS = ("get", "put", "post", "patch", "delete")
ENDLESS = (
    "/api/v1/events",
    "/api/v1/room",
)  # streams, one of changes without end; held against the description elsewhere
OPERATIONS = [
    (path, method)
    for path, item in DOCUMENT["paths"].items()
    for method in METHODS
    if method in item and path not in ENDLESS
]


class TcpDoor(socketserver.ThreadingTCPServer):
    """Serves the controller's Unix socket on a TCP port of this machine, since schemathesis knows no other."""

    daemon_threads = True

    def __init__(self, path: Path):
        self.path = path
        super().__init__(("127.0.0.1", 0), Passage)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Passage(socketserver.BaseRequestHandler):
    """One connection: bytes go both ways until either side ends."""

    def handle(self) -> None:
        with socket.socket(socket.AF_UNIX) as inside:
            inside.connect(str(self.server.path))
            other = {self.request: inside, inside: self.request}
            with contextlib.suppress(OSError):
                while True:
                    for one in select.select([*other], [], [])[0]:
                        data = one.recv(65536)
                        if not data:
                            return
                        other[one].sendall(data)


@pytest.fixture(scope="module", params=["everyone", pytest.param("own", marks=pytest.mark.long)])
def api(request):
    """A controller with some kernels: (URL, its machine)."""
    with tempfile.TemporaryDirectory(prefix="aff-", dir="/tmp") as folder:
        machine = Machine(Path(folder))
        access = EveryUserAccess() if request.param == "everyone" else None
        controller = ThreadController(machine.socket, access=access)
        shims = [FakeShim(machine.socket.parent, f"k{number}", resident=300 * MIB) for number in range(3)]
        door = TcpDoor(machine.socket)
        yield door.url, machine
        door.shutdown()
        door.server_close()
        for shim in shims:
            shim.close()
        controller.stop()
        log = machine.controller_log()
        assert "Traceback" not in log and "a request failed" not in log, log


@functools.cache
def schema():
    """The API's description as schemathesis reads it."""
    import schemathesis  # takes a second

    return schemathesis.openapi.from_dict(DOCUMENT)


def is_read(case) -> bool:
    """Whether a request is short enough to reach the API; the HTTP server refuses longer ones without JSON."""
    head = json.dumps([case.path_parameters, case.query, case.headers], default=str)
    return len(json.dumps(case.body, default=str)) < BODY_BYTES_MAX and 2 * len(head) < HEADER_BYTES_MAX


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_any_request_is_answered_as_described(api, path, method, mode, wait_until):
    operation = schema()[path][method]
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    url, machine = api
    generation = GenerationMode(mode)
    # Settings depend on each other, and some are small languages: JSON Schema cannot say which are refused.
    excluded = [positive_data_acceptance] if path.endswith("/policy") else []
    strategy = operation.as_strategy(generation_mode=generation)

    varies = "{" in path or {"parameters", "requestBody"} & DOCUMENT["paths"][path][method].keys()

    @hypothesis.settings(
        max_examples=EXAMPLES if varies else 1,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=strategy, known=hypothesis.strategies.sampled_from(["k0", "k1", "k2", None]))
    def answers(case, known):
        hypothesis.assume(is_read(case))
        if known is not None and mode == "positive" and "kernel_id" in path:
            case.path_parameters["kernel_id"] = known
        case.call_and_validate(base_url=url, session=session, excluded_checks=excluded)

    with requests.Session() as session:
        try:
            answers()
        except hypothesis.errors.Unsatisfiable:  # there is nothing that could be wrong
            assert mode == "negative" and "requestBody" not in DOCUMENT["paths"][path][method]
    wait_until(lambda: machine.node() is not None)  # one person's requests are limited, its own too


def numbers_in(schema, path=()):
    """Each number that a schema describes, and where."""
    kinds = schema.get("type") or ()
    if {"integer", "number"} & ({kinds} if isinstance(kinds, str) else set(kinds)):
        yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from numbers_in(inner, (*path, name))


def test_every_number_of_every_request_is_bounded():
    for path, item in DOCUMENT["paths"].items():
        for operation in item.values():
            body = operation.get("requestBody", {}) if isinstance(operation, dict) else {}
            schemas = [("body", body.get("content", {}).get("application/json", {}).get("schema", {}))]
            schemas += [
                (each["name"], each["schema"])
                for each in (operation.get("parameters", ()) if isinstance(operation, dict) else ())
                if "schema" in each
            ]
            for name, schema in schemas:
                for where, number in numbers_in(schema):
                    assert "maximum" in number and {"minimum", "exclusiveMinimum"} & number.keys(), (
                        path,
                        name,
                        where,
                    )
    for where, number in numbers_in(DOCUMENT["components"]["schemas"]["SettingsChange"]):
        assert {"minimum", "maximum"} <= number.keys(), where


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("PUT", "/kernels/k", "priority"),
        ("POST", "/kernels/k/hold", "duration_s"),
        ("POST", "/kernels/k/end", "process"),
        ("POST", "/room", "bytes"),
        ("POST", "/room", "priority"),
        ("PATCH", "/policy", "idle_timeout_s"),
        ("PATCH", "/policy", "lot_bytes"),
    ],
)
def test_a_number_of_thousands_of_digits_is_refused(api, method, path, name, sign):
    _, machine = api
    whole = {"bytes": 1, "timeout_s": 1} if path == "/room" else {}
    machine.ask("PUT", "/kernels/k", {})
    for number in ("9" * 4290, "1e300"):
        text = json.dumps({**whole, name: 0}).replace(f'"{name}": 0', f'"{name}": {sign}{number}')
        with contextlib.closing(UnixConnection(machine.socket)) as connection:
            connection.request(method, f"/api/v1{path}", text, {"Content-Type": "application/json"})
            assert connection.getresponse().status == 400, text[:60]

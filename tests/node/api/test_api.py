"""The API is what `openapi.json` says, survives bad clients, and the client speaks it."""

from __future__ import annotations

import asyncio
import json
import re
import select
import socket
import threading
from types import SimpleNamespace

import pytest
from api_answers import DOCUMENT, checked, raw
from fake_shim import GPU, MIB, NO_GPU_ROOM
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from tornado.web import RequestHandler

from jupyter_affinode.client.api import ControllerClient, ControllerRefused, ControllerUnavailable
from jupyter_affinode.client.kernel_messages import KernelMessages
from jupyter_affinode.node.api.server import KERNEL_ID, ROUTES, UnknownHandler
from jupyter_affinode.node.execution.notices import Notice
from jupyter_affinode.node.views.event_stream import UNREAD_MAX, EventHub
from jupyter_affinode.printable import TEXT_MAX, is_printable

METHODS = {"get", "put", "post", "patch", "delete"}


def schema(name):
    """A validator of one of the document's schemas."""
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )


@pytest.fixture
def api(node, shim):
    """A controller with a kernel; `api("GET", "/node")` checks each answer against the document."""
    machine = node()
    kernel = shim("k1", resident=300 * MIB)
    kernel.page.memory[GPU][2] = 5 * MIB
    kernel.page.write()

    def ask(method, path, body=None):
        return checked(method, path, machine.ask(method, path, body))

    ask.machine, ask.kernel = machine, kernel
    return ask


def test_the_document_is_valid_openapi():
    validate(DOCUMENT)


def test_every_handler_is_described_and_every_description_has_a_handler():
    described = {path: METHODS & item.keys() for path, item in DOCUMENT["paths"].items()}
    served = {
        pattern.replace(f"({KERNEL_ID})", "{kernel_id}"): {
            name for name in METHODS if getattr(handler, name) is not getattr(RequestHandler, name)
        }
        for pattern, handler in ROUTES
        if handler is not UnknownHandler
    }
    assert described == served


def test_a_text_is_described_as_it_is_taken():
    text = DOCUMENT["components"]["schemas"]["Text"]
    kernel_id = DOCUMENT["components"]["parameters"]["kernel_id"]["schema"]
    assert text["maxLength"] == kernel_id["maxLength"] == TEXT_MAX
    for character in map(chr, [*range(0xD800), *range(0xE000, 0x10000), 0x1F600]):
        for described in (text, kernel_id):
            assert bool(re.fullmatch(described["pattern"], character)) == is_printable(character), ascii(
                character
            )
    assert not is_printable("\ud800")


def test_every_request_answers_as_described(api):
    for method, path, body, expected in [
        ("GET", "/node", None, 200),
        ("GET", "/kernels", None, 200),
        ("PUT", "/kernels/k1", {"name": "Python 3", "path": None, "language": "python", "server": "s"}, 200),
        ("PUT", "/kernels/k2", {}, 200),
        ("GET", "/kernels/k1", None, 200),
        ("POST", "/kernels/k1/cell", {"open": True, "cell_id": "c"}, 204),
        ("POST", "/kernels/k1/hold", {"duration_s": 5.5}, 200),
        ("POST", "/kernels/k1/release", None, 200),
        ("POST", "/kernels/k1/focus", {}, 204),
        ("POST", "/kernels/k1/park", {"wait": True}, 200),
        ("POST", "/kernels/k1/resume", None, 200),
        ("POST", "/kernels/k1/cancel", {}, 204),
        ("POST", "/kernels/k1/dying", {}, 204),
        ("GET", "/policy", None, 200),
        ("PATCH", "/policy", {"park_when": "idle", "idle_timeout_s": 60}, 200),
        ("PATCH", "/policy", {"host_reserve_bytes": None, "drop_caches_before_park": True}, 200),
        ("POST", "/kernels/k2/park", {}, 200),
        ("DELETE", "/kernels/k2", None, 204),
        ("GET", "/kernels/k2", None, 404),
        ("DELETE", "/kernels/k2", None, 204),
        ("POST", "/kernels/k2/park", {}, 404),
        ("POST", "/kernels/k2/hold", {}, 404),
    ]:
        assert api(method, path, body)[0] == expected, (method, path)
    assert api("PATCH", "/policy", {"hold_bytes_max": 0})[0] == 200
    status, answer = api("POST", "/kernels/k1/hold", {})
    assert (status, answer["error"]) == (409, "hold-quota"), answer
    assert api("PUT", "/kernels/k1", {"priority": -2, "may_park": False})[0] == 200
    assert api("GET", "/policy")[1]["idle_timeout_s"] == 60
    assert api("GET", "/kernels/k1")[1]["name"] == "Python 3"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/kernels/k1", {"name": "x" * 257}),
        ("PUT", "/kernels/k1", {"name": "one line\nanother"}),
        ("PUT", "/kernels/k1", {"path": "\x1b]0;title\x07"}),
        ("PUT", "/kernels/k1", {"path": "reversed \N{RIGHT-TO-LEFT OVERRIDE}"}),
        ("PUT", "/kernels/k1", {"server": "\ud800"}),
        ("POST", "/kernels/k1/cell", {"open": True, "cell_id": "\r"}),
        ("PUT", "/kernels/one%0Aanother", {}),
        ("PUT", f"/kernels/{'k' * 257}", {}),
        ("GET", "/kernels/%1B%5B2J", None),
        ("DELETE", "/kernels/%E2%80%AE", None),
        ("POST", "/kernels/%7F/park", {}),
        ("PATCH", "/policy", {"park_when": "never"}),
        ("PATCH", "/policy", {"low_watermark": 1.5}),
        ("PATCH", "/policy", {"unknown": 1}),
        ("PATCH", "/policy", {"lot_bytes": "1"}),
        ("PATCH", "/policy", {"drop_caches_before_park": 1}),
        ("PATCH", "/policy", {"when_full": "panic"}),
        ("PATCH", "/policy", {"time_slice_s": 0}),
        ("PATCH", "/policy", {"quotas": "alice=much"}),
        ("PATCH", "/policy", {"quotas": 5}),
        ("PATCH", "/policy", {"priorities": "@staff=6"}),
        ("PATCH", "/policy", {"opt_out": "alice=1"}),
    ],
)
def test_a_bad_request_is_refused_with_words_and_changes_nothing(api, method, path, body):
    before = api("GET", "/policy")[1]
    status, answer = api(method, path, body)
    assert status == 400
    assert answer["message"]
    assert api("GET", "/policy")[1] == before


def test_a_bad_setting_is_refused_even_if_a_later_configuration_overrides_it(api):
    api("PATCH", "/policy", {"contended_idle_timeout_s": 5.0})
    status, answer = api("PATCH", "/policy?configured_at=0", {"contended_idle_timeout_s": [5.0]})
    assert status == 400 and answer["message"]
    assert api("GET", "/policy")[1]["contended_idle_timeout_s"] == 5.0


@pytest.mark.parametrize(
    "data",
    [
        b"PUT /api/v1/kernels/k HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
        b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\xff nonsense\r\n\r\n",
        b"GET /api/v1/node HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["large body", "large header", "no HTTP", "negative length"],
)
def test_what_is_no_request_of_ours_is_not_read(api, data):
    assert b" 200 " not in raw(api.machine, data)
    assert api("GET", "/node")[0] == 200


def test_the_longest_words_that_a_kernel_may_have_are_taken(api):
    words = "\N{GRINNING FACE}" * 256  # twelve bytes each in JSON
    described = dict.fromkeys(("name", "path", "language", "server"), words)
    status, answer = api("PUT", "/kernels/k", described)
    assert status == 200 and answer["path"] == words


def test_a_setting_may_be_a_long_list_of_rules(api):
    rules = ",\n".join(f"user{number}=1GiB" for number in range(200))
    assert api("PATCH", "/policy", {"quotas": rules})[1]["quotas"] == rules


def test_the_client_makes_what_it_tells_fit(api):
    async def story():
        client = ControllerClient(api.machine.socket)
        await client.register("k1", name="two\nlines \ud800", path=f"{'folder/' * 100}thesis.ipynb")
        await client.cell("k1", True, "c" * 1000)
        return await client.kernel("k1")

    told = asyncio.run(story())
    assert told["name"] == "two\N{REPLACEMENT CHARACTER}lines \N{REPLACEMENT CHARACTER}" and told["cell_open"]
    assert (
        len(told["path"]) == 256 and told["path"].startswith("…") and told["path"].endswith("/thesis.ipynb")
    )


def test_deeply_nested_json_is_refused(api):
    body = b"[" * 60000
    head = "PUT /api/v1/kernels/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    assert b" 400 " in raw(api.machine, head.encode() + body)


def test_an_unknown_path_is_json_too(api):
    status, answer = api.machine.ask("GET", "/nothing")
    assert (status, answer["error"]) == (404, "not-found")
    schema("Error").validate(answer)
    assert api.machine.ask("DELETE", "/node")[0] == 405


def test_a_client_that_never_finishes_its_request_delays_no_other(api):
    slow = []
    for _ in range(50):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(api.machine.socket))
        client.sendall(b"GET /api/v1/node HT")
        slow.append(client)
    assert api("GET", "/node")[0] == 200
    assert select.select(slow, [], [], 0)[0] == []  # it was not first done with them
    for client in slow:
        client.close()


def test_metrics_name_what_there_is(api):
    api("POST", "/kernels/k1/park", {})
    text = raw(api.machine, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").decode()
    assert 'affinode_kernels{residency="parked"} 1.0' in text
    assert 'affinode_moves_total{cause="asked",depth="memory",move="park",outcome="ok"} 1.0' in text
    assert "affinode_move_duration_seconds_bucket" in text
    assert f"affinode_parked_bytes {300.0 * MIB}" in text or "affinode_parked_bytes 3.145728e+08" in text


# ---- the client and the stream


def test_the_client_speaks_the_whole_api(api):
    async def story():
        client = ControllerClient(api.machine.socket)
        assert (await client.node())["controller"]["version"] == "test"
        assert [kernel["id"] for kernel in await client.kernels()] == ["k1"]
        assert (await client.register("a b/c", name="odd", server="s"))["name"] == "odd"
        assert (await client.kernel("a b/c"))["id"] == "a b/c"
        await client.cell("k1", True, "c1")
        assert (await client.kernel("k1"))["cell_open"] is True
        assert (await client.park("k1"))["residency"] == "parked"
        assert (await client.resume("k1", wait=False))["id"] == "k1"
        assert (await client.resume("k1"))["residency"] == "resident"
        assert (await client.hold("k1", 60))["held_for_s"] == pytest.approx(60, abs=5)
        assert (await client.release("k1"))["held_for_s"] is None
        await client.cancel("k1")
        await client.focus("k1")
        KernelMessages("k1", api.machine.socket).tell_dying()
        assert (await client.set_policy(idle_timeout_s=7))["idle_timeout_s"] == 7
        assert (await client.policy())["idle_timeout_s"] == 7
        await client.forget("a b/c")
        with pytest.raises(ControllerRefused) as refused:
            await client.kernel("a b/c")
        assert (refused.value.status, refused.value.slug) == (404, "unknown-kernel")
        await client.close()

    asyncio.run(story())


def test_the_client_says_when_there_is_no_controller(tmp_path):
    async def ask(path):
        with pytest.raises(ControllerUnavailable, match=re.escape(str(path))):
            await ControllerClient(path).node()
        with pytest.raises(ControllerUnavailable, match=re.escape(str(path))):
            async for _ in ControllerClient(path).events():
                pass

    asyncio.run(ask(tmp_path / "absent.sock"))
    abandoned = socket.socket(socket.AF_UNIX)
    abandoned.bind(str(tmp_path / "abandoned.sock"))
    abandoned.close()
    asyncio.run(ask(tmp_path / "abandoned.sock"))


def test_events_begin_with_a_snapshot_and_tell_every_change(api):
    async def story():
        client = ControllerClient(api.machine.socket)
        events = client.events()
        seen = [await anext(events)]
        assert seen[0]["event"] == "snapshot"
        await client.register("k9", name="new")
        await client.hold("k1", 60)
        await client.park("k1")
        await client.forget("k9")
        while not any(event["event"] == "removed" for event in seen):
            seen.append(await asyncio.wait_for(anext(events), 60))
        while not any(event["event"] == "ping" for event in seen):
            seen.append(await asyncio.wait_for(anext(events), 60))
        await events.aclose()
        return seen

    seen = asyncio.run(story())
    for event in seen:
        schema("Event").validate(event)
    changes = [event["kernel"] for event in seen if event["event"] == "kernel"]
    assert any(kernel["id"] == "k9" for kernel in changes)
    assert any(kernel["held_for_s"] for kernel in changes)
    assert [kernel["residency"] for kernel in changes if kernel["id"] == "k1"][-1] == "parked"
    assert {"event": "removed", "kernel_id": "k9"} in seen


def test_a_listener_that_does_not_read_gets_a_snapshot_instead_of_everything():
    async def story():
        lacks = dict.fromkeys(("held_for_s", "move", "last_park", "last_resume", "wait"))
        kernels = [{"id": "k", "text": "", "name": 0, **lacks}]
        hub = EventHub(
            SimpleNamespace(
                node_json=lambda identity=None: {"gpus": []},
                kernels_json=lambda: [dict(kernel) for kernel in kernels],
                owner_of=lambda kernel_id: None,
            )
        )
        subscriber = hub.subscribe()
        assert await subscriber.lines(1) is None, "a snapshot is due"
        notice = Notice("stuck", "warning", "it is stuck")
        for number in range(UNREAD_MAX * 3):
            kernels[0]["name"] = number
            hub.publish()
        hub.tell_notice(notice)
        assert await subscriber.lines(1) is None, "another is"
        unread = [json.loads(line) for line in (await subscriber.lines(1)).splitlines()]
        assert unread == [{"event": "notice", "notice": notice.as_dict()}], (
            "nothing else says what it does not"
        )
        kernels[0]["name"] = "new"
        hub.publish()
        told = [json.loads(line) for line in (await subscriber.lines(1)).splitlines()]
        assert told[-1]["kernel"]["name"] == "new"
        assert json.loads(await subscriber.lines(0.01)) == {"event": "ping"}

    asyncio.run(story())


def test_a_listener_that_does_not_read_delays_no_other(api):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(api.machine.socket))
        client.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        for number in range(300):
            asked = api.machine.ask("PUT", "/kernels/k1", {"name": f"name {number} {'x' * 200}"})
            assert asked[0] in (200, 204)


def test_a_stream_ends_with_the_controller(machine):
    process = machine.start_controller()
    began, ended = threading.Event(), threading.Event()

    async def follow():
        async for _ in ControllerClient(machine.socket).events():
            began.set()
        ended.set()

    follower = threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(follow(), 60)))
    follower.start()
    assert began.wait(60)
    process.terminate()
    process.wait(timeout=60)
    follower.join(timeout=60)
    assert ended.is_set()
    assert " E " not in machine.controller_log()


def test_a_request_that_is_cancelled_leaves_no_connection_behind(api):
    api.kernel.resume_status = NO_GPU_ROOM

    async def story():
        client = ControllerClient(api.machine.socket)
        await client.park("k1")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.resume("k1"), 0.3)
        assert not client._streams

    asyncio.run(story())


def test_a_setting_of_several_lines_is_one_line_of_the_log(machine):
    machine.start_controller()
    assert machine.ask("PATCH", "/policy", {"quotas": "alice=1GiB,\n2026-01-01 I forged=1GiB"})[0] == 200
    assert "I forged=1GiB" in machine.controller_log()
    assert not any(line.startswith("2026-01-01 I forged") for line in machine.controller_log().splitlines())

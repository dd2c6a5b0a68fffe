"""The Jupyter events: their schemas, and what is worth one."""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_events import EventLogger

from jupyter_affinode.server.controller_watch import NodeWatch
from jupyter_affinode.server.events import (
    KERNEL_RESIDENCY,
    NODE,
    NOTICE,
    ResidencyEvents,
    needs_event,
    residency_data,
    schema_paths,
)

KERNEL: dict[str, Any] = {
    "id": "k",
    "name": "Python 3",
    "path": "secret/plan.ipynb",
    "residency": "resident",
    "text": "On the GPU: 12 GiB",
    "reason": None,
    "resident_bytes": 12 * 2**30,
    "parked_bytes": 0,
    "place": None,
    "held_for_s": None,
    "simulated": True,
    "user": "alice",
    "server": "alice/gpu",
    "processes": [{"number": 1, "command": "secret-train", "stuck": None}],
    "calls": 5,
    "move": None,
    "wait": None,
    "last_park": None,
}
BLOCKER = {"kernel_id": "train", "own": True, "why": "held", "free_in_s": 60.0}
WAIT = {"code": "held", "args": {"bytes": 2**30}, "blockers": [BLOCKER]}


@pytest.fixture
def emitted():
    """(events, watch, what was emitted as (schema, data)) with a real event logger."""
    import logging

    logger = EventLogger()
    watch = NodeWatch(policy={}, log=logging.getLogger(__name__))
    events = ResidencyEvents(logger, watch, lambda kernel_id: kernel_id == "k")
    events.register()
    got: list[tuple[str, dict[str, Any]]] = []

    async def listen(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        got.append((schema_id, data))

    for schema in (KERNEL_RESIDENCY, NODE, NOTICE):
        logger.add_listener(schema_id=schema, listener=listen)

    async def all_of() -> list[tuple[str, dict[str, Any]]]:
        await logger.gather_listeners()
        return got

    return events, watch, all_of


async def test_each_state_is_a_valid_event_without_paths_or_names(emitted):
    events, _, all_of = emitted
    states = ["resident", "parking", "parked", "queued", "resuming", "lost"]
    previous = None
    for state in states:
        kernel = {**KERNEL, "residency": state, "place": 2 if state == "queued" else None}
        events.kernel_changed(previous, kernel)
        previous = kernel
    got = await all_of()
    assert [data["residency"] for schema, data in got if schema == KERNEL_RESIDENCY] == states
    assert [data["kernel"]["residency"] for _, data in got] == states
    assert got[0][1]["kernel"]["calls"] == 5
    assert not any(name in str(got) for name in ("secret", "Python 3", "alice"))


async def test_other_servers_kernels_are_not_told(emitted):
    events, _, all_of = emitted
    events.kernel_changed(None, {**KERNEL, "id": "other"})
    assert await all_of() == []


async def test_notices_of_this_servers_kernels_and_of_the_machine_are_told(emitted):
    events, _, all_of = emitted
    notice = {"kind": "made-room", "level": "info", "text": "freed the GPU to make room for another user."}
    events.noticed({**notice, "kernel_id": "other"})
    events.noticed({**notice, "kernel_id": "k", "args": {"for": "other", "bytes": 5}})
    events.noticed({**notice, "kind": "memory-low", "kernel_id": None})
    told = [
        (data["kind"], data["kernel_id"], data["text"]) for schema, data in await all_of() if schema == NOTICE
    ]
    assert [data["args"] for schema, data in await all_of() if schema == NOTICE] == [
        {"for": "other", "bytes": 5},
        {},
    ]
    assert told == [("made-room", "k", notice["text"]), ("memory-low", None, notice["text"])]


async def test_the_controllers_coming_and_going_is_told(emitted):
    events, watch, all_of = emitted
    watch.available, watch.node, watch.message, watch.code = True, {"simulated": True}, None, None
    events.controller_found()
    watch.available, watch.node, watch.message, watch.code = False, None, "gone", "ended"
    events.controller_lost()
    assert [data for schema, data in await all_of() if schema == NODE] == [
        {"available": True, "simulated": True, "message": None, "code": None},
        {"available": False, "simulated": False, "message": "gone", "code": "ended"},
    ]


def changed(**fields: Any) -> bool:
    return needs_event(KERNEL, {**KERNEL, **fields})


def test_what_a_person_would_not_see_is_not_told():
    assert not changed()
    assert not changed(resident_bytes=KERNEL["resident_bytes"] + 2**20, idle_s=3.0, calls=6)
    assert not needs_event({**KERNEL, "held_for_s": 100.0}, {**KERNEL, "held_for_s": 50.0})
    assert not needs_event(None, {**KERNEL, "residency": "none"})
    kept = {**KERNEL, "held_for_s": 100.0, "text": "On the GPU: 12 GiB, kept for 2 min (simulated)"}
    assert not needs_event(kept, {**kept, "text": "On the GPU: 12 GiB, kept for 90 s (simulated)"})


def test_no_clock_alone_is_told():
    moving = {**KERNEL, "move": {"kind": "park", "bytes": 9, "age_s": 1.0}}
    assert not needs_event(moving, {**moving, "move": {**moving["move"], "age_s": 2.0}})
    parked = {**KERNEL, "last_park": {"bytes": 9, "duration_s": 1.0, "ago_s": 1.0}}
    assert not needs_event(parked, {**parked, "last_park": {**parked["last_park"], "ago_s": 2.0}})
    waits = {**KERNEL, "wait": WAIT, "estimate_s": 60.0, "waiting_s": 1.0}
    sooner = {**WAIT, "blockers": [{**BLOCKER, "free_in_s": 59.0}]}
    assert not needs_event(waits, {**waits, "wait": sooner, "estimate_s": 59.0, "waiting_s": 2.0})


def test_what_a_person_would_see_is_told():
    assert changed(residency="parked") and changed(place=3) and changed(held_for_s=3600.0)
    assert changed(resident_bytes=13 * 2**30) and changed(cell_open=True) and changed(refusal_code="busy")
    assert changed(move={"kind": "park", "bytes": 9, "age_s": 0.0})
    assert changed(wait=WAIT) and changed(processes=[{"number": 1, "stuck": {"reason": "lost"}}])
    waits = {**KERNEL, "wait": WAIT, "estimate_s": 60.0}
    assert needs_event(waits, {**waits, "wait": {**WAIT, "blockers": []}})
    assert needs_event(waits, {**waits, "estimate_s": None})


def test_a_controller_without_the_newer_fields_is_understood():
    fields = ("calls", "move", "wait", "last_park", "processes")
    old = {name: value for name, value in KERNEL.items() if name not in fields}
    assert not needs_event(old, dict(old)) and needs_event(old, {**old, "wait_reason": "the GPU is full"})
    assert residency_data(None, old)["kernel"]["processes"] == []


def test_a_hold_that_is_renewed_and_a_new_kernel_are_told():
    assert needs_event({**KERNEL, "held_for_s": 50.0}, {**KERNEL, "held_for_s": 3600.0})
    assert needs_event({**KERNEL, "held_for_s": 50.0}, KERNEL)
    assert needs_event(None, KERNEL)


def test_the_data_is_exactly_what_the_schema_names():
    import yaml

    path = next(path for path in schema_paths() if path.name == "kernel_residency.yaml")
    schema = yaml.safe_load(path.read_text())
    assert set(schema["properties"]) == set(schema["required"]) == set(residency_data(None, KERNEL))
    assert schema["$id"] == KERNEL_RESIDENCY

"""Users' requests outlive the controller: holds, resumes, and ends that were asked for."""

from __future__ import annotations

import json
import logging
import time
from types import SimpleNamespace

import pytest
from fake_shim import MIB, NO_GPU_ROOM

from jupyter_affinode.node.state.persistence import FILE_NAME, StoredRequests
from jupyter_affinode.node.state.records.kernel import Ending, KernelRecord

LOG = logging.getLogger("persistence")
DAY_S = 86400.0


def test_a_hold_and_a_wish_outlive_the_controller(machine, node, shim, wait_until):
    node()
    shim("kept", resident=100 * MIB)
    shim("waits", parked=100 * MIB, resume_status=NO_GPU_ROOM)
    assert machine.ask("POST", "/kernels/kept/hold", {"duration_s": 500})[0] == 200
    assert machine.ask("POST", "/kernels/waits/resume", {"wait": False})[0] == 202
    wait_until(lambda: len(kept(machine)) == 2)
    node.stop()

    node()
    shim("kept", resident=100 * MIB)
    shim("waits", parked=100 * MIB, resume_status=NO_GPU_ROOM)
    assert 0 < machine.kernel("kept")["held_for_s"] <= 500
    wait_until(lambda: machine.kernel("waits")["place"] == 1)
    assert machine.ask("POST", "/kernels/kept/release")[0] == 200
    assert machine.ask("POST", "/kernels/waits/park")[0] == 200
    wait_until(lambda: kept(machine) == {})


def test_what_its_kernelspec_said_is_known_where_no_server_tells_it_anew(machine, node, shim, wait_until):
    node()
    shim("batch", resident=100 * MIB)
    shim("notebook", resident=100 * MIB)
    for name, server in (("batch", None), ("notebook", "bob's")):
        assert machine.ask("PUT", f"/kernels/{name}", {"server": server, "priority": -2})[0] == 200
    wait_until(lambda: "batch" in kept(machine))
    assert "notebook" not in kept(machine)
    node.stop()

    node()
    shim("batch", resident=100 * MIB)
    wait_until(lambda: (machine.kernel("batch") or {}).get("priority") == -2)


def test_no_second_kernel_is_ended_because_the_controller_forgot_the_first(
    machine, node, shim, births, wait_until
):
    settings = {"when_full": "terminate_newest", "time_slice_s": 0.1}

    def all_asked():
        asker = shim("asker", resident=100 * MIB)
        for name in ("older", "younger"):
            shim(name, resident=450 * MIB, busy=True)
        machine.ask("PUT", "/kernels/older", {"server": "bob's"})
        return asker

    node(**settings)
    asker = all_asked()
    machine.ask("PUT", "/kernels/younger", {"server": "bob's"})
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: machine.kernel("younger")["end_asked"])
    wait_until(lambda: "younger" in kept(machine))
    node.stop()

    node(**settings)
    asker = all_asked()  # before the server of the younger is back
    assert machine.kernel("younger")["end_asked"] is None, "the waiter may have given up"
    asker.allocate(400 * MIB, number=1)
    wait_until(lambda: (machine.kernel("asker")["waiting_s"] or 0) > 0.5)
    wait_until(lambda: machine.kernel("younger")["end_asked"])
    assert machine.kernel("older")["end_asked"] is None


@pytest.mark.parametrize(("uses_gpu", "end"), [(True, "for another"), (False, None)])
def test_a_kernel_that_was_restarted_meanwhile_is_not_ended_for_what_it_had(tmp_path, uses_gpu, end):
    path = tmp_path / FILE_NAME
    StoredRequests(path, LOG).save([KernelRecord("k", ending=Ending("for another", for_kernel="older"))], 0.0)
    stored_requests = StoredRequests(path, LOG)
    stored_requests.read(100.0, DAY_S)
    kernel = KernelRecord("k", processes={1: SimpleNamespace(uses_gpu=uses_gpu)})
    stored_requests.recall(kernel, 101.0)
    assert kernel.ending.reason == end


def kept(machine):
    """What is in the file."""
    try:
        return json.loads(machine.socket.with_name(FILE_NAME).read_text())["kernels"]
    except FileNotFoundError:
        return {}


@pytest.fixture
def file(tmp_path):
    """A file that says that a kernel is held for a year."""
    path = tmp_path / FILE_NAME
    kernel = KernelRecord("kept", held_until=time.monotonic() + 365 * DAY_S)
    StoredRequests(path, LOG).save([kernel], 0.0)
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def held_until(path, now):
    """Until when the kernel is held by a controller that begins `now`."""
    stored_requests = StoredRequests(path, LOG)
    stored_requests.read(now, DAY_S)
    kernel = KernelRecord("kept")
    stored_requests.recall(kernel, now)
    return kernel.held_until


def test_no_hold_lasts_longer_than_one_may(file):
    assert held_until(file, 100.0) == 100.0 + DAY_S


def test_a_hold_that_is_over_is_over(file):
    assert held_until(file, time.monotonic() + 366 * DAY_S) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text()[:-9]),
        lambda path: path.write_bytes(b"\xff\x00"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(path.read_text().replace('"boot": "', '"boot": "another')),
        lambda path: path.write_text('{"boot": 5, "kernels": {"kept": {"held_until": 1e30}}}'),
        lambda path: path.write_text(
            path.read_text().replace('"held_until": ', '"held_until": "soon", "x": ')
        ),
        lambda path: path.write_text(path.read_text().replace('"held_until": ', '"held_until": NaN, "x": ')),
        lambda path: path.write_text(
            path.read_text().replace('"held_until": ', f'"held_until": {"9" * 400}, "x": ')
        ),
        lambda path: path.chmod(0o666),
        lambda path: (path.rename(path.with_name("other")), path.symlink_to("other")),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_file_that_cannot_be_believed_is_not(file, damage):
    damage(file)
    assert held_until(file, 100.0) is None


def test_long_descriptions_of_other_kernels_do_not_hide_a_hold(file):
    """Ids and priorities as long as the API takes them, of as many kernels as it takes."""
    crowd = [KernelRecord("\U0001f600" * 252 + str(number)) for number in range(4096)]
    for kernel in crowd:
        kernel.describe(priority=-1000)
    StoredRequests(file, LOG).save([*crowd, KernelRecord("kept", held_until=1e9)], 0.0)
    assert held_until(file, 100.0) == 100.0 + DAY_S


def test_a_disk_that_is_full_costs_nothing_else_and_is_tried_again(tmp_path, caplog):
    path = tmp_path / "nowhere" / FILE_NAME
    stored_requests, kernel = StoredRequests(path, LOG), KernelRecord("kept", held_until=1e9)
    for now in (0.0, 1.0, 2.0):
        stored_requests.save([kernel], now)
    assert len(caplog.records) == 1
    path.parent.mkdir()
    stored_requests.save([kernel], 60.0)
    assert held_until(path, 100.0) == 100.0 + DAY_S

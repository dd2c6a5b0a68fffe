"""What the controller remembers of host memory, and for how long; its own parts, on model processes."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from model_node import Machine

from jupyter_affinode.node.model.actions import Park, ReadBack, Resume, Spill
from jupyter_affinode.node.model.snapshot import HostUse, Kernel, Residency
from jupyter_affinode.node.protocol.page import Depth, State
from jupyter_affinode.node.protocol.wire import MOVE_BUDGET_SHIFT, CommandKind, Reply, Status
from jupyter_affinode.node.state.host import host_figures
from jupyter_affinode.node.state.host.disk import Disk
from jupyter_affinode.node.state.host.host_lending import budget_argument, learn_from_park, trim
from jupyter_affinode.node.state.host.host_usage import host_use, on_disk_bytes, parks_take_bytes
from jupyter_affinode.node.state.host.lots_beforehand import soon_wanted_bytes
from jupyter_affinode.node.state.snapshot_builder import kernel_picture, snapshot
from jupyter_affinode.node.system.host_memory import CgroupMemory, HostMemory
from jupyter_affinode.settings.policy import GIB, MIB, Settings

GPU = "GPU-a"


@pytest.fixture
def limits(monkeypatch):
    """`limits[pid]`: the limits above a process now, by path: (headroom, limit)."""
    made = {}

    def look(pid, known=None):
        return tuple(CgroupMemory(path, *sizes) for path, sizes in made.get(pid, {}).items())

    monkeypatch.setattr(host_figures, "cgroup_limits", look)
    return made


def machine_of(clock, *names):
    """Each kernel has a GiB of the GPU."""
    machine = Machine(clock, {GPU: 64 * GIB})
    for name in names:
        machine.start(name, {GPU: GIB})
    machine.pass_time()
    return machine


def test_a_cgroups_figure_is_current_whichever_process_was_read_last(clock, limits):
    """It was that of a kernel parked long ago, and no other could be parked any more."""
    machine = machine_of(clock, "works", "parked")
    for shim in machine.shims:
        limits[shim.pid] = {"/all": (2 * GIB, 64 * GIB)}
    machine.state.host.read_limits(machine.state.kernels.values())
    record = machine.state.kernels["parked"]
    machine.operations.begin(record, Park(record.id, "asked"))
    machine.settle_one(machine.shims[1])
    assert record.residency.value == "parked"
    for shim in machine.shims:
        limits[shim.pid] = {"/all": (40 * GIB, 64 * GIB)}
    machine.state.host.read_limits(machine.state.kernels.values())
    host = snapshot(machine.state, clock.now, is_settled=True).host
    assert host.headroom_bytes == {"/all": 40 * GIB}


def test_a_limit_that_several_share_counts_for_all_of_them_beside_their_own(clock, limits):
    machine = machine_of(clock, "a", "b")
    for shim in machine.shims:
        limits[shim.pid] = {f"/all/{shim.kernel_id}": (8 * GIB, 8 * GIB), "/all": (3 * GIB, 16 * GIB)}
    machine.state.host.read_limits(machine.state.kernels.values())
    node = snapshot(machine.state, clock.now, is_settled=True)
    assert [kernel.cgroups for kernel in node.kernels] == [("/all/a", "/all"), ("/all/b", "/all")]
    assert node.host.headroom_bytes == {"/all/a": 8 * GIB, "/all/b": 8 * GIB, "/all": 3 * GIB}


def kept(record, size):
    """The kernel's process keeps so much and can be told to give it back."""
    (process,) = record.processes.values()
    process.data = replace(process.data, retained_bytes=size)
    return process


def test_what_was_asked_back_before_a_move_says_nothing_of_what_is_kept_after_it(clock):
    """A kernel that came back within ten seconds kept twenty gigabytes that could not be asked for."""
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    kept(record, 4 * GIB)
    trim(record, 0, "", clock.now)
    assert host_use(record, 0.0, {}, clock.now).trimmable_bytes == 0
    clock.now += 3
    machine.operations.begin(record, Park(record.id, "asked"))
    machine.settle_one(machine.shims[0])
    machine.operations.begin(record, Resume(record.id, {GPU: GIB}, "asked"))
    machine.settle_one(machine.shims[0])
    kept(record, 4 * GIB)
    use = host_use(record, 0.0, {}, clock.now)
    assert (use.trimmable_bytes, use.trimming_bytes) == (4 * GIB, 0)


def test_a_trim_that_is_not_answered_is_waited_for_two_seconds_and_then_not_for_a_minute(clock):
    """Its page may say anything; others would wait for it alone."""
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    kept(record, 1000 * GIB)
    trim(record, 980 * GIB, "", clock.now)
    assert host_use(record, 0.0, {}, clock.now + 1).trimming_bytes == 20 * GIB
    trim(record, 960 * GIB, "", clock.now + 1)  # its two seconds do not begin anew
    for later in (3, 12, 50):
        use = host_use(record, 0.0, {}, clock.now + later)
        assert (use.trimmable_bytes, use.trimming_bytes) == (0, 0)
    assert host_use(record, 0.0, {}, clock.now + 61).trimmable_bytes == 1000 * GIB
    kept(record, 960 * GIB)
    assert host_use(record, 0.0, {}, clock.now + 3).trimmable_bytes == 960 * GIB


def test_lots_that_a_process_gave_back_are_its_no_more_though_its_page_shows_them_yet(clock):
    """A kernel that had just released its copy was parked at once, and told to take the lots that it no longer had."""
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    (process,) = record.processes.values()
    process.data = replace(process.data, lot_bytes=3 * GIB)
    assert host_use(record, 0.0, {}, clock.now).lot_bytes == 0
    process.earlier_lot_bytes = GIB  # lent by a controller before this one
    assert host_use(record, 0.0, {}, clock.now).lot_bytes == GIB
    assert host_use(record, 0.0, {process.key: 2 * GIB}, clock.now).lot_bytes == 3 * GIB


def test_empty_lots_come_back_for_a_while_after_the_page_shows_that_nothing_is_retained(clock):
    """A kernel that was to release its copy was parked before the last of its lots had come back: it lacked those."""
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    process = kept(record, 4 * GIB)
    held = {process.key: 4 * GIB}
    trim(record, 0, "", clock.now)
    kept(record, 0)
    coming = [host_use(record, 0.0, {process.key: size}, clock.now + 1) for size in (4 * GIB, GIB, 0)]
    assert [use.trimming_bytes for use in coming] == [4 * GIB, GIB, 0]
    assert [use.lot_bytes for use in coming] == [0, 0, 0]
    late = host_use(record, 0.0, held, clock.now + 3)
    assert (late.trimming_bytes, late.lot_bytes) == (0, 4 * GIB)


def test_full_lots_of_a_parked_process_do_not_come_back_when_another_of_its_kernel_releases(clock):
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    process = kept(record, 256 * MIB)
    process.data = replace(process.data, state=State.PARKED)
    trim(record, 0, "", clock.now)
    use = host_use(record, 0.0, {process.key: 20 * GIB}, clock.now + 1)
    assert (use.trimming_bytes, use.lot_bytes) == (256 * MIB, 20 * GIB)


def test_no_waiter_waits_for_what_a_page_alone_claims_to_give_back(clock):
    machine = machine_of(clock, "k")
    (process,) = machine.state.kernels["k"].processes.values()
    machine.shims[0].state = State.RESUMING
    machine.state.refresh(clock.now)
    seen = kernel_picture(machine.state, machine.state.kernels[process.kernel_id], clock.now)
    assert seen.residency.value == "resuming" and seen.moves_since < clock.now - 1e6


def refuse(machine, record, *, found_less):
    machine.operations.refuse_park(
        record, Status.NO_HOST_ROOM, "no-host-memory", "short", was_tried=True, found_less=found_less
    )


def test_a_park_refused_for_host_memory_is_possible_as_soon_as_there_is_enough(clock):
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    for _ in range(10):
        refuse(machine, record, found_less=False)
    machine.state.read_pages_of(record, clock.now)
    seen = kernel_picture(machine.state, record, clock.now)
    assert seen.retry_at <= clock.now  # not kept from anything: the policy sees what there is
    assert seen.host.retry_at > clock.now + 20  # nothing is said again, and nothing unlikely tried


def test_a_kernel_with_a_process_that_found_less_host_memory_waits_for_more(clock, limits):
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    machine.state.host.memory = HostMemory(64 * GIB, 8 * GIB)
    for _ in range(10):
        refuse(machine, record, found_less=True)
    machine.state.host.read_limits(machine.state.kernels.values())
    assert record.failures.park.retry_at > clock.now + 20
    machine.state.host.memory = HostMemory(64 * GIB, 8 * GIB + 300 * MIB)
    machine.state.host.read_limits(machine.state.kernels.values())
    assert record.failures.park.retry_at <= clock.now


@pytest.mark.parametrize(
    ("share", "takes", "found_less"), [(8 * GIB, 4 * GIB, True), (2 * GIB, 4 * GIB, False)]
)
def test_a_process_that_stopped_within_its_budget_found_less_than_there_should_be(
    clock, share, takes, found_less
):
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    process = kept(record, 0)
    record.host.shares[process.key] = share
    reply = Reply(1, CommandKind.PARK, Status.NO_HOST_ROOM, takes, 0.1, "")
    assert learn_from_park(record, {process.key: reply}) is found_less


@pytest.mark.parametrize("slabs", [1, 46, 640])
def test_a_park_whose_slabs_just_fit_may_take_what_the_driver_keeps_beside_them(clock, slabs):
    """Else the shim stopped one slab before its end: "of 5312 MiB 3840 are there, and 1474 more may be taken"."""
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    (process,) = record.processes.values()
    record.host.budget_bytes = slabs * 32 * MIB
    budget = (budget_argument(record, process, [process]) >> MOVE_BUDGET_SHIFT) * MIB
    takes = 32 * MIB + 32 * MIB // 256  # shim/src/host/slab_populate.c
    assert budget // takes == slabs
    assert record.host.shares[process.key] == record.host.budget_bytes


@pytest.mark.parametrize("answer", ["written", "the process ends", "the controller is killed"])
def test_what_a_spill_may_have_written_counts_until_its_process_says_what_it_wrote(clock, answer):
    machine = machine_of(clock, "k")
    record, disk = machine.state.kernels["k"], machine.state.host.disk
    (process,) = record.processes.values()
    process.data = replace(process.data, state=State.PARKED, copy_bytes=8 * GIB)
    machine.operations.begin(record, Spill("k", 4 * GIB, "asked"))
    assert disk.written_bytes(clock.now) == 4 * GIB
    if answer == "written":
        epoch = record.operation.participants[process.key].epoch
        machine.operations.take_reply(process, Reply(epoch, CommandKind.SPILL, Status.REVOKED, GIB, 0.1, ""))
        assert disk.written_bytes(clock.now) == GIB
        return
    if answer == "the process ends":
        machine.end_process(machine.shims[0])
        machine.operations.expire(clock.now)
    else:
        later = Disk()
        later.recall(json.loads(json.dumps(disk.stored_bytes)), clock.now)
        disk = later
    assert disk.written_bytes(clock.now) == 4 * GIB


def test_only_what_is_plausible_counts_of_what_an_earlier_controller_wrote():
    disk = Disk()
    disk.recall({"10": 3, "a": {"11": 64, "12": -1, "13": "x"}, "b": 7}, 12 * 3600.0)
    assert disk.written_by(12 * 3600.0) == {"a": 64 * MIB}


@pytest.mark.parametrize("status", [Status.OK, Status.NO_HOST_ROOM, Status.REVOKED])
def test_what_is_read_back_counts_as_taken_until_it_was_and_nothing_as_written(clock, status):
    machine = machine_of(clock, "k")
    record, disk = machine.state.kernels["k"], machine.state.host.disk
    (process,) = record.processes.values()
    process.data = replace(process.data, state=State.PARKED, disk_bytes=8 * GIB)
    assert host_use(record, 0.0, {}, clock.now).readable_bytes == on_disk_bytes(record) > 0
    machine.operations.begin(record, ReadBack("k", 1 * GIB, "asked"))
    use = host_use(record, 0.0, {}, clock.now)
    assert (use.reading_bytes, use.spilling_bytes) == (1 * GIB, 0)
    assert parks_take_bytes([record]) == 1 * GIB
    epoch = record.operation.participants[process.key].epoch
    size = 0 if status is Status.NO_HOST_ROOM else 1 * GIB
    machine.operations.take_reply(process, Reply(epoch, CommandKind.READ_BACK, status, size, 0.1, "short"))
    assert record.operation is None and disk.written_bytes(clock.now) == 0
    process.data = replace(process.data, state=State.PARKED, disk_bytes=8 * GIB)
    use = host_use(record, 0.0, {}, clock.now)
    assert use.reading_bytes == 0
    assert (use.readable_bytes == 0) is (status is Status.NO_HOST_ROOM)  # for a while


@pytest.mark.parametrize(("mode", "may"), [(0o777, False), (0o770, False), (0o1777, True), (0o700, True)])
def test_a_folder_that_others_may_change_takes_no_parked_memory_and_the_log_says_so_once(
    tmp_path, mode, may, caplog
):
    """Each shim refused it, again and again, and status showed no problem."""
    tmp_path.chmod(mode)
    disk, settings = Disk(), replace(Settings(), spill_dir=str(tmp_path))
    for now in (0.0, 10.0):
        disk.measure(settings, 0, now, logging.getLogger("test"))
    told = [record.getMessage() for record in caplog.records]
    assert (disk.limit_bytes > 0, disk.problem is None, len(told)) == (may, may, 0 if may else 1)
    assert all(f"chmod 1777 {tmp_path}" in text for text in told)


@pytest.mark.parametrize("residency", [State.PARKED, State.QUEUED])
def test_a_parked_kernel_gives_back_what_it_used_to_move(clock, residency):
    """Rings of kernels whose contents were on disk took all host memory, and no kernel could be parked."""
    machine = machine_of(clock, "k")
    record = machine.state.kernels["k"]
    process = kept(record, 96 * MIB)
    process.data = replace(process.data, state=residency)
    assert host_use(record, 0.0, {}, clock.now).trimmable_bytes == 96 * MIB
    process.data = replace(process.data, depth=Depth.CONTEXT)
    assert host_use(record, 0.0, {}, clock.now).trimmable_bytes == 0


@pytest.mark.parametrize(("hands_over", "wanted"), [(False, 0), (True, 36 * GIB)])
def test_lots_are_made_of_what_there_is_for_parks_in_which_a_waiter_gives_the_rest(hands_over, wanted):
    use = HostUse()
    kernels = [
        Kernel(name, Residency.RESIDENT, {"GPU-a": 20 * GIB}, host=use, may_hand_over=hands_over)
        for name in ("k0", "k1")
    ]
    assert soon_wanted_bytes(kernels, Settings(), most_bytes=18 * GIB) == wanted

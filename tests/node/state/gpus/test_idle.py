"""What counts as use: NVML's word where it can be joined, and how long is long enough."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import fake_shim
import pytest
from fake_nvml import FakeNvml
from fake_shim import GPU, MIB, PARKED

from jupyter_affinode.node.model.snapshot import Kernel, Residency, Speed
from jupyter_affinode.node.policy.victims.eligibility import LEAST_PAUSE_S, eligible_at, least_idle_s
from jupyter_affinode.node.protocol.page import Depth, PageGpu, State
from jupyter_affinode.node.protocol.wire import gpu_uuid
from jupyter_affinode.node.state.gpus import gpu_processes
from jupyter_affinode.node.state.records.process import Process
from jupyter_affinode.settings.policy import GIB, Settings

UUID = gpu_uuid(GPU)
OWN = os.getpid()


# ---- how long


def idle(seconds, **fields):
    return Kernel("k", Residency.RESIDENT, {"A": 20 * GIB}, last_activity=1000.0 - seconds, **fields)


def test_while_a_kernel_waits_a_pause_need_only_be_worth_a_round_trip():
    settings, kernel = Settings(), idle(0, may_park_context=True)
    fast, slow = {"A": Speed(0.1, 50e9, 0.1, 50e9)}, {"A": Speed(1, 1e9, 1, 1e9)}
    assert eligible_at(kernel, settings, waits_since=None, speeds=fast) == 1300
    assert eligible_at(kernel, settings, waits_since=1012.0, speeds=fast) == 1015
    moment = eligible_at(kernel, settings, waits_since=1000.0, speeds=slow)
    assert moment == pytest.approx(1000 + 2 + 2 * 20 * GIB / 1e9)


def test_a_waiter_of_some_seconds_gets_the_room_of_a_kernel_idle_for_less():
    """Else people with short pauses would keep the GPU for as long as they work."""
    settings, fast = Settings(), {"A": Speed(0.1, 50e9, 0.1, 50e9)}
    round_trip_s = 0.2 + 2 * 20 * GIB / 50e9
    assert eligible_at(idle(0, may_park_context=True), settings, waits_since=999.0, speeds=fast) == 1004
    moment = eligible_at(idle(2, may_park_context=True), settings, waits_since=992.0, speeds=fast)
    assert moment == pytest.approx(998 + max(LEAST_PAUSE_S, round_trip_s))
    assert (
        eligible_at(idle(0, may_park_context=True), settings, waits_since=900.0, speeds=fast)
        == 1000 + LEAST_PAUSE_S
    )
    slower = {"A": Speed(0, 20e9, 0, 20e9)}
    moment = eligible_at(idle(0, may_park_context=True), settings, waits_since=999.0, speeds=slower)
    assert moment == 1004, "two round trips, or a third of the time-out"
    settings = Settings(contended_idle_timeout_s=60.0)
    assert eligible_at(idle(0, may_park_context=True), settings, waits_since=1000.0, speeds=fast) == 1020


def test_a_waiter_changes_places_sooner_with_a_kernel_that_has_a_short_pause():
    settings, instant = Settings(), {"A": Speed(0, 1e12, 0, 1e12)}
    changing = idle(0)
    assert eligible_at(changing, settings, waits_since=1000.0, speeds=instant) == 1001
    slower = {"A": Speed(0, 20e9, 0, 20e9)}
    moment = eligible_at(changing, settings, waits_since=1000.0, speeds=slower)
    assert moment == pytest.approx(1000 + 2 * 20 * GIB / 20e9), "a round trip"
    patient = settings.changed(contended_idle_timeout_s=600.0)
    assert eligible_at(changing, patient, waits_since=1000.0, speeds=instant) == 1040


def test_where_pauses_mostly_outlast_a_round_trip_it_is_not_waited_for():
    settings, slower = Settings(), {"A": Speed(0, 20e9, 0, 20e9)}
    round_trip_s = 2 * 20 * GIB / 20e9

    def moment(pauses_s, policy=settings, **fields):
        kernel = idle(0, **fields)
        return eligible_at(kernel, policy, waits_since=1000.0, speeds=slower, pauses_s=pauses_s)

    long, short = (60.0,) * 6, (1 + round_trip_s - 0.1,) * 6
    assert moment(long) == 1000 + LEAST_PAUSE_S
    assert moment(long, settings.changed(contended_idle_timeout_s=600.0)) == 1040, (
        "a fifteenth of the setting"
    )
    assert moment(long, settings.changed(contended_idle_timeout_s=0.2)) == pytest.approx(1000.2)
    for usual in (moment(short), moment(long[1:])):
        assert usual == pytest.approx(1000 + round_trip_s), "too short, or too few to tell"
    assert moment(long, may_park_context=True) == 1005, "a park and then a resume"


def test_a_waiter_of_long_standing_does_not_wait_for_the_expected_length_of_a_pause():
    """However long a site made the setting: kernels with shorter pauses would keep all others out for ever."""
    patient = Settings(contended_idle_timeout_s=600.0)
    pauses_s = (20.0,) * 6  # never as long as a fifteenth of the setting
    kernel, speeds = idle(0), {"A": Speed(0, 20e9, 0, 20e9)}
    moment = eligible_at(kernel, patient, waits_since=900.0, speeds=speeds, pauses_s=pauses_s)
    assert moment <= 1000 + 2 * 20 * GIB / 20e9, "a round trip"


def test_a_park_that_came_to_nothing_is_tried_after_the_kernels_next_use_or_when_it_has_stopped():
    """Uses as regular as the pauses of the back-off would meet a park that began when a pause is over each time."""
    settings, fast = Settings(), {"A": Speed(0.1, 50e9, 0.1, 50e9)}

    def again_at(used_at, retry_at):
        kernel = idle(1000.0 - used_at, retry_at=retry_at, retry_pause_s=8.0)
        return eligible_at(kernel, settings, waits_since=900.0, speeds=fast)

    assert again_at(used_at=1000.0, retry_at=998.0) == 1000.0 + LEAST_PAUSE_S, "it has the longest time"
    assert again_at(used_at=996.0, retry_at=998.0) == 1004.0, "its next use may come before"
    assert again_at(used_at=980.0, retry_at=998.0) == 998.0, "it did not use the GPU for as long as the pause"


def test_kernels_with_short_pauses_are_not_left_out_before_they_are_looked_at():
    """The quick look at which kernels could be eligible agrees with the exact one."""
    settings, instant = Settings(), {"A": Speed(0, 1e12, 0, 1e12)}
    found = 0
    for waited_s in (0.0, 4.9, 5.0, 60.0):
        for idle_s, parts, pauses_s in itertools.product(
            (0.5, 1.5, 6.0, 14.0, 16.0), (False, True), ((), (60.0,) * 6)
        ):
            since, kernel = 1000.0 - waited_s, idle(idle_s, may_park_context=not parts)
            moment = eligible_at(kernel, settings, waits_since=since, speeds=instant, pauses_s=pauses_s)
            if moment <= 1000.0:
                found += 1
                assert idle_s >= least_idle_s(settings, waits_since=since, now=1000.0)
    assert found == 2 * (10 + 16)


def test_the_time_already_waited_pays_for_the_round_trip_too():
    settings, kernel, slow = Settings(), idle(0), {"A": Speed(1, 1e9, 1, 1e9)}
    pays_off_s = 2 + 2 * 20 * GIB / 1e9
    assert eligible_at(kernel, settings, waits_since=980.0, speeds=slow) == pytest.approx(980 + pays_off_s)
    assert eligible_at(kernel, settings, waits_since=930.0, speeds=slow) == 1015
    assert eligible_at(kernel, settings, waits_since=900.0, speeds=slow) == 1000 + LEAST_PAUSE_S


def test_no_kernel_is_parked_later_because_another_waits():
    kernel = idle(0, park_copies_bytes=20 * GIB)
    settings = Settings(idle_timeout_s=2.0)
    assert eligible_at(kernel, settings, waits_since=1000.0, speeds={"A": Speed(50, 1e6, 50, 1e6)}) == 1002


def test_a_waiter_need_not_wait_for_the_whole_idle_timeout(node, shim, wait_until):
    """A user thinks between two cells; a kernel waits; the next of five minutes is not waited for."""
    machine = node(idle_timeout_s=300, contended_idle_timeout_s=0.3)
    thinker, waiter = shim("thinker", resident=900 * MIB), shim("waiter")
    assert machine.kernel("thinker")["eligible"] is False
    waiter.allocate(800 * MIB, number=1)
    wait_until(lambda: thinker.state == PARKED)


# ---- NVML's word


def process(pid=100, *, resident=300, parked=0, fixed=0, depth=Depth.MEMORY, state=State.RESIDENT):
    gpu = PageGpu(UUID, resident * MIB, parked * MIB, (fixed * MIB, *[0] * 7))
    data = SimpleNamespace(gpus=(gpu,), depth=depth, state=state)
    return Process(1, "k", hello=None, page=None, data=data, connection=None, pid=pid)


def gpu(used_by, busy=()):
    return FakeNvml(500 * MIB, pids=used_by, used_by=used_by, busy=busy).gpus()[0]


def test_pids_are_joined_only_where_all_of_ours_are_there_with_enough_memory():
    one, other = process(100), process(200)
    assert gpu_processes.joins(gpu({100: 900 * MIB, 200: 900 * MIB, 7: 1}), [one, other])
    assert not gpu_processes.joins(gpu({100: 900 * MIB}), [one, other])
    assert not gpu_processes.joins(gpu({100: 900 * MIB, 200: 4 * MIB}), [one, other])
    assert gpu_processes.joins(gpu({100: None, 200: None}), [one, other])
    assert gpu_processes.joins(gpu({100: 600 * MIB}), [process(100, resident=0, parked=5000)])


def test_in_a_container_nothing_is_concluded_from_pids(monkeypatch):
    monkeypatch.setattr(gpu_processes, "INITIAL_PID_NAMESPACE", 1)
    seen = gpu({9: 900 * MIB}, busy=[9, 100])
    assert gpu_processes.other_programs(seen, [process(100)], {100}) is None
    assert gpu_processes.other_programs(seen, [], set()) is None
    assert not gpu_processes.joins(seen, [process(100)])
    assert gpu_processes.contexts_bytes(seen, [process(100)], [process(100)]) is None


@pytest.mark.parametrize(("uid", "is_named"), [(os.getuid(), True), (os.getuid() + 1, False), (0, True)])
def test_unmanaged_processes_are_named_if_they_are_our_own_users_and_by_root(monkeypatch, uid, is_named):
    monkeypatch.setattr(gpu_processes.os, "getuid", lambda: uid)
    (row,) = gpu_processes.other_programs(gpu({100: 900 * MIB, OWN: 50 * MIB}), [process(100)], {100})
    assert (row.pid, bool(row.command), row.bytes) == (OWN if is_named else None, is_named, 50 * MIB)


def test_what_nvml_counts_for_ours_beyond_their_pages_is_their_contexts():
    def contexts(*processes):
        known = gpu_processes.by_gpu(processes)[UUID]
        return gpu_processes.contexts_bytes(gpu({100: 900 * MIB, 200: 650 * MIB}), known, processes)

    assert contexts(process(100), process(200, resident=0, parked=40)) == 1250 * MIB
    assert contexts(process(100), process(200, resident=0)) == 1250 * MIB, "also one that waits for its first"
    assert contexts(process(100), process(300, resident=0, parked=70, depth=Depth.CONTEXT)) == 600 * MIB


def test_a_kernel_that_computes_on_without_calling_is_not_idle(node, shim, wait_until):
    """Work that was submitted long ago runs on: NVML sees it, the calls do not show it."""
    nvml = FakeNvml(500 * MIB, pids={OWN}, used_by={OWN: 900 * MIB}, busy=[OWN])
    machine = node(nvml=nvml)
    kernel = shim("k", resident=300 * MIB)
    wait_until(lambda: (machine.kernel("k") or {}).get("idle_s") is not None)
    used_at = kernel.page.last_activity / 1e9

    def is_seen_in_use():
        least = fake_shim.time.monotonic() - used_at - 1  # by its calls it is idle for longer than that
        return machine.kernel("k")["idle_s"] < least

    wait_until(is_seen_in_use)
    nvml.busy = frozenset()
    machine.ask("PATCH", "/policy", {"park_when": "idle", "idle_timeout_s": 0.3})
    wait_until(lambda: kernel.state == PARKED)

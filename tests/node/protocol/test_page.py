"""Pages are verified before they are mapped, and read without trust."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time

import fake_shim
import pytest
from fake_shim import GPU, MIB, FakePage
from hypothesis import given
from hypothesis import strategies as st

from jupyter_affinode.node.protocol.page import USED_BYTES, Depth, PageError, State, parse_page
from jupyter_affinode.node.protocol.peer_clock import PeerClock
from jupyter_affinode.node.system.mapped_page import Page


@pytest.fixture
def fake():
    page = FakePage()
    yield page
    page.close()


def test_a_page_is_read_as_the_shim_wrote_it(fake):
    fake.memory[GPU] = [300 * MIB, 200 * MIB, 7 * MIB]
    fake.state = fake_shim.QUEUED
    fake.write()
    page = Page(fake.descriptor)
    data = page.read()
    assert (data.state, data.want, data.calls_in_flight) == (State.QUEUED, 1, 0)
    (gpu,) = data.gpus
    assert (gpu.resident_bytes, gpu.parked_bytes, sum(gpu.unmovable_bytes)) == (300 * MIB, 200 * MIB, 7 * MIB)
    fake.state = fake_shim.RESIDENT
    fake.write()
    assert page.read().state is State.RESIDENT
    page.close()


def test_host_memory_and_depth_are_read_as_the_shim_wrote_them(fake):
    fake.host = [5 * MIB, 6 * MIB, 7 * MIB, 8 * MIB, 9, Depth.CONTEXT]
    fake.lots = 32 * MIB
    fake.write()
    data = Page(fake.descriptor).read()
    assert (data.copy_bytes, data.retained_bytes) == (5 * MIB, 6 * MIB)
    assert (data.last_park_copied_bytes, data.last_park_zero_bytes) == (7 * MIB, 8 * MIB)
    assert (data.mended_chunks, data.depth, data.lot_bytes) == (9, Depth.CONTEXT, 32 * MIB)


@pytest.mark.parametrize("number", range(4))
def test_the_gpu_that_a_context_left_is_read_as_far_as_the_page_has_it(fake, number):
    fake.memory = {GPU: [0, 0, 0], bytes(range(16, 32)): [0, 0, 0]}
    fake.context_gpu = number
    fake.write()
    data = Page(fake.descriptor).read()
    assert data.context_gpu == ["", data.gpus[0].uuid, data.gpus[1].uuid, ""][number]


@pytest.mark.parametrize("place, value", [(0, 1 << 51), (1, 1 << 51), (2, 1 << 51), (3, 1 << 51), (5, 3)])
def test_impossible_host_memory_and_depths_are_refused(fake, place, value):
    fake.host[place] = value
    fake.write()
    with pytest.raises(PageError):
        Page(fake.descriptor)


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL])
def test_a_page_that_is_not_sealed_is_refused(seals):
    fake = FakePage(seals=seals)
    with pytest.raises(PageError, match="not sealed"):
        Page(fake.descriptor)
    fake.close()


@pytest.mark.parametrize("size", [0, 100, 4095, 8192])
def test_a_page_of_another_size_is_refused(size):
    fake = FakePage(size=size)
    with pytest.raises(PageError, match="bytes"):
        Page(fake.descriptor)
    fake.close()


def test_what_is_no_memfd_is_refused(tmp_path):
    ordinary = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(ordinary, 4096)
    reading, writing = os.pipe()
    for descriptor in (ordinary, reading, writing):
        with pytest.raises(PageError):
            Page(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize(
    "nonsense", [{"magic": 1}, {"version": 1}, {"gpu_size": 95}, {"state": 7}, {"gpu_count": 9}]
)
def test_a_page_with_nonsense_is_refused_whenever_it_is_read(fake, nonsense):
    page = Page(fake.descriptor)
    fake.write(**nonsense)
    with pytest.raises(PageError):
        page.read()
    page.close()


def test_while_the_shim_writes_the_last_good_look_stands(fake):
    page = Page(fake.descriptor)
    fake.state = fake_shim.PARKED
    fake.write(sequence=fake.sequence + 1)  # odd: it is writing
    assert page.read().state is State.RESIDENT
    fake.write()
    assert page.read().state is State.PARKED
    page.close()


def test_figures_of_one_look_belong_together(fake):
    """A writer that always keeps resident + parked = 100 MiB is never seen in between."""
    fake.memory[GPU] = [100 * MIB, 0, 0]
    fake.write()
    page, stop = Page(fake.descriptor), threading.Event()

    def write():
        moved = 0
        while not stop.is_set():
            moved = (moved + MIB) % (100 * MIB)
            fake.memory[GPU] = [100 * MIB - moved, moved, 0]
            fake.write()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    for _ in range(20000):
        (gpu,) = page.read().gpus
        assert gpu.resident_bytes + gpu.parked_bytes == 100 * MIB
        seen.add(gpu.parked_bytes)
    stop.set()
    writer.join()
    page.close()
    assert len(seen) > 1


def test_times_are_never_in_the_future(fake):
    fake.last_activity = fake.state_since = (1 << 63) - 1
    fake.write()
    data = parse_page(bytes(fake.map[:USED_BYTES]), now=1000.0)
    assert data.last_activity == data.state_since == 1000.0


@given(st.binary(min_size=USED_BYTES, max_size=USED_BYTES))
def test_any_bytes_parse_or_are_refused(raw):
    for data in (raw, struct.pack("=IHHiII", 0x47504641, 1, 96, 1, 0, raw[0] % 8) + raw[24:]):
        with contextlib.suppress(PageError):
            parse_page(data, 1000.0)


class ProcessWithOtherClock(FakePage):
    """A page whose process has a clock that is `ahead_ns` of ours."""

    ahead_ns = 0

    def write(self, **raw: int) -> None:
        super().write(**raw)
        if self.map is not None:
            for at in (32, 40, 48):  # state_since_ns, last_activity_ns, heartbeat_ns
                (moment,) = struct.unpack_from("=Q", self.map, at)
                struct.pack_into("=Q", self.map, at, moment + self.ahead_ns)


@pytest.mark.parametrize("ahead_s", [86_400 * 365, 2, 0, -2, None])
def test_the_times_of_a_process_with_another_clock_are_told_in_ours(ahead_s):
    """In a time namespace, or restored from a checkpoint."""
    ahead_ns = -time.monotonic_ns() + 5 * 10**9 if ahead_s is None else ahead_s * 10**9
    fake, began = ProcessWithOtherClock(), time.monotonic()
    fake.ahead_ns = ahead_ns
    fake.state_since, fake.last_activity = time.monotonic_ns() - 4 * 10**9, time.monotonic_ns() - 3 * 10**9
    fake.write()
    page = Page(fake.descriptor)
    data, now = page.read(), time.monotonic()
    deadline_ns = page.clock.theirs_ns(time.monotonic_ns() + 10 * 10**9)
    later_ns = time.monotonic_ns()
    stalled_s = later_ns / 1e9 - began + 0.05  # what all this may have taken on a busy machine
    assert data.state_since == pytest.approx(now - 4, abs=stalled_s)
    assert data.last_activity == pytest.approx(now - 3, abs=stalled_s)
    assert deadline_ns == pytest.approx(later_ns + ahead_ns + 10 * 10**9, abs=stalled_s * 10**9)
    page.close()
    fake.close()


@pytest.mark.parametrize("jump_s", [-500, 500])
def test_a_clock_that_changes_while_the_process_lives_is_noticed(jump_s):
    """As it does when the process is restored; its page may stay."""
    fake, began = ProcessWithOtherClock(), time.monotonic()
    page = Page(fake.descriptor)
    fake.ahead_ns = jump_s * 10**9
    fake.last_activity = time.monotonic_ns() - 3 * 10**9
    fake.write()
    used, now = page.read().last_activity, time.monotonic()
    assert used == pytest.approx(now - 3, abs=now - began + 0.05)
    page.close()
    fake.close()


def test_a_page_that_is_read_late_has_our_clock_all_the_same():
    """Its process, or we, stood still between HELLO and the first look."""
    clock = PeerClock()
    clock.see(10 * 10**9, 17 * 10**9)
    assert clock.ours_s(9 * 10**9) == 16.0
    clock.see(17 * 10**9, 17 * 10**9 + 10**7)
    assert (clock.ours_s(9 * 10**9), clock.theirs_ns(5)) == (9.0, 5)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**63))
def test_whatever_a_page_says_of_its_clock_times_are_times(said, stamp, now):
    clock = PeerClock()
    clock.see(said, now)
    assert clock.ours_s(stamp) >= 0.0
    assert 0 < clock.theirs_ns(now) < 2**64

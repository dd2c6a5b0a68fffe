"""Which GPU a new kernel is told to use."""

from __future__ import annotations

from dataclasses import replace

from fake_nvml import UUID, FakeNvml
from fake_shim import MIB
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_affinode.node.model.gpu import NvmlGpu
from jupyter_affinode.node.model.snapshot import Gpu, Host, Kernel, Node, Residency
from jupyter_affinode.node.policy.placement import (
    OTHERS_NEWCOMERS_MAX,
    PLACED_LASTS_S,
    UNSEEN_LASTS_S,
    Newcomer,
    newcomers_by_gpu,
    place,
)
from jupyter_affinode.settings.policy import GIB, Settings

NOW = 10_000.0


def gpu(uuid, *, used=0, total=80, name="H200", mig=False, index=0):
    visible = f"MIG-{uuid}" if mig else uuid
    free = (total - used) * GIB
    return NvmlGpu(uuid, index, name, total * GIB, used * GIB, free, None, is_mig=mig, visible_as=visible)


def kernel(name, on, size, *, idle=0.0, parked=0, fixed=0):
    residency = Residency.PARKED if parked else Residency.RESIDENT
    return Kernel(
        name,
        residency,
        {on: size * GIB},
        {on: parked * GIB},
        unmovable_bytes={on: fixed * GIB},
        last_activity=NOW - idle,
    )


def chosen(gpus, *kernels, newcomers=None):
    node = Node({}, kernels, Host(0))
    return [each.uuid for each in place(NOW, node, gpus, newcomers or {}, Settings())]


def test_the_emptiest_gpu_comes_first_and_others_of_its_kind_after_it():
    gpus = [gpu("a", used=40), gpu("b", used=10), gpu("c", used=20)]
    assert chosen(gpus) == ["b", "c", "a"]
    assert chosen([]) == []


def test_an_idle_kernel_counts_half_of_a_busy_one():
    gpus = [gpu("a", used=40), gpu("b", used=30)]
    busy, idle = kernel("busy", "b", 30), kernel("idle", "a", 40, idle=1000)
    assert chosen(gpus, idle, busy) == ["a", "b"]  # 80 - 20 beside 80 - 30
    assert chosen(gpus, kernel("idle", "a", 40), busy) == ["b", "a"]


def test_the_parked_are_counted_since_they_come_back():
    gpus = [gpu("a"), gpu("b", used=10)]
    assert chosen(gpus, kernel("parked", "a", 0, parked=30)) == ["b", "a"]


def test_what_is_not_ours_stays_in_the_way():
    assert chosen([gpu("a", used=60), gpu("b", used=55)], kernel("k", "b", 5, idle=1000)) == ["b", "a"]
    gpus = [gpu("a", used=60), gpu("b", used=60)]
    assert chosen(gpus, kernel("k", "b", 50, idle=1000)) == ["b", "a"]


def test_kernels_that_start_together_do_not_all_go_to_one_gpu():
    gpus = [gpu("a"), gpu("b")]
    assert chosen(gpus, newcomers={"a": 1}) == ["b", "a"]
    assert chosen(gpus, newcomers={"a": 1, "b": 1}) == ["a", "b"]


def test_unlike_gpus_are_not_mixed():
    gpus = [gpu("old", total=40, name="A100"), gpu("new", used=10), gpu("other", used=30)]
    assert chosen(gpus) == ["new", "other"]
    gpus = [gpu("old", total=40, name="A100"), gpu("new", used=70)]
    assert chosen(gpus) == ["old"]


def test_a_part_of_a_gpu_stands_alone():
    parts = [gpu("1", total=20, mig=True), gpu("2", total=20, used=5, mig=True)]
    assert chosen(parts) == ["1"]
    assert chosen([*parts, gpu("whole", used=79)]) == ["1"]
    undivided = NvmlGpu("x", 0, "H200", 80 * GIB, 0, 80 * GIB, None, is_mig=True, visible_as="GPU-x")
    assert chosen([undivided]) == []  # to be used in parts, and there are none


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from(["H200", "A100"]), st.booleans()), max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 80), st.floats(0, 2000)), max_size=12),
)
def test_the_answer_is_always_some_of_the_gpus_each_once_and_alike(gpus, kernels):
    machine = [
        gpu(f"g{index}", used=used, name=name, mig=mig, index=index)
        for index, (used, name, mig) in enumerate(gpus)
    ]
    busy = [kernel(f"k{index}", f"g{on}", size, idle=idle) for index, (on, size, idle) in enumerate(kernels)]
    found = place(NOW, Node({}, tuple(busy), Host(0)), machine, {}, Settings())
    assert bool(found) == bool(machine)
    assert len({each.uuid for each in found}) == len(found)
    assert len({(each.name, each.total_bytes) for each in found}) <= 1
    assert len(found) <= 1 or not any(each.is_mig for each in found)


# ---- made-up kernels


def newcomers(charged_user, *gpus, since=NOW - 30, alive=False):
    return [Newcomer(gpu, since, charged_user, alive) for gpu in gpus]


def test_of_another_persons_new_kernels_only_a_few_count_and_not_for_long():
    crowd = newcomers("mallory", *["a"] * 250)
    assert newcomers_by_gpu(crowd, "alice", NOW) == {"a": OTHERS_NEWCOMERS_MAX}
    late = newcomers("mallory", *["a"] * 250, since=NOW - UNSEEN_LASTS_S - 1)
    assert newcomers_by_gpu(late, "alice", NOW) == {}
    assert newcomers_by_gpu(crowd, "mallory", NOW) == {"a": 250}, "their own are theirs to spread"


def test_kernels_that_start_together_are_spread():
    people = [each for name in "bcdef" for each in newcomers(name, "a" if name < "e" else "b")]
    assert newcomers_by_gpu(people, "alice", NOW) == {"a": 3, "b": 2}
    slow = newcomers("bob", "a", since=NOW - 300, alive=True)
    assert newcomers_by_gpu(slow, "alice", NOW) == {"a": 1}, (
        "a process of it lives: it may import for minutes"
    )
    assert newcomers_by_gpu(slow, "alice", NOW + PLACED_LASTS_S) == {}


def test_claims_of_pages_beyond_nvmls_figures_steer_no_placement():
    gpus = [gpu("a", used=10), gpu("b", used=40)]
    liar = kernel("liar", "a", 80)
    assert chosen(gpus, liar, kernel("honest", "b", 40)) == ["a", "b"]
    assert chosen([gpu("a", used=10), gpu("b", used=70)], kernel("k", "a", 10), kernel("l", "b", 70)) == [
        "a",
        "b",
    ]


def test_what_nvml_cannot_show_yet_counts():
    """A kernel that has just taken memory is in no figure but its own page's."""
    gpus = [gpu("a"), gpu("b")]
    seen = {"a": Gpu("a", 80 * GIB, 80 * GIB, NOW, uncertain_bytes=20 * GIB)}
    node = Node(seen, (kernel("new", "a", 20),), Host(0))
    assert [each.uuid for each in place(NOW, node, gpus, {}, Settings())] == ["b", "a"]


def test_of_one_persons_parked_memory_no_more_counts_for_others_than_a_gpu_has():
    gpus = [gpu("a"), gpu("b", used=50)]
    liar = replace(kernel("liar", "a", 0, parked=4000), user="mallory")
    honest = replace(kernel("honest", "b", 50), user="alice")
    assert chosen(gpus, liar, honest) == ["a", "b"]  # 80 - 40 beside 80 - 50


def test_made_up_footprints_make_no_newcomer_larger_than_a_gpu():
    gpus = [gpu("a"), gpu("b", used=75)]
    liar = kernel("liar", "elsewhere", 1 << 20)
    assert chosen(gpus, liar, newcomers={"b": 1}) == ["a", "b"]
    assert chosen(gpus, liar, newcomers={"a": 1}) == ["b", "a"]
    small = [kernel(f"k{number}", "elsewhere", 5) for number in range(99)]
    assert chosen(gpus, liar, *small, newcomers={"a": 1}) == ["a", "b"]


# ---- through the controller


def test_the_controller_spreads_new_kernels(node, machine, shim, wait_until):
    node(nvml=FakeNvml({UUID: 700 * MIB, "GPU-second": 1000 * MIB}))
    shim("k", resident=300 * MIB)
    wait_until(lambda: machine.node()["nvml"])

    def placed(kernel_id):
        status, answer = machine.ask("POST", f"/kernels/{kernel_id}/place", {})
        assert status == 200
        return answer["visible_devices"]

    first = UUID
    assert placed("n1") == ["GPU-second", first]
    assert placed("n1") == ["GPU-second", first]  # asked again, it is still one
    assert placed("n2") == [first, "GPU-second"]  # n1 is expected to take as much as k has
    assert placed("n3") == ["GPU-second", first]
    answer = machine.ask("POST", "/kernels/n4/place", {})[1]
    assert (answer["numbers"], answer["gpu_count"]) == ([0, 1], 2)


def test_without_nvml_no_kernel_is_placed(node, machine):
    node()
    assert machine.ask("POST", "/kernels/n/place", {}) == (
        200,
        {"visible_devices": [], "numbers": None, "gpu_count": 0},
    )

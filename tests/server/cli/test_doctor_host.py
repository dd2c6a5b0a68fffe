"""What the doctor says of the machine's memory, on made-up machines."""

from __future__ import annotations

import resource

import pytest

from jupyter_affinode.doctor import host_checks as doctor_host
from jupyter_affinode.doctor.host_checks import host_checks
from jupyter_affinode.settings.policy import GIB

PAGES = "kernel/mm/transparent_hugepage"


@pytest.fixture
def machine_with(tmp_path):
    """`machine_with({"path below /sys": "content"}, lot_bytes)`: the checks by name."""

    def look(files, lot_bytes=0):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        checks = {check.name: check for check in host_checks(lot_bytes, tmp_path)}
        assert all(check.advice for check in checks.values() if check.level != "ok")
        return checks

    return look


def gpu(address, node):
    folder = f"bus/pci/devices/{address}"
    return {
        f"{folder}/vendor": "0x10de\n",
        f"{folder}/class": "0x030200\n",
        f"{folder}/numa_node": f"{node}\n",
    }


@pytest.mark.parametrize(
    "setting, level",
    [("[always] madvise never", "ok"), ("always [madvise] never", "ok"), ("always madvise [never]", "warn")],
)
def test_huge_pages_that_are_off_make_parks_slower(machine_with, setting, level):
    check = machine_with({f"{PAGES}/enabled": setting + "\n"})["huge pages"]
    assert check.level == level
    assert level == "ok" or "echo madvise >" in check.advice


def test_a_machine_that_says_nothing_is_described_all_the_same(machine_with):
    checks = machine_with({})
    assert checks["huge pages"].level == "warn"
    assert checks["lots"].text.startswith("off")
    assert checks["numa"].level == "ok"


@pytest.mark.parametrize(
    "shared, free_pages, level",
    [("never", 0, "warn"), ("advise", 0, "ok"), ("never", 4096, "ok"), ("never", 100, "warn")],
)
def test_lots_want_huge_pages_of_one_kind_or_the_other(machine_with, shared, free_pages, level):
    check = machine_with(
        {
            f"{PAGES}/shmem_enabled": f"always within_size deny force [{shared}]\n",
            "kernel/mm/hugepages/hugepages-2048kB/free_hugepages": f"{free_pages}\n",
        },
        lot_bytes=8 * GIB,
    )["lots"]
    assert (check.level, check.text[:5]) == (level, "8 GiB")
    assert level == "ok" or "vm.nr_hugepages=4096" in check.advice


def test_a_limit_of_locked_memory_is_named_and_what_it_means(machine_with, monkeypatch):
    monkeypatch.setattr(doctor_host.resource, "getrlimit", lambda _: (65536, 65536))
    assert "at most 64 KiB" in machine_with({})["locked memory"].text
    monkeypatch.setattr(doctor_host.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert "no limit" in machine_with({})["locked memory"].text


def test_with_several_numa_nodes_each_gpus_is_named(machine_with):
    nodes = {f"devices/system/node/node{n}/cpulist": f"{n}\n" for n in range(2)}
    check = machine_with({**nodes, **gpu("0000:17:00.0", 0), **gpu("0000:ca:00.0", 1)})["numa"]
    assert check.text == "2 nodes; GPUs: 0000:17:00.0 at node 0, 0000:ca:00.0 at node 1"
    unknown = machine_with(gpu("0000:ca:00.0", -1))["numa"]
    assert "of 0000:ca:00.0 the node is not known" in unknown.text and "numactl" in unknown.advice

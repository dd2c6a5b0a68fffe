"""New kernels are told which GPU to use, where the site says so and the user has not chosen."""

from __future__ import annotations

import os

import pytest
from gpu_cells import SETUP
from live_server import JupyterServer

from jupyter_affinode.client.kernel_messages import PlacedOn
from jupyter_affinode.provisioning.provisioner import AffinodeProvisioner
from jupyter_affinode.provisioning.visible_gpus import ORDER, VISIBLE, visible_gpus

DEVICES = f"import os; print(os.environ.get({VISIBLE!r}, 'none'), os.environ.get({ORDER!r}))"
TWO = PlacedOn(["GPU-b", "GPU-a"], [1, 0], 2)


@pytest.mark.long
def test_each_kernel_gets_the_gpu_with_the_most_room(gpu_machine, wait_until):
    gpu_machine.simulate(memory="1GiB", gpus=2)
    server = JupyterServer(gpu_machine).start("--AffinodeExtension.place_kernels=True")
    try:
        wait_until(lambda: server.affinode()[1]["available"])  # a start waits three seconds for a place
        first = server.start_kernel()
        numbers, order = first.run(DEVICES).text.split()
        placed = numbers.split(",")
        assert (sorted(placed), order) == (["0", "1"], "PCI_BUS_ID"), "both are of one kind, and seen"
        known = [gpu["uuid"] for gpu in gpu_machine.node()["gpus"]]
        assert first.run(f"{SETUP}\nblock = Block(32)").status == "ok"
        wait_until(lambda: gpu_machine.kernel(first.id)["resident_bytes"])
        used = {gpu["uuid"]: gpu["resident_bytes"] for gpu in gpu_machine.kernel(first.id)["gpus"]}
        assert used[known[int(placed[0])]] == 32 * 2**20, "the first device is the one it was placed on"
        second = server.start_kernel()
        assert second.run(DEVICES).text.split()[0].split(",") == placed[::-1]
    finally:
        server.stop()


async def test_a_kernel_with_a_chosen_gpu_is_not_placed(monkeypatch):
    monkeypatch.setattr(AffinodeProvisioner, "places", True)
    env = {VISIBLE: "3"}
    await AffinodeProvisioner()._place(env)
    assert env == {VISIBLE: "3"}
    monkeypatch.setattr(AffinodeProvisioner, "places", False)
    env = {}
    await AffinodeProvisioner()._place(env)
    assert env == {}


@pytest.fixture
def dev(tmp_path):
    """A machine's /dev with two GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


BY_UUID, BY_NUMBER = {VISIBLE: "GPU-b,GPU-a"}, {VISIBLE: "1,0", ORDER: "PCI_BUS_ID"}


def test_gpus_are_named_by_number_where_cudas_are_sure(dev):
    assert visible_gpus(TWO, {}, dev) == BY_NUMBER
    assert visible_gpus(TWO, {ORDER: "PCI_BUS_ID"}, dev) == BY_NUMBER
    assert visible_gpus(TWO, {ORDER: "FASTEST_FIRST"}, dev) == BY_UUID, "the site's own order stays"
    assert visible_gpus(TWO._replace(numbers=None), {}, dev) == BY_UUID, (
        "parts of GPUs, or an older controller"
    )
    assert visible_gpus(PlacedOn([], [], 0), {}, dev) == {}


def test_a_container_with_some_of_the_gpus_is_told_uuids(dev):
    """It counts its own from 0."""
    (dev / "nvidia0").unlink()
    assert visible_gpus(TWO, {}, dev) == BY_UUID
    assert visible_gpus(TWO, {}, dev / "none") == BY_UUID, "no device nodes (WSL)"


def test_a_job_that_may_open_some_of_the_gpus_is_told_uuids(dev, monkeypatch):
    """A cgroup keeps it from the others, whose device nodes it sees all the same: CUDA does not count these."""

    def access(path, mode):
        assert mode == os.R_OK | os.W_OK
        return path.name != "nvidia0"

    monkeypatch.setattr("os.access", access)
    assert visible_gpus(TWO, {}, dev) == BY_UUID


@pytest.mark.parametrize("chosen", ["", "-1", "0,0", "MIG-x", "GPU-a"])
async def test_whatever_was_chosen_stays(monkeypatch, chosen):
    monkeypatch.setattr(AffinodeProvisioner, "places", True)
    env = {VISIBLE: chosen}
    await AffinodeProvisioner()._place(env)
    assert env == {VISIBLE: chosen}

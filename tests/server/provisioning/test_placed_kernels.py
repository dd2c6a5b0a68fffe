"""New kernels are told which GPU to use, where the site says so and the user has not chosen."""

from __future__ import annotations

from gpu_cells import SETUP
from live_server import JupyterServer

from jupyter_affinode.provisioning.provisioner import VISIBLE, AffinodeProvisioner

DEVICES = f"import os; print(os.environ.get({VISIBLE!r}, 'none'))"


def test_each_kernel_gets_the_gpu_with_the_most_room(gpu_machine, wait_until):
    gpu_machine.simulate(memory="1GiB", gpus=2)
    server = JupyterServer(gpu_machine).start("--AffinodeExtension.place_kernels=True")
    try:
        first = server.start_kernel()
        placed = first.run(DEVICES).text.strip().split(",")
        known = [gpu["uuid"] for gpu in gpu_machine.node()["gpus"]]
        assert sorted(placed) == sorted(known), "both are of one kind, and seen"
        assert first.run(f"{SETUP}\nblock = Block(256)").status == "ok"
        wait_until(lambda: gpu_machine.kernel(first.id)["resident_bytes"])
        used = {gpu["uuid"]: gpu["resident_bytes"] for gpu in gpu_machine.kernel(first.id)["gpus"]}
        assert used[placed[0]] == 256 * 2**20, "the first device is the one it was placed on"
        second = server.start_kernel()
        assert second.run(DEVICES).text.strip().split(",") == placed[::-1]
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

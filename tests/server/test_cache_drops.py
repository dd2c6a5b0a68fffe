"""Caches are dropped before a park: by a real IPython kernel, asked by a real controller, on the simulated GPU.

CuPy itself does not run on the simulated driver. What stands in for it is a module of that name with its
function, over real CUDA memory of this process; PyTorch and CuPy themselves are tried in tests/gpu.
"""

from __future__ import annotations

import re
import sys
import time
import types
from datetime import datetime

import pytest
from gpu_cells import SETUP

from jupyter_affinode.kernel import cache_release as kernel_caches
from jupyter_affinode.settings.policy import MIB

IS_PATIENT = True
STAND_IN = """
import sys, types
served = []  # what each call saw: on the main thread?

class Pool:
    cached = []

    def free_all_blocks(self):
        served.append(threading.current_thread() is threading.main_thread())
        ok(cuda.cuCtxSynchronize())  # as the frameworks do: it counts as use of the GPU anywhere else
        while self.cached:
            self.cached.pop().free()

pool = Pool()
sys.modules["cupy"] = stand_in = types.ModuleType("cupy")
stand_in.get_default_memory_pool = lambda: pool
block, before = Block(32, seed=7), None
before = block.checksum()
pool.cached.append(Block(16, seed=3))
"""


@pytest.fixture
def kernel(gpu_server):
    """A kernel with 32 MiB in use and 16 MiB that a framework only caches."""
    made = gpu_server.start_kernel()
    done = made.run(SETUP + STAND_IN)
    assert done.status == "ok", done
    return made


def parked_bytes(kernel, wait_until):
    return wait_until(lambda: (s := kernel.state())["residency"] == "parked" and s)["parked_bytes"]


def moments(kernel, what):
    """When the controller's log says that of the kernel, in seconds."""
    lines = kernel.server.machine.controller_log().splitlines()
    found = [line for line in lines if kernel.id in line and re.search(what, line)]
    return [datetime.fromisoformat(line[:23]).timestamp() for line in dict.fromkeys(found)]


def test_before_an_idle_kernel_is_parked_its_framework_drops_what_it_caches(kernel, policy, wait_until):
    policy(park_when="idle", idle_timeout_s=5, drop_caches_before_park=True)
    assert parked_bytes(kernel, wait_until) == 32 * MIB
    last_use = time.time() - kernel.state()["idle_s"]
    assert kernel.run("print(block.checksum() == before, served, pool.cached)").text == "True [True] []\n"
    (dropped,), (_,) = moments(kernel, "asked to drop caches"), moments(kernel, " park .* idle")
    assert dropped - last_use > 4, "dropping is not use of the GPU: the kernel stayed as idle as it was"


@pytest.mark.long
def test_without_the_setting_nothing_is_dropped(kernel, policy, wait_until):
    policy(park_when="idle", idle_timeout_s=1)
    assert parked_bytes(kernel, wait_until) == 48 * MIB
    assert kernel.run("print(served)").text == "[]\n"


def test_a_cell_that_awaits_something_is_not_between_cells(kernel, policy, wait_until):
    policy(drop_caches_before_park=True)
    message_id = kernel.submit("import asyncio\nfor i in range(10_000):\n    await asyncio.sleep(0.1)")
    wait_until(lambda: kernel.state()["cell_open"])
    wait_until(lambda: kernel.state()["idle_s"] > 0.5)
    assert kernel.server.affinode(f"kernels/{kernel.id}/park", "POST", {})[0] == 200
    assert kernel.state()["parked_bytes"] == 48 * MIB
    assert moments(kernel, "asked to drop caches")
    kernel.interrupt()
    kernel.wait(message_id)
    assert kernel.run("print(served)").text == "[]\n"


@pytest.mark.long
def test_a_cell_that_never_lets_go_is_parked_as_it_is_after_a_moment(kernel, policy, wait_until):
    policy(drop_caches_before_park=True)
    message_id = kernel.submit("while True: time.sleep(0.05)")
    wait_until(lambda: kernel.state()["cell_open"])
    wait_until(lambda: kernel.state()["idle_s"] > 0.5)
    assert kernel.server.affinode(f"kernels/{kernel.id}/park", "POST", {})[0] == 200
    kernel.interrupt()
    kernel.wait(message_id)
    wait_until(lambda: kernel.state()["idle_s"] is not None)
    assert kernel.run("print(served, block.checksum() == before)").text == "[] True\n"


def test_the_magic_drops_caches_inside_its_own_cell(kernel, policy, wait_until):
    policy(drop_caches_before_park=True)
    # Use of the GPU that the controller sees only after a drop would have it ask again.
    wait_until(lambda: kernel.server.machine.kernel(kernel.id)["idle_s"] > 1)
    done = kernel.run("%gpu_park")
    assert "32 MiB freed" in done.text, done
    assert kernel.run("print(served)").text == "[True]\n"


@pytest.mark.long
def test_a_framework_that_fails_to_drop_is_parked_as_it_is(kernel, policy, wait_until):
    kernel.run("def broken(): raise RuntimeError('no pool')\nstand_in.get_default_memory_pool = broken")
    policy(park_when="idle", idle_timeout_s=1, drop_caches_before_park=True)
    assert parked_bytes(kernel, wait_until) == 48 * MIB
    assert kernel.run("print(block.checksum() == before)").text == "True\n"


@pytest.mark.parametrize(
    "name, module, status",
    [
        ("torch", {"is_initialized": lambda: False, "empty_cache": lambda: 1 / 0}, 6),
        ("torch", {"is_initialized": lambda: True, "empty_cache": lambda: None}, 0),
        ("torch", {}, 7),
        ("unheard_of", {}, 6),
    ],
)
def test_only_frameworks_that_are_there_and_use_cuda_are_asked(monkeypatch, name, module, status):
    stand_in = types.ModuleType(name)
    stand_in.cuda = types.SimpleNamespace(**module)
    for other in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    monkeypatch.setitem(sys.modules, name, stand_in)
    assert kernel_caches.drop_caches() == status

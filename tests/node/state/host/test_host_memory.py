"""Host memory of real kernels on the simulated GPU: budgets, what is kept and given back, lots.

How much memory the machine has is decided by the test, since other programs' use of it comes and goes; what
kernels take of it is what they really take, as their pages say.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from gpu_cells import SETUP
from live_machine import new_machine
from live_server import JupyterServer
from thread_controller import ThreadController

from jupyter_affinode.node import controller as controller_module
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.settings.policy import MIB

NO_SPILL = {"spill_dir": "", "spill_limit_bytes": None, "spill_daily_bytes": 1 << 40}
USUAL = {"host_reserve_bytes": 0, "idle_timeout_s": 600}


class Memory:
    """What the controller takes for /proc/meminfo: `bytes`, less what its kernels have taken."""

    bytes = 8192 * MIB

    def __init__(self):
        self.controller = None

    def read(self):
        taken = 0
        if self.controller is not None:
            for process in self.controller._controller.state.processes():
                taken += process.data.copy_bytes + process.data.retained_bytes
        return HostMemory(self.bytes, max(self.bytes - taken, 0))


class Host:
    """A machine whose memory the test decides, its controller, and a Jupyter server for all tests of this module."""

    def __init__(self, machine, memory, controller):
        self.machine, self.memory = machine, memory
        memory.controller = controller
        self.server = JupyterServer(machine).start()

    def change(self, **settings):
        """Change settings of the policy."""
        status, answer = self.machine.ask("PATCH", "/policy", settings)
        assert status == 200, answer

    def lots(self):
        """The figures of its lots."""
        return self.machine.node()["host"]["lots"]


@pytest.fixture(scope="module")
def shared_host(native):
    memory = Memory()
    with new_machine() as machine, pytest.MonkeyPatch.context() as patch:
        machine.simulate(memory="1GiB")
        patch.setattr(controller_module, "host_memory", memory.read)
        controller = ThreadController(machine.socket, **USUAL)
        host = Host(machine, memory, controller)
        yield host
        host.server.stop()
        controller.stop()


@pytest.fixture
def host(shared_host, wait_until):
    """It, as it was at first: no kernels, no lots, memory enough."""
    yield shared_host
    kernels, shared_host.server.kernels = shared_host.server.kernels, []
    for kernel in kernels:
        if kernel.alive():
            kernel.shutdown()
    shared_host.memory.bytes = Memory.bytes
    shared_host.change(**USUAL, **NO_SPILL, lot_bytes=0)
    wait_until(lambda: shared_host.lots() == {"limit_bytes": 0, "ready_bytes": 0, "given_bytes": 0})


@pytest.fixture
def memory(host):
    """The machine's memory."""
    return host.memory


@pytest.fixture
def policy(host):
    """`policy(park_when="idle", …)`: change settings."""
    return host.change


@pytest.fixture
def lots(host, wait_until):
    """64 MiB of lots, ready; `lots()`: their figures."""
    host.change(lot_bytes=64 * MIB)
    wait_until(lambda: host.lots()["ready_bytes"] == 64 * MIB)
    return host.lots


@pytest.fixture
def disk(host):
    """A folder on a disk that parked memory goes to."""
    with tempfile.TemporaryDirectory(prefix="aff-spill-", dir="/var/tmp") as folder:
        host.change(spill_dir=folder)
        yield Path(folder)


@pytest.fixture
def kernel_with(host, wait_until):
    """`kernel_with("Block(64, seed=7)")`: a kernel that holds that, with its checksum.

    The controller has seen it, which looks at pages now and then: lots go by what it has seen.
    """

    def start(block):
        kernel = host.server.start_kernel()
        done = kernel.run(f"{SETUP}\nblock = {block}\nbefore = block.checksum()\nprint(4 * block.count)")
        assert done.status == "ok", done
        wait_until(lambda: host.machine.kernels()[kernel.id]["resident_bytes"] >= int(done.text))
        return kernel

    return start


def park(kernel):
    """Ask for a park; (status, answer)."""
    return kernel.server.affinode(f"kernels/{kernel.id}/park", "POST", {})


def is_right(kernel):
    """Whether its block holds what it held; brings it back."""
    return kernel.run("print(block.checksum() == before)").text == "True\n"


def mapped_lots(kernel):
    """Resident bytes of lots in the kernel's address space, as the operating system counts them."""
    pid = kernel.run("import os; print(os.getpid())").text.strip()
    smaps = Path(f"/proc/{pid}/smaps").read_text()
    found = re.findall(r"affinode-lot.*?\n(?:.*\n)*?Rss: +(\d+) kB", smaps)
    return sum(int(size) for size in found) * 1024


ZEROS = """Block(400)
ok(cuda.cuMemsetD8(block.pointer, 0, 400 * 2**20))
ok(cuda.cuCtxSynchronize())"""


@pytest.mark.long
def test_zeros_park_where_their_size_would_not_fit(kernel_with, memory):
    kernel = kernel_with(ZEROS)
    memory.bytes = 300 * MIB
    status, parked = park(kernel)
    assert status == 200, parked
    assert parked["parked_bytes"] == 400 * MIB
    assert parked["copy_bytes"] < 8 * MIB
    assert is_right(kernel)


def test_what_does_not_fit_is_refused_and_parks_when_there_is_more(kernel_with, memory):
    kernel = kernel_with("Block(40, seed=3)")
    memory.bytes = 20 * MIB
    status, answer = park(kernel)
    assert (status, answer["error"]) == (409, "no-host-memory"), answer
    assert re.search(r"freeing it needs [4-6][0-9] MiB of host memory and 20 MiB are free", answer["message"])
    assert (kernel.state()["residency"], kernel.state()["retained_bytes"]) == ("resident", 0)
    assert is_right(kernel)
    memory.bytes = 80 * MIB
    assert park(kernel)[0] == 200
    assert is_right(kernel)


@pytest.mark.long
def test_what_a_kernel_keeps_is_given_back_when_memory_is_short(kernel_with, memory, policy, wait_until):
    kernel = kernel_with("Block(64, seed=7)")
    assert park(kernel)[0] == 200
    assert kernel.state()["copy_bytes"] >= 64 * MIB
    assert is_right(kernel)
    wait_until(lambda: kernel.state()["retained_bytes"] >= 64 * MIB)
    memory.bytes = 128 * MIB
    policy(host_reserve_bytes=400 * MIB)  # what is kept leaves less than that
    wait_until(lambda: kernel.state()["retained_bytes"] <= 28 * MIB)
    assert is_right(kernel)


@pytest.mark.long
def test_its_own_kept_memory_is_room_enough_for_the_next_park(kernel_with, memory, wait_until):
    kernel = kernel_with("Block(64, seed=7)")
    assert park(kernel)[0] == 200
    assert is_right(kernel)
    wait_until(lambda: kernel.state()["retained_bytes"] >= 64 * MIB)
    memory.bytes = kernel.state()["retained_bytes"]
    assert park(kernel)[0] == 200, kernel.state()
    assert is_right(kernel)


@pytest.mark.long
def test_another_kernel_gives_back_what_it_keeps_before_a_park_is_refused(kernel_with, memory, wait_until):
    keeper = kernel_with("Block(96, seed=7)")
    assert park(keeper)[0] == 200
    assert is_right(keeper)
    wait_until(lambda: keeper.state()["retained_bytes"] >= 96 * MIB)
    other = kernel_with("Block(80, seed=5)")
    memory.bytes = 112 * MIB
    status, parked = park(other)
    assert (status, parked.get("residency")) == (200, "parked"), parked
    assert keeper.state()["retained_bytes"] <= 32 * MIB
    assert is_right(other) and is_right(keeper)


def test_a_park_goes_into_lots_and_they_are_cut_only_when_they_are_empty(
    kernel_with, memory, lots, policy, wait_until
):
    kernel = kernel_with("Block(50, seed=9)")
    assert park(kernel)[0] == 200
    assert lots()["given_bytes"] == 64 * MIB
    assert mapped_lots(kernel) >= 50 * MIB
    assert is_right(kernel)
    wait_until(lambda: kernel.state()["retained_bytes"] >= 50 * MIB)
    memory.bytes = 0
    policy(host_reserve_bytes=1)
    wait_until(lambda: lots()["given_bytes"] == 0, message="it gives its lots back")
    assert mapped_lots(kernel) == 0
    assert is_right(kernel)
    memory.bytes = 8192 * MIB
    # The kernel may have them by then.
    fresh = wait_until(
        lambda: lots()["ready_bytes"] or lots()["given_bytes"], message="fresh ones take their place"
    )
    assert fresh == 64 * MIB
    assert park(kernel)[0] == 200
    assert is_right(kernel)


def test_a_kernel_soon_to_be_eligible_has_its_lots_ready_before(kernel_with, lots, policy, wait_until):
    kernel = kernel_with("Block(50, seed=9)")
    policy(idle_timeout_s=2)
    wait_until(lambda: lots()["given_bytes"] == 64 * MIB)
    wait_until(lambda: kernel.state()["set_aside_bytes"] >= 48 * MIB, message="registered with the GPU")
    assert kernel.state()["residency"] == "resident"
    assert park(kernel)[0] == 200
    assert is_right(kernel)


@pytest.mark.long
def test_lots_that_a_park_left_empty_come_back_at_once(kernel_with, lots, wait_until):
    kernel = kernel_with(ZEROS)
    assert park(kernel)[0] == 200
    wait_until(lambda: lots()["given_bytes"] == 0)
    assert is_right(kernel)


@pytest.mark.long
def test_lots_of_a_kernel_that_ends_come_back(kernel_with, lots, wait_until):
    kernel = kernel_with("Block(50, seed=9)")
    assert park(kernel)[0] == 200
    assert lots()["given_bytes"] == 64 * MIB
    kernel.shutdown()
    wait_until(lambda: lots() == {"limit_bytes": 64 * MIB, "ready_bytes": 64 * MIB, "given_bytes": 0})


@pytest.mark.long
def test_a_kernel_parked_into_lots_outlives_the_controller_that_gave_them(gpu_machine, server, wait_until):
    gpu_machine.start_controller("--settle=0.2", f"--lot-bytes={64 * MIB}", "--host-reserve-bytes=0")
    wait_until(lambda: gpu_machine.node()["host"]["lots"]["ready_bytes"] == 64 * MIB)
    server.start()
    kernel = server.start_kernel()
    assert kernel.run(f"{SETUP}\nblock = Block(50, seed=9)\nbefore = block.checksum()").status == "ok"
    # Lots go by what NVML shows, and its figures are a moment old.
    wait_until(lambda: gpu_machine.node()["host"]["lots"]["given_bytes"] == 64 * MIB)
    assert park(kernel)[0] == 200
    gpu_machine.kill_controller()
    wait_until(lambda: (gpu_machine.kernel(kernel.id) or {}).get("parked_bytes") == 50 * MIB)
    assert is_right(kernel)
    assert mapped_lots(kernel) >= 50 * MIB
    assert gpu_machine.node()["host"]["lots"]["given_bytes"] == 64 * MIB


def test_parked_memory_goes_to_disk_so_that_another_kernel_can_be_parked(kernel_with, memory, disk, host):
    first, second = kernel_with("Block(76, seed=1)"), kernel_with("Block(76, seed=2)")
    memory.bytes = 125 * MIB
    assert park(first)[0] == 200
    status, parked = park(second)
    assert status == 200, parked
    spilled = first.state()
    assert spilled["disk_bytes"] >= 25 * MIB and spilled["copy_bytes"] <= 50 * MIB, spilled
    assert re.search(r"76 MiB safe, [0-9]+ MiB of it on disk, about .* to return", spilled["text"]), spilled
    assert spilled["resume_estimate_s"] > second.state()["resume_estimate_s"]
    node = host.machine.node()
    assert node["spill"]["used_bytes"] == spilled["disk_bytes"] == node["spill"]["written_bytes"], node[
        "spill"
    ]
    assert list(disk.iterdir()) == [], "files have no names"
    shown = host.machine.affinode("status")
    assert re.search("MiB of it on disk, about .* to return", shown.stdout), shown
    assert "Disk: " in shown.stdout, shown
    assert is_right(first) and is_right(second)
    assert first.state()["disk_bytes"] == 0


@pytest.mark.long
def test_with_the_days_bytes_written_a_park_is_refused_as_without_a_disk(kernel_with, memory, disk, policy):
    policy(spill_daily_bytes=0)
    first, second = kernel_with("Block(76, seed=1)"), kernel_with("Block(76, seed=2)")
    memory.bytes = 125 * MIB
    assert park(first)[0] == 200
    assert park(second)[0] == 409
    policy(spill_daily_bytes=1 << 40)
    assert park(second)[0] == 200
    assert is_right(first) and is_right(second)


@pytest.mark.long
def test_where_the_folder_is_no_good_a_park_is_refused_and_nothing_is_lost(
    kernel_with, memory, policy, disk, host
):
    disk.chmod(0o777)  # others could replace this user's folder in it
    first, second = kernel_with("Block(76, seed=1)"), kernel_with("Block(76, seed=2)")
    memory.bytes = 125 * MIB
    assert park(first)[0] == 200
    assert park(second)[0] == 409
    disk.chmod(0o700)
    assert is_right(first) and is_right(second)

"""What signals to end do to a kernel that may outlive its server: real kernels of ipykernel's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from jupyter_client import write_connection_file
from jupyter_client.blocking.client import BlockingKernelClient
from waiting import wait_until

from jupyter_affinode.environment import STAYS
from jupyter_affinode.provisioning.preload import KERNEL_STARTUP

ENDING = (signal.SIGTERM, signal.SIGHUP)
# A child says what it is before it waits. Each is to end by SIGTERM.
CHILDREN = {
    "a program": "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\npid = child.pid",
    "a program with preexec_fn": "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'],"
    " preexec_fn=lambda: None)\npid = child.pid",
    "posix_spawn": "import os\npid = os.posix_spawn('/bin/sleep', ['sleep', '600'], os.environ)",
    "a fork": "import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\n    os._exit(0)",
    "a fork on a thread": "import os, threading, time\nfound = []\ndef fork():\n    found.append(os.fork())\n"
    "    if found[0] == 0:\n        time.sleep(600)\n        os._exit(0)\nthread = threading.Thread(target=fork)\n"
    "thread.start()\nthread.join()\npid = found[0]",
    # it learns of the signal only when Python next looks: one long sleep may begin in between
    "a fork of C code": "import ctypes, os, time\npid = ctypes.PyDLL(None).fork()\n"
    "while pid == 0:\n    time.sleep(0.05)",
    "a terminal": "import os, pty, time\npid, _ = pty.fork()\nif pid == 0:\n    time.sleep(600)\n    os._exit(0)",
}


class Kernel:
    """One that was started as our provisioner starts those that may outlive their server."""

    def __init__(self, machine, executable: str = sys.executable, **environ: str):
        path, self.connection = write_connection_file(str(machine.folder / "kernel.json"))
        env = {**machine.environment, "PYTHONSTARTUP": str(KERNEL_STARTUP), STAYS: "1", **environ}
        log = machine.folder / "kernel.log"
        with log.open("wb") as said:
            self.process = machine.start(
                executable, "-m", "ipykernel_launcher", "-f", path, env=env, stdout=said, stderr=said
            )
        self.client = BlockingKernelClient(connection_file=path)
        self.client.load_connection_file()
        self.client.start_channels(hb=False)  # a beat that is missed while it starts is no death
        self.client.wait_for_ready(60)

    def run(self, code: str) -> str:
        """What a cell prints."""
        said: list[str] = []

        def hear(message) -> None:
            if message["msg_type"] in ("stream", "error"):
                said.append(message["content"].get("text") or "\n".join(message["content"]["traceback"]))

        reply = self.client.execute_interactive(code, output_hook=hear, timeout=60)
        assert reply["content"]["status"] == "ok", said
        return "".join(said)

    def signal(self, *numbers: int) -> None:
        for number in numbers:
            self.process.send_signal(number)

    def end(self) -> None:
        self.client.stop_channels()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(machine) -> Iterator[object]:
    """`start(name=value)`: starts a kernel with these variables."""
    made: list[Kernel] = []

    def begin(*arguments: str, **environ: str) -> Kernel:
        made.append(Kernel(machine, *arguments, **environ))
        return made[-1]

    yield begin
    for each in made:
        each.end()


def test_a_kernel_lives_through_signals_to_all_processes_and_its_children_do_not(start):
    kernel = start()
    kernel.run("import os, signal; kept = 7")
    for name, code in CHILDREN.items():
        pid = int(kernel.run(f"{code}\nprint(pid)"))
        kernel.signal(*ENDING, signal.SIGTERM)
        os.kill(pid, signal.SIGTERM)
        ended = f"print(os.WTERMSIG(os.waitpid({pid}, 0)[1]))"
        assert int(kernel.run(ended)) == signal.SIGTERM, name
    assert kernel.run("print(kept)") == "7\n"
    # as a cell sees it that asks whether signals are blocked, which programs that it starts would inherit
    assert kernel.run("print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))") == "set()\n"


@pytest.mark.long
def test_a_pool_that_is_ended_at_once_ends(start):
    """The signal comes while the child is not set up yet, and Python forgets it."""
    kernel = start()
    code = "import os, signal\nfor _ in range(300):\n    pid = os.fork()\n    if pid == 0:\n        signal.pause()\n"
    code += (
        "    os.kill(pid, signal.SIGTERM)\n    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM"
    )
    assert kernel.run(code) == ""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import time\nwhile True: time.sleep(0.05)", marks=pytest.mark.long),
        "while True: pass",
        pytest.param("import time; time.sleep(600)", marks=pytest.mark.long),
        # with the interpreter's lock
        pytest.param("import ctypes; ctypes.PyDLL(None).sleep(600)", marks=pytest.mark.long),
    ],
)
def test_a_kernel_whose_cell_runs_stays_and_ends_by_a_shutdown(start, code):
    kernel = start()
    kernel.run("kept = 7")
    kernel.client.execute(f"print('on', flush=True)\n{code}")
    while kernel.client.get_iopub_msg(timeout=60)["content"].get("text") != "on\n":
        pass
    kernel.signal(*ENDING)
    holds_lock = "PyDLL" in code
    if not holds_lock:
        control = kernel.client.session.msg("kernel_info_request")
        kernel.client.control_channel.send(control)
        assert kernel.client.get_control_msg(timeout=60)["msg_type"] == "kernel_info_reply"
    assert kernel.process.poll() is None
    kernel.client.shutdown()
    if holds_lock:  # it hears nothing
        kernel.signal(signal.SIGTERM, signal.SIGKILL)
        assert kernel.process.wait(60) == -signal.SIGKILL
        return
    kernel.client.get_control_msg(timeout=60)
    kernel.signal(signal.SIGTERM)
    assert kernel.process.wait(60) == -signal.SIGTERM


def test_a_handler_of_the_users_goes_before_ours(start):
    kernel = start()
    kernel.run(
        "import signal; got = []; before = signal.signal(signal.SIGTERM, lambda *about: got.append(about[0]))"
    )
    kernel.signal(signal.SIGTERM)
    wait_until(lambda: kernel.run("print(got)") == "[15]\n")
    kernel.run("_ = signal.signal(signal.SIGTERM, before)")  # as a library does that is done
    kernel.signal(signal.SIGTERM)
    assert kernel.run("print(got)") == "[15]\n"


@pytest.mark.long
@pytest.mark.parametrize("environ", [{STAYS: ""}, {"JPY_PARENT_PID": str(os.getpid())}])
def test_a_kernel_that_ends_with_its_server_ends_by_a_signal(start, environ):
    kernel = start(**environ)
    kernel.signal(signal.SIGTERM)
    assert kernel.process.wait(60) == -signal.SIGTERM


@pytest.mark.long
def test_a_startup_file_that_sets_a_handler_goes_before_ours(start, machine):
    theirs = machine.work / "mine.py"
    theirs.write_text("import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(3))\n")
    kernel = start(AFFINODE_STARTUP_CHAIN=str(theirs))
    kernel.signal(signal.SIGTERM)
    assert kernel.process.wait(60) == 3

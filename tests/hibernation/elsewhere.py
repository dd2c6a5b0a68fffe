"""One step of a kernel's story, in a process of its own: `elsewhere.py STEP FOLDER`, as a user or in namespaces.

"hibernate" starts a kernel and puts it into an image, "wake" has it back, "refused" prints why not. Each has
a keeper and a controller of its own, as after the machine was started again. Prints "done" if all was as it should be.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from live_machine import Machine  # noqa: E402
from lone_kernel import CELLS, LoneKernel, Refused  # noqa: E402

from jupyter_affinode.hibernation.image import _digest as digest_of  # noqa: E402
from jupyter_affinode.hibernation.signing import signature_of  # noqa: E402

WORK = """
import itertools, subprocess, threading, time
notes = open("notes.txt", "a+"); notes.write("first "); notes.flush()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
generator = itertools.count(7); next(generator)
ticks = []
def tick():
    while True:
        ticks.append(time.monotonic()); time.sleep(0.02)
threading.Thread(target=tick, daemon=True).start()
"""
USE = """
notes.write("second"); notes.flush(); notes.seek(0)
child.stdin.write("still here\\n"); child.stdin.flush()
print(notes.read(), next(generator), child.stdout.readline().strip())
before = len(ticks); deadline = time.monotonic() + 30
while len(ticks) == before and time.monotonic() < deadline: time.sleep(0.01)
print(len(ticks) > before, ticks == sorted(ticks))
"""
FULL = CELLS.replace("Block(8,", "Block(3000,")  # MiB, of a GPU of 4 GiB
CYCLES = 2


def hibernate(kernel: LoneKernel) -> None:
    """Start a kernel, wake it a few times, and leave it in its image."""
    kernel.start()
    kernel.run(WORK)
    for _ in range(CYCLES):
        kernel.check()
        kernel.hibernate()
        kernel.wake()
    kernel.check()
    print(f"it is on {gpu_of(kernel)}")
    kernel.hibernate()
    kernel.save()


def wake(kernel: LoneKernel) -> None:
    """Wake it where another kernel fills the GPU, and use what it had; then once more, from an image of this place."""
    kernel.load()
    fills_gpu = LoneKernel(kernel.machine, "fills", cells=FULL, beside=kernel)
    fills_gpu.start()
    kernel.wake()
    kernel.check()
    fills_gpu.kill_kernel()
    said = kernel.run(USE).splitlines()
    assert said == ["first second 8 still here", "True True"], said
    print(f"it is on {gpu_of(kernel)}")
    kernel.hibernate()
    kernel.wake()
    kernel.check()
    status = Path(f"/proc/{kernel.pid}/status").read_text()
    print(
        f"it has uid {os.geteuid()}, {next(line for line in status.splitlines() if line.startswith('CapPrm'))}"
    )


def gpu_of(kernel: LoneKernel) -> str:
    """The UUID of the GPU that the machine's controller sees it on; the machine has it."""
    told, node = kernel.machine.kernel(kernel.id), kernel.machine.node()
    assert told is not None and node is not None
    (gpu,) = told["gpus"]
    assert gpu["uuid"] in [each["uuid"] for each in node["gpus"]]
    return str(gpu["uuid"])


def refused(kernel: LoneKernel) -> None:
    """Have it refused: the image stays."""
    kernel.load()
    kernel.start_keeper()
    try:
        kernel.wake()
    except Refused as why:
        print(f"refused: {why}")
    assert kernel.is_hibernated()


def ask_for_root(kernel: LoneKernel) -> None:
    """Ask in the image for the rights of root, signed with the user's own key: nothing gets them."""
    kernel.load()
    kernel.environment["CRIU_PATIENCE_S"] = "5"
    kernel.start_keeper()
    written = {path: path.read_bytes() for path in (kernel.image / "process").glob("core-*.img")}
    manifest = (kernel.image / "manifest.json").read_bytes()
    own, root = protobuf_number(os.geteuid()), b"\x80\x80\x00"  # 0, as long as ours
    assert len(own) == len(root)
    for path, content in written.items():
        assert own in content
        path.write_bytes(content.replace(own, root))
    sign_again(kernel)
    try:
        kernel.wake()
    except Refused as why:
        print(f"refused: {why}")
    else:
        raise AssertionError("it was woken")
    assert not kernel.lives()
    for path, content in written.items():
        path.write_bytes(content)
    (kernel.image / "manifest.json").write_bytes(manifest)


def protobuf_number(value: int) -> bytes:
    """A number as CRIU writes it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def sign_again(kernel: LoneKernel) -> None:
    """Sign the image as it is now."""
    os.environ["XDG_STATE_HOME"] = kernel.environment["XDG_STATE_HOME"]
    path = kernel.image / "manifest.json"
    told = json.loads(path.read_text())
    del told["signature"]
    for name in told["files"]:
        file = kernel.image / name
        told["files"][name] = [file.stat().st_size, digest_of(file)]
    path.write_text(json.dumps({**told, "signature": signature_of(told)}))


STEPS: dict[str, Callable[[LoneKernel], None]] = {
    "hibernate": hibernate,
    "wake": wake,
    "refused": refused,
    "ask_for_root": ask_for_root,
}


def main() -> None:
    """Do one step."""
    step, folder = sys.argv[1], Path(sys.argv[2])
    machine = Machine(folder)
    machine.environment["AFFINODE_CRIU"] = os.environ["ELSEWHERE_CRIU"]
    machine.environment["HOME"] = str(folder)
    machine.simulate("4GiB")
    machine.environment["AFFINODE_SIM_SERIAL"] = os.environ.get("ELSEWHERE_SERIAL", "0")
    try:
        machine.start_controller("--settle=0")
        kernel = LoneKernel(machine, "lone")
        try:
            STEPS[step](kernel)
        except BaseException:
            print(kernel.log(), machine.controller_log())
            raise
        finally:
            kernel.kill_keeper()
        print("done")
    finally:
        machine.kill_everything()


if __name__ == "__main__":
    main()

"""A kernel and its GPU memory outlive their Jupyter server: `python tests/gpu kept_kernels`.

Needs jupyter-affinode, ipykernel, jupyter_server and PyTorch (with `--program driver` no PyTorch), and an NVIDIA GPU. A
real server with `keep_kernels` starts a kernel that holds `--gib` of random words. The server ends by SIGTERM and by
SIGKILL, with the kernel on the GPU and parked, and starts again each time: the kernel's checksum must be what it was,
in the same process. The same with a controller of all users. Exits with 1 if anything is not as it must be.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from controlled import finish, machine, options, say
from live_machine import Machine, new_machine
from live_server import JupyterKernel, JupyterServer

KEEP = "--AffinodeExtension.keep_kernels=all"
FILL = {
    "torch": """
import torch, os
generator = torch.Generator("cuda").manual_seed(7)
block = torch.randint(-2**62, 2**62, ({words},), dtype=torch.int64, device="cuda", generator=generator)
def checksum(): return int(block.sum())
""",
    "driver": """
import ctypes
from jupyter_affinode.bench.driver import Driver
driver, words = Driver(), {words}
block = driver.allocate(words * 8)
driver.call("cuMemsetD32_v2", ctypes.c_uint64(block), 0x5EED5EED, ctypes.c_size_t(words * 2))
host = (ctypes.c_uint64 * words)()
def checksum():
    driver.call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(block), ctypes.c_size_t(words * 8))
    return sum(host[at] for at in range(0, words, 1009))
""",
}


def kernel_of(live: Machine, kernel: JupyterKernel) -> dict[str, object]:
    """The kernel as the controller knows it, whoever it serves."""
    return next(known for name, known in live.kernels().items() if name.endswith(kernel.id))


def rows_of(live: Machine, arguments: object, who: str) -> list[tuple[str, ...]]:
    """One row for each end of the server."""
    rows = []
    server = JupyterServer(live)
    server.enable_extension()
    server.start(KEEP)
    kernel = server.start_kernel()
    words = int(arguments.gib * (1 << 30)) // 8
    filled = kernel.run(FILL[arguments.program].format(words=words), timeout=120)
    assert filled.status == "ok", filled
    before, pid = kernel.run("checksum()").text, kernel.pid
    for how in (signal.SIGTERM, signal.SIGKILL):
        for parked in (True, False):
            name = next(name for name in live.kernels() if name.endswith(kernel.id)).replace("/", "%2F")
            if parked:
                status, answer = live.ask("POST", f"/kernels/{name}/park", {"wait": True})
                assert status == 200, answer
            server.process.send_signal(how)
            server.process.wait(timeout=60)
            state = kernel_of(live, kernel)["residency"]
            began = time.monotonic()
            server.start(KEEP, port=server.port)
            up_s = time.monotonic() - began
            known = server.request("GET", f"/api/kernels/{kernel.id}")[0] == 200
            began = time.monotonic()
            after = kernel.run("checksum()", timeout=120).text
            took_s = time.monotonic() - began
            right = (
                known
                and after == before
                and kernel.pid == pid
                and state == ("parked" if parked else "resident")
            )
            say(f"{who}, {how.name}, {state}: {'right' if right else 'WRONG'}")
            rows.append(
                (who, how.name, str(state), f"{up_s:.1f} s", f"{took_s:.2f} s", "equal" if right else "WRONG")
            )
    kernel.shutdown()
    server.stop()
    return rows


def main() -> int:
    """Run it; 0 if everything is as it must be."""
    parser = options(__doc__, time_s=240.0)
    parser.add_argument("--gib", type=float, default=20.0, help="what the kernel holds (20)")
    parser.add_argument("--program", choices=sorted(FILL), default="torch", help="what it runs (torch)")
    arguments = parser.parse_args()
    modules = ["ipykernel", "jupyter_server", *(["torch"] if arguments.program == "torch" else [])]
    where, rows = machine(modules=modules), []
    for who, settings in (("own controller", ()), ("of all users", ("--system",))):
        with new_machine() as live:
            live.environment["AFFINODE_FOLDER"] = str(live.folder / "own")
            if where["simulated"]:
                live.simulate()
            if settings:
                live.folder.chmod(0o755)
                live.socket.parent.chmod(0o755)
            live.start_controller("--settle=0", *settings)
            rows += rows_of(live, arguments, who)
    return finish(
        "kept_kernels",
        where,
        arguments.json,
        headings=(
            "controller",
            "the server's end",
            "kernel then",
            "next server up",
            "first checksum",
            "memory",
        ),
        rows=rows,
        passed=all(row[-1] == "equal" for row in rows),
        notes=[f"one kernel with {arguments.gib:g} GiB of random words, the same process throughout"],
    )


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.exit(main())

"""What becomes of memory that was made in a green context: `python tests/gpu green_contexts`.

The same program with the shim and without asks the driver whether a green context's own context has one handle, whether
memory made there outlives it, and what calls in a destroyed one return. With the shim it is parked after that, and
every word must be right. Runs on the simulated GPU too, which answers as the driver is thought to.
"""

from __future__ import annotations

import ctypes
import select
import subprocess
import sys
import uuid
from typing import Any

from controlled import Controlled, again, finish, machine, options, say

WORDS = 4 << 20
VALUE = 0x5EED1234
ANSWERS_WITHIN_S = 60.0
FACTS = (
    "the context is the same each time it is asked for",
    "memory made in it is there after its end",
    "its context made current after its end",
    "a call in it then",
    "memory made in it is freed after its end",
)


def program() -> None:
    """Say the facts in one line, then "right" or what is wrong for each line of input."""
    from cuda.bindings import driver as cuda

    def ok(answer: tuple[Any, ...]) -> Any:
        if answer[0] != cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(answer[0].name)
        return answer[1] if len(answer) == 2 else answer[1:]

    def word(answer: tuple[Any, ...]) -> str:
        return str(answer[0].name.removeprefix("CUDA_"))

    def is_right(block: Any) -> str:
        found = bytearray(4 * WORDS)
        at = ctypes.addressof((ctypes.c_char * len(found)).from_buffer(found))
        answer = cuda.cuMemcpyDtoH(at, block, len(found))
        if answer[0] != cuda.CUresult.CUDA_SUCCESS:
            return word(answer)
        return "right" if found == VALUE.to_bytes(4, "little") * WORDS else "wrong"

    def block_in(context: Any) -> Any:
        ok(cuda.cuCtxSetCurrent(context))
        block = ok(cuda.cuMemAlloc(4 * WORDS))
        ok(cuda.cuMemsetD32(block, VALUE, WORDS))
        ok(cuda.cuCtxSynchronize())
        return block

    ok(cuda.cuInit(0))
    primary = ok(cuda.cuDevicePrimaryCtxRetain(0))
    own = block_in(primary)
    whole = ok(cuda.cuDeviceGetDevResource(0, cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    part = ok(cuda.cuDevSmResourceSplitByCount(1, whole, 0, 16))[0][0]
    description = ok(cuda.cuDevResourceGenerateDesc([part], 1))
    flags = cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    green = ok(cuda.cuGreenCtxCreate(description, 0, flags))
    context = ok(cuda.cuCtxFromGreenCtx(green))
    same = int(context) == int(ok(cuda.cuCtxFromGreenCtx(green)))
    made, spare = block_in(context), block_in(context)
    ok(cuda.cuCtxSetCurrent(primary))
    ok(cuda.cuGreenCtxDestroy(green))
    facts = ["yes" if same else "no", is_right(made), word(cuda.cuCtxSetCurrent(context))]
    facts.append(word(cuda.cuCtxSynchronize()))
    ok(cuda.cuCtxSetCurrent(primary))
    facts.append(word(cuda.cuMemFree(spare)))
    print("; ".join(facts), flush=True)
    for _line in sys.stdin:
        print(f"{is_right(own)}, {is_right(made)}", flush=True)


def answer(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    if not select.select([running.stdout], [], [], ANSWERS_WITHIN_S)[0]:
        return f"no answer within {ANSWERS_WITHIN_S:.0f} s"
    return running.stdout.readline().strip() or f"ended with status {running.wait()}"


def main() -> int:
    given = options(__doc__, time_s=60).parse_args()
    where = machine(modules=["cuda"])
    kernel_id, command = str(uuid.uuid4()), again(__file__, "program")
    with Controlled() as controlled:
        without = answer(controlled.start(command, None)).split("; ")
        managed = controlled.start(command, kernel_id)
        with_shim = answer(managed).split("; ")
        looked = "not asked"
        if len(with_shim) == len(FACTS):
            say("parking it")
            kernel = controlled.park_surely(kernel_id)
            assert managed.stdin is not None
            managed.stdin.write("look\n")
            managed.stdin.flush()
            looked = f"{answer(managed)} ({kernel['parked_bytes'] >> 20} MiB were parked)"
    rows = [[fact, *pair] for fact, *pair in zip(FACTS, without, with_shim, strict=False)]
    rows.append(["contents after a park", "-", looked])
    return finish(
        "green_contexts",
        where,
        given.json,
        headings=["of a green context", "without the shim", "with it"],
        rows=rows,
        passed=without == with_shim and looked.startswith("right, right (32"),
    )


if __name__ == "__main__":
    sys.exit(program() if sys.argv[1:] == ["program"] else main())

"""What the driver says of pinned host memory, held against what the simulated one says.

`python tests/gpu host_memory`. Needs cuda-bindings and a driver, real or simulated; run it without the shim.
Registering, unregistering and freeing, plain and beside a stream capture, and copies that lie in two registrations.
Exits with 1 where an answer is another one than the simulator's: then shim/sim/memory/hostmem.c or
shim/sim/graph/capture_rules.c is to be set right.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cuda

PAGE = 65536
MODE = cuda.CUstreamCaptureMode
GLOBAL, LOCAL, RELAXED = (
    MODE.CU_STREAM_CAPTURE_MODE_GLOBAL,
    MODE.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    MODE.CU_STREAM_CAPTURE_MODE_RELAXED,
)
# A capture's mode, and whether the call comes from another thread, and that thread's own mode if it sets one.
SITUATIONS: dict[str, tuple[Any, bool, Any]] = {
    "global": (GLOBAL, False, None),
    "local": (LOCAL, False, None),
    "relaxed": (RELAXED, False, None),
    "global, other thread": (GLOBAL, True, None),
    "local, other thread": (LOCAL, True, None),
    "global, relaxed thread": (GLOBAL, True, RELAXED),
}
UNSAFE = dict(zip(SITUATIONS, ("bad", "bad", "ok", "bad", "ok", "ok"), strict=True))
kept: list[mmap.mmap] = []  # what was registered must stay mapped


def ok(result: tuple[Any, ...]) -> Any:
    """The value of a call that must succeed."""
    assert result[0] == cuda.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) > 1 else None


def short(result: tuple[Any, ...]) -> str:
    """The error's name without CUDA_ERROR_."""
    return str(result[0].name).replace("CUDA_ERROR_", "").replace("CUDA_", "")


def pages(count: int) -> int:
    """Address of fresh memory."""
    kept.append(mmap.mmap(-1, count * PAGE))
    return ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))


def beside_capture(
    call: Callable[[], tuple[Any, ...]], situation: tuple[Any, bool, Any], context: Any
) -> str:
    """`bad`: the call was refused and the capture is lost; `ok`: neither."""
    mode, elsewhere, own_mode = situation
    stream = ok(cuda.cuStreamCreate(1))
    said: list[str] = []

    def body() -> None:
        if elsewhere:
            ok(cuda.cuCtxSetCurrent(context))
        if own_mode is not None:
            ok(cuda.cuThreadExchangeStreamCaptureMode(own_mode))
        said.append(short(call()))

    ok(cuda.cuStreamBeginCapture(stream, mode))
    if elsewhere:
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    else:
        body()
    ended = short(cuda.cuStreamEndCapture(stream))
    if (said[0], ended) == ("SUCCESS", "SUCCESS"):
        return "ok"
    if (said[0], ended) == ("STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_INVALIDATED"):
        return "bad"
    return f"{said[0]}, then {ended}"


def captures(context: Any) -> dict[str, tuple[str, str]]:
    """What is asked → (what the driver says, what the simulator would)."""
    found = {}
    for title, situation in SITUATIONS.items():
        registered, allocated = pages(1), ok(cuda.cuMemHostAlloc(PAGE, 0))
        ok(cuda.cuMemHostRegister(registered, PAGE, 0))
        calls: dict[str, Callable[[], tuple[Any, ...]]] = {
            "cuMemHostRegister": lambda: cuda.cuMemHostRegister(pages(1), PAGE, 0),
            "cuMemHostUnregister": lambda where=registered: cuda.cuMemHostUnregister(where),
            "cuMemHostAlloc": lambda: cuda.cuMemHostAlloc(PAGE, 0),
            "cuMemFreeHost": lambda where=allocated: cuda.cuMemFreeHost(where),
        }
        for name, call in calls.items():
            found[f"{name} beside a capture ({title})"] = (
                beside_capture(call, situation, context),
                UNSAFE[title],
            )
    return found


def registrations() -> dict[str, tuple[str, str]]:
    """The same, without captures."""
    where, device = pages(4), ok(cuda.cuMemAlloc(4 * PAGE))
    stream = ok(cuda.cuStreamCreate(1))
    for page in (0, 1, 3):
        ok(cuda.cuMemHostRegister(where + page * PAGE, PAGE, 0))
    found = {
        "registering twice": (
            short(cuda.cuMemHostRegister(where, PAGE, 0)),
            "HOST_MEMORY_ALREADY_REGISTERED",
        ),
        "registering what overlaps": (
            short(cuda.cuMemHostRegister(where + PAGE, 2 * PAGE, 0)),
            "HOST_MEMORY_ALREADY_REGISTERED",
        ),
        "unregistering what is not": (
            short(cuda.cuMemHostUnregister(where + 2 * PAGE)),
            "HOST_MEMORY_NOT_REGISTERED",
        ),
        "unregistering in the midst": (short(cuda.cuMemHostUnregister(where + 4096)), "INVALID_VALUE"),
    }
    for title, at, size, said in (
        ("in one registration", 0, PAGE, "SUCCESS"),
        ("in two", 0, 2 * PAGE, "INVALID_VALUE"),
        ("half registered, registered first", PAGE, 2 * PAGE, "INVALID_VALUE"),
        ("half registered, registered last", 2 * PAGE, 2 * PAGE, "INVALID_VALUE"),
        ("not registered", 2 * PAGE, PAGE, "SUCCESS"),
    ):
        found[f"cuMemcpyHtoDAsync {title}"] = (
            short(cuda.cuMemcpyHtoDAsync(device, where + at, size, stream)),
            said,
        )
        found[f"cuMemcpyDtoHAsync {title}"] = (
            short(cuda.cuMemcpyDtoHAsync(where + at, device, size, stream)),
            said,
        )
    ok(cuda.cuStreamSynchronize(stream))
    return found


def main() -> int:
    """Print every answer; 1 if one is not as the simulator's."""
    ok(cuda.cuInit(0))
    context = ok(cuda.cuDevicePrimaryCtxRetain(0))
    ok(cuda.cuCtxSetCurrent(context))
    answers = registrations() | captures(context)
    others = 0
    for what, (said, expected) in answers.items():
        others += said != expected
        print(f"{what}: {said}" + ("" if said == expected else f"  <- the simulator says {expected}"))
    print(f"{len(answers)} answers, {others} of them other than the simulator's")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())

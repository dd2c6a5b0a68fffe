"""Stream capture: what a capture forbids, and what that costs it, as read off driver 580 on an H200."""

from __future__ import annotations

import textwrap

SETUP = """
    context()
    kernels = Kernels()
    mode = cuda.CUstreamCaptureMode
    modes = {"global": mode.CU_STREAM_CAPTURE_MODE_GLOBAL, "local": mode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
             "relaxed": mode.CU_STREAM_CAPTURE_MODE_RELAXED}
    address = ok(cuda.cuMemAlloc(4096))
    ok(cuda.cuMemsetD8(address, 0, 4096))
    ok(cuda.cuCtxSynchronize())
    stream, other, event = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1)), ok(cuda.cuEventCreate(2))
    blocking = ok(cuda.cuStreamCreate(0))
    old = ok(cuda.cuEventCreate(2))
    ok(cuda.cuEventRecord(old, other))
    def add(where=None):
        return kernels.launch("add_u32", address, 4, 1, stream=stream if where is None else where)
    def status(where=None):
        return str(ok(cuda.cuStreamIsCapturing(stream if where is None else where)).name).split("_")[-1].lower()
    def begin(which="global", where=None):
        ok(cuda.cuStreamBeginCapture(stream if where is None else where, modes[which]))
    def end(where=None):
        return cuda.cuStreamEndCapture(stream if where is None else where)
"""


def run(gpu, code: str) -> list[str]:
    return gpu.run(textwrap.dedent(SETUP) + textwrap.dedent(code))


# call → what it says while a non-blocking stream captures: in mode global, thread-local, relaxed, and in mode global
# and thread-local from another thread. "!" after the error: the capture is invalidated.
RULES = {
    "cuda.cuStreamQuery(stream)": ["UNSUPPORTED!"] * 5,
    "cuda.cuStreamSynchronize(stream)": ["UNSUPPORTED!"] * 5,
    "cuda.cuCtxSynchronize()": ["UNSUPPORTED!"] * 5,
    "cuda.cuStreamQuery(other)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "cuda.cuStreamSynchronize(0)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "cuda.cuEventQuery(old)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "cuda.cuEventSynchronize(old)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "cuda.cuMemAlloc(100)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "cuda.cuMemFree(address)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "cuda.cuMemHostAlloc(100, 0)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "cuda.cuMemHostRegister(page(), 4096, 0)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "cuda.cuMemHostUnregister(registered)": ["UNSUPPORTED!", "UNSUPPORTED!", "ok", "UNSUPPORTED!", "ok"],
    "(cuda.cuEventRecord(event, stream), cuda.cuEventQuery(event))[1]": ["CAPTURED_EVENT!"] * 5,
    "cuda.cuStreamWaitEvent(stream, old, 0)": ["ISOLATION!"] * 5,
    "cuda.cuStreamBeginCapture(stream, modes['global'])": ["ILLEGAL_STATE"] * 5,
    "cuda.cuMemCreate(2 * MIB, properties(), 0)": ["ok"] * 5,
    "cuda.cuMemAddressReserve(2 * MIB, 0, 0, 0)": ["ok"] * 5,
    "cuda.cuMemGetInfo()": ["ok"] * 5,
    "cuda.cuStreamCreate(0)": ["ok"] * 5,
    "cuda.cuMemsetD8(address, 0, 16)": ["ok"] * 5,
    "add(other)": ["ok"] * 5,
    "add(0)": ["ok"] * 5,
}


def test_what_a_capture_forbids(gpu):
    calls = "\n".join(f"    ({call!r}, lambda: {call})," for call in RULES)
    code = f"""
import mmap
pages = []
def page():
    pages.append(mmap.mmap(-1, 4096))
    return ctypes.addressof(ctypes.c_char.from_buffer(pages[-1]))
calls = [
{calls}
]
for text, call in calls:
    for which, threaded in (("global", 0), ("local", 0), ("relaxed", 0), ("global", 1), ("local", 1)):
        stream = ok(cuda.cuStreamCreate(1))
        address, registered = ok(cuda.cuMemAlloc(4096)), page()
        ok(cuda.cuMemHostRegister(registered, 4096, 0))
        begin(which)
        ok(add())
        made = lambda: name(call()).replace("STREAM_CAPTURE_", "").replace("SUCCESS", "ok")
        said = in_thread(made) if threaded else made()
        invalidated = status() == "invalidated"
        ended = name(end())
        assert ended == ("STREAM_CAPTURE_INVALIDATED" if invalidated else "SUCCESS"), ended
        assert status() == "none"
        say(text + "\\t" + said + ("!" if invalidated else ""))
"""
    seen: dict[str, list[str]] = {}
    for line in run(gpu, code):
        call, said = line.split("\t")
        seen.setdefault(call, []).append(said)
    assert seen == RULES


def test_a_relaxed_thread_pins_memory_beside_a_global_capture(gpu):
    run(
        gpu,
        """
        import mmap
        memory = mmap.mmap(-1, 65536)
        where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        def pin():
            ok(cuda.cuThreadExchangeStreamCaptureMode(modes["relaxed"]))
            ok(cuda.cuMemHostRegister(where, 65536, 0))
            ok(cuda.cuMemHostUnregister(where))
            ok(cuda.cuMemFreeHost(ok(cuda.cuMemHostAlloc(4096, 0))))
        begin()
        ok(add())
        in_thread(pin)
        assert status() == "active"
        ok(end())
        """,
    )


def test_the_legacy_stream_may_not_be_used_while_a_blocking_stream_captures(gpu):
    run(
        gpu,
        """
        data = (U32 * 4)()
        for call in (lambda: add(0), lambda: cuda.cuStreamQuery(0), lambda: cuda.cuStreamSynchronize(0),
                     lambda: cuda.cuMemcpyDtoH(ctypes.addressof(data), address, 16)):
            begin("relaxed", blocking)
            ok(add(blocking))
            assert name(call()) == "STREAM_CAPTURE_IMPLICIT"
            assert status(blocking) == "invalidated"
            assert name(end(blocking)) == "STREAM_CAPTURE_INVALIDATED"
        begin("global", blocking)
        assert name(cuda.cuStreamIsCapturing(0)) == "STREAM_CAPTURE_IMPLICIT"
        assert status(blocking) == "active", "asking does no harm"
        ok(end(blocking))
        """,
    )


def test_how_captures_end_badly(gpu):
    run(
        gpu,
        """
        assert name(cuda.cuStreamBeginCapture(0, modes["global"])) == "STREAM_CAPTURE_UNSUPPORTED"
        assert name(end()) == "ILLEGAL_STATE"
        begin()
        ok(cuda.cuEventRecord(event, stream))
        ok(end())
        assert name(cuda.cuEventQuery(event)) == "INVALID_VALUE", "recorded in a capture that ended"
        begin()
        assert in_thread(lambda: name(end())) == "STREAM_CAPTURE_WRONG_THREAD"
        assert status() == "none"
        begin("relaxed")
        ok(in_thread(end))
        begin()
        begin("global", other)
        ok(cuda.cuEventRecord(event, stream))
        assert name(cuda.cuStreamWaitEvent(other, event, 0)) == "STREAM_CAPTURE_MERGE"
        assert (status(), status(other)) == ("invalidated", "invalidated")
        """,
    )

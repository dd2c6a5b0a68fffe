"""Streams, events, callbacks and kernels of the simulated driver."""

from __future__ import annotations


def test_every_kernel_does_what_its_text_says(gpu):
    gpu.run("""
        context()
        kernels = Kernels()
        address = ok(cuda.cuMemAlloc(4 * MIB))
        ok(kernels.launch("pattern_u32", address, 100000, 5))
        expected = pattern(5, 100000)
        assert words(address, 100000) == expected
        ok(kernels.launch("add_u32", address, 100000, 7))
        assert words(address, 3) == [(v + 7) & 0xFFFFFFFF for v in expected[:3]]
        ok(kernels.launch("fill_u32", address, 1000, 9))
        out = ok(cuda.cuMemAlloc(8))
        ok(kernels.launch("checksum_u32", address, 1000, out))
        assert words(out, 2) == [9000, 0]
        missing = cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(b".version 7.0\\n\\0")), b"nothing")
        assert name(missing) == "NOT_FOUND"
    """)


def test_work_is_asynchronous_and_waiting_waits(gpu):
    gpu.run("""
        context()
        kernels = Kernels()
        stream, other = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1))
        start, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
        flag = (U32 * 1).from_address(ok(cuda.cuMemHostAlloc(4, 0)))
        ok(cuda.cuEventRecord(start, stream))
        ok(kernels.launch("wait_flag", ctypes.addressof(flag), stream=stream))
        ok(cuda.cuEventRecord(end, stream))
        assert name(cuda.cuStreamQuery(stream)) == name(cuda.cuEventQuery(end)) == "NOT_READY"
        ok(cuda.cuStreamQuery(other))
        waiter = threading.Thread(target=lambda: ok(cuda.cuEventSynchronize(end)))
        waiter.start()
        assert name(cuda.cuEventElapsedTime(start, end)) == "NOT_READY"
        flag[0] = 1
        waiter.join()
        ok(cuda.cuStreamSynchronize(stream))
        assert ok(cuda.cuEventElapsedTime(start, end)) > 0
    """)


def test_the_legacy_stream_orders_blocking_streams_and_only_those(gpu):
    gpu.run("""
        context()
        kernels = Kernels()
        blocking, free = ok(cuda.cuStreamCreate(0)), ok(cuda.cuStreamCreate(1))
        flag = (U32 * 1).from_address(ok(cuda.cuMemHostAlloc(4, 0)))
        address = ok(cuda.cuMemAlloc(400))
        ok(cuda.cuMemsetD32(address, 0, 100))
        ok(cuda.cuCtxSynchronize())  # the free stream does not wait for a fill on the legacy one
        ok(kernels.launch("wait_flag", ctypes.addressof(flag), stream=blocking))
        ok(kernels.launch("fill_u32", address, 1, 1))                    # behind the blocking stream
        ok(kernels.launch("fill_u32", int(address) + 4, 1, 2, stream=free))
        ok(cuda.cuStreamSynchronize(free))
        assert name(cuda.cuStreamQuery(0)) == "NOT_READY"
        seen = (U32 * 2)()
        ok(cuda.cuMemcpyDtoHAsync(ctypes.addressof(seen), address, 8, free))
        ok(cuda.cuStreamSynchronize(free))
        assert list(seen) == [0, 2]
        flag[0] = 1
        assert words(address, 2) == [1, 2]
    """)


def test_an_event_orders_two_streams(gpu):
    gpu.run("""
        context()
        kernels = Kernels()
        first, second = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1))
        event = ok(cuda.cuEventCreate(2))
        address = ok(cuda.cuMemAlloc(4))
        ok(kernels.launch("spin_ns", 50_000_000, stream=first))
        ok(kernels.launch("fill_u32", address, 1, 5, stream=first))
        ok(cuda.cuEventRecord(event, first))
        ok(cuda.cuStreamWaitEvent(second, event, 0))
        ok(kernels.launch("add_u32", address, 1, 1, stream=second))
        ok(cuda.cuStreamSynchronize(second))
        assert words(address, 1) == [6]
    """)


def test_each_thread_has_a_default_stream_of_its_own(gpu):
    gpu.run("""
        context()
        kernels = Kernels()
        flag = (U32 * 1).from_address(ok(cuda.cuMemHostAlloc(4, 0)))
        ok(kernels.launch("wait_flag", ctypes.addressof(flag), stream=2))
        assert name(cuda.cuStreamQuery(2)) == "NOT_READY"
        assert in_thread(lambda: name(cuda.cuStreamQuery(2))) == "SUCCESS"
        flag[0] = 1
        ok(cuda.cuStreamSynchronize(2))
    """)


def test_a_host_function_runs_on_a_thread_without_signals_and_may_not_call_the_driver(gpu):
    gpu.run("""
        import signal
        context()
        stream = ok(cuda.cuStreamCreate(1))
        seen = []
        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def function(data):
            seen.extend([data, threading.get_native_id(), len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
                         name(cuda.cuMemAlloc(100)), name(cuda.cuStreamQuery(stream))])
        pointer = cuda.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
        ok(cuda.cuLaunchHostFunc(stream, pointer, 77))
        ok(cuda.cuStreamSynchronize(stream))
        assert seen[0] == 77 and seen[1] != threading.get_native_id() and seen[2] > 50, seen
        assert seen[3:] == ["NOT_PERMITTED", "NOT_READY"], seen
    """)


def test_freeing_waits_for_work_and_unmapping_does_not(gpu):
    gpu.run("""
        made = context()
        kernels = Kernels()
        stream = ok(cuda.cuStreamCreate(1))
        block, (address, _) = ok(cuda.cuMemAlloc(4 * MIB)), mapped(2 * MIB)
        flag = (U32 * 1).from_address(ok(cuda.cuMemHostAlloc(4, 0)))
        ok(kernels.launch("wait_flag", ctypes.addressof(flag), stream=stream))
        ok(cuda.cuMemUnmap(address, 2 * MIB))
        freed = threading.Event()
        def free():
            ok(cuda.cuMemFree(block))
            freed.set()
        thread = threading.Thread(target=lambda: (ok(cuda.cuCtxSetCurrent(made)), free()))
        thread.start()
        wait_until_asleep(thread)
        assert not freed.is_set()
        flag[0] = 1
        assert freed.wait(60)
        thread.join()
    """)


def test_destroying_a_context_ends_endless_kernels_and_frees_everything(gpu):
    gpu.run("""
        context()
        empty = free_bytes()
        other = ok(cuda.cuCtxCreate(None, 0, 0))
        kernels = Kernels()
        ok(cuda.cuMemAlloc(100 * MIB))
        flag = ok(cuda.cuMemHostAlloc(4, 0))
        ok(kernels.launch("wait_flag", flag, stream=ok(cuda.cuStreamCreate(1))))
        assert free_bytes() == empty - 164 * MIB
        ok(cuda.cuCtxDestroy(other))
        assert free_bytes() == empty
    """)


def test_constructors_and_cuinit_start_no_thread(gpu):
    gpu.run("""
        threads = len(os.listdir("/proc/self/task"))
        ok(cuda.cuInit(0))
        assert len(os.listdir("/proc/self/task")) == threads
    """)

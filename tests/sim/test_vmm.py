"""Virtual memory management of the simulated driver, as driver 580 behaves."""

from __future__ import annotations


def test_contents_follow_the_handle_to_another_address(gpu):
    gpu.run("""
        context()
        kernels = Kernels()
        address, handle = mapped(4 * MIB)
        ok(kernels.launch("pattern_u32", address, 1000, 3))
        ok(cuda.cuCtxSynchronize())
        ok(cuda.cuMemUnmap(address, 4 * MIB))
        other = ok(cuda.cuMemAddressReserve(4 * MIB, 0, 0, 0))
        ok(cuda.cuMemMap(other, 4 * MIB, 0, handle, 0))
        ok(cuda.cuMemSetAccess(other, 4 * MIB, [access()], 1))
        assert words(other, 1000) == pattern(3, 1000)
    """)


def test_memory_that_was_never_written_takes_none_of_the_host_and_is_zero(gpu):
    gpu.run("""
        context()
        address, _ = mapped(16 * MIB)
        files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        [file] = [file for file in files if os.path.exists(file) and "affinode-sim-gpu" in os.readlink(file)]
        written = lambda: os.stat(file).st_blocks * 512
        back = bytearray(b"x" * 16 * MIB)
        ok(cuda.cuMemsetD32(address, 0, 4 * MIB))
        ok(cuda.cuMemcpyDtoH(back, address, 16 * MIB))
        assert written() == 0 and not any(back)
        ok(cuda.cuMemsetD8(int(address) + 7 * MIB, 7, 1))
        ok(cuda.cuCtxSynchronize())
        assert 0 < written() < MIB
        ok(cuda.cuMemcpyDtoH(back, address, 16 * MIB))
        assert back[7 * MIB] == 7 and sum(back) == 7
        ok(cuda.cuMemsetD8(address, 0, 16 * MIB))
        ok(cuda.cuMemcpyDtoH(back, address, 16 * MIB))
        assert not any(back), "what was written is cleared"
    """)


def test_memory_is_charged_to_the_handle_not_to_the_mapping(gpu):
    gpu.run("""
        context()
        empty = free_bytes()
        address, handle = mapped(64 * MIB)
        assert empty - free_bytes() == 64 * MIB
        ok(cuda.cuMemRelease(handle))
        assert empty - free_bytes() == 64 * MIB, "still mapped"
        ok(cuda.cuMemUnmap(address, 64 * MIB))
        assert free_bytes() == empty
        ok(cuda.cuMemAddressFree(address, 64 * MIB))
    """)


def test_without_access_neither_copies_nor_kernels_reach_it(gpu):
    gpu.run("""
        context()
        kernels = Kernels()
        address, _ = mapped(2 * MIB, accessible=False)
        assert name(cuda.cuMemcpyHtoD(address, b"x" * 16, 16)) == "INVALID_VALUE"
        ok(kernels.launch("fill_u32", address, 4, 1))
        assert name(cuda.cuCtxSynchronize()) == "ILLEGAL_ADDRESS"
        assert name(cuda.cuMemAlloc(100)) == "ILLEGAL_ADDRESS", "sticky"
        ok(cuda.cuDeviceGetCount())
    """)


def test_unmapping_under_a_running_copy_faults_the_context_and_not_the_process(gpu):
    gpu.set(copy_rate="64MiB")
    gpu.run("""
        context()
        address, _ = mapped(64 * MIB)
        stream = ok(cuda.cuStreamCreate(1))
        host = ok(cuda.cuMemHostAlloc(64 * MIB, 0))
        ok(cuda.cuMemcpyDtoHAsync(host, address, 64 * MIB, stream))
        ok(cuda.cuMemUnmap(address, 64 * MIB))
        assert name(cuda.cuStreamSynchronize(stream)) == "ILLEGAL_ADDRESS"
    """)


def test_what_is_refused(gpu):
    gpu.run("""
        context()
        assert name(cuda.cuMemCreate(3 * MIB, properties(), 0)) == "INVALID_VALUE"
        assert name(cuda.cuMemAddressReserve(MIB, 0, 0, 0)) == "INVALID_VALUE"
        address = int(ok(cuda.cuMemAddressReserve(8 * MIB, 0, 0, 0)))
        handle = ok(cuda.cuMemCreate(4 * MIB, properties(), 0))
        assert name(cuda.cuMemMap(address, 2 * MIB, 0, handle, 0)) == "NOT_SUPPORTED", "half a handle"
        ok(cuda.cuMemMap(address, 4 * MIB, 0, handle, 0))
        assert name(cuda.cuMemMap(address, 4 * MIB, 0, handle, 0)) == "INVALID_VALUE", "mapped already"
        assert name(cuda.cuMemSetAccess(address, 8 * MIB, [access()], 1)) == "INVALID_VALUE", "half of it is not mapped"
        assert name(cuda.cuMemAddressFree(address, 8 * MIB)) == "INVALID_VALUE", "still mapped"
        assert name(cuda.cuMemUnmap(address, 2 * MIB)) == "INVALID_VALUE", "half a mapping"
        assert name(cuda.cuMemFree(address)) == "INVALID_VALUE"
        ok(cuda.cuMemUnmap(address, 8 * MIB))
        ok(cuda.cuMemRelease(handle))
        assert name(cuda.cuMemRelease(handle)) == "INVALID_VALUE"
        ok(cuda.cuMemAddressFree(address, 8 * MIB))
    """)


def test_a_peer_needs_access_of_its_own(gpu):
    gpu.set(gpus="2")
    gpu.run("""
        first = context(0)
        address, _ = mapped(2 * MIB, 0)
        second = context(1)
        other, _ = mapped(2 * MIB, 1)
        plain = ok(cuda.cuMemAlloc(2 * MIB))
        ok(cuda.cuCtxSetCurrent(first))
        ok(cuda.cuCtxEnablePeerAccess(second, 0))
        ok(cuda.cuMemcpyDtoD(plain, address, 2 * MIB))
        assert name(cuda.cuMemcpyDtoD(other, address, 2 * MIB)) == "INVALID_VALUE", "peer access is not enough"
        ok(cuda.cuMemSetAccess(other, 2 * MIB, [access(0)], 1))
        ok(cuda.cuMemcpyDtoD(other, address, 2 * MIB))
    """)

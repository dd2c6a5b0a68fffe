"""Device memory, pinned memory, managed memory and pools of the simulated driver."""

from __future__ import annotations

import pytest


def test_what_is_copied_to_the_gpu_comes_back(gpu):
    gpu.run("""
        context()
        address = ok(cuda.cuMemAlloc(5 * MIB))
        data = os.urandom(5 * MIB)
        ok(cuda.cuMemcpyHtoD(address, data, len(data)))
        other = ok(cuda.cuMemAlloc(5 * MIB))
        ok(cuda.cuMemcpyDtoD(other, address, len(data)))
        back = bytearray(len(data))
        ok(cuda.cuMemcpyDtoH(back, other, len(data)))
        assert back == data
        ok(cuda.cuMemsetD32(address, 0xdeadbeef, 1000))
        ok(cuda.cuMemsetD16(int(address) + 4000, 0x1234, 2))
        assert words(address, 1001) == [0xdeadbeef] * 1000 + [0x12341234]
    """)


def test_memory_is_charged_in_two_mebibyte_steps_and_given_back(gpu):
    gpu.run("""
        context()
        empty = free_bytes()
        assert empty == (1024 - 64) * MIB
        small = [ok(cuda.cuMemAlloc(1000)) for _ in range(100)]
        assert empty - free_bytes() == 2 * MIB, "small pieces share a slab"
        large = ok(cuda.cuMemAlloc(3 * MIB))
        assert empty - free_bytes() == 6 * MIB
        for address in [*small, large]:
            ok(cuda.cuMemFree(address))
        assert free_bytes() == empty
    """)


def test_a_full_gpu_says_out_of_memory_and_stays_usable(gpu):
    gpu.run("""
        context()
        assert name(cuda.cuMemAlloc(1024 * MIB)) == "OUT_OF_MEMORY"
        most = ok(cuda.cuMemAlloc(free_bytes()))
        assert free_bytes() == 0
        assert name(cuda.cuMemAlloc(100)) == "OUT_OF_MEMORY"
        assert name(cuda.cuMemCreate(2 * MIB, properties(), 0)) == "OUT_OF_MEMORY"
        ok(cuda.cuMemFree(most))
        ok(cuda.cuMemAlloc(100))
    """)


@pytest.mark.parametrize(
    "call", ["cuMemcpyHtoD(0x7000000000, b'x' * 16, 16)", "cuMemsetD8(0x7000000000, 0, 16)"]
)
def test_an_address_that_is_none_is_refused(gpu, call):
    assert gpu.run(f"context(); say(name(cuda.{call}))") == ["INVALID_VALUE"]


def test_ranges_and_attributes_of_allocations(gpu):
    gpu.run("""
        made = context()
        address = int(ok(cuda.cuMemAlloc(4 * MIB)))
        base, size = ok(cuda.cuMemGetAddressRange(address + 100))
        assert (int(base), size) == (address, 4 * MIB)
        assert name(cuda.cuMemGetAddressRange(0x1000)) == "NOT_FOUND"
        attribute = cuda.CUpointer_attribute
        def ask(what, where=address + 5):
            return ok(cuda.cuPointerGetAttribute(what, where))
        assert ask(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        assert int(ask(attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)) == address
        assert ask(attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == 0
        assert int(ask(attribute.CU_POINTER_ATTRIBUTE_CONTEXT)) == int(made)
        host = ok(cuda.cuMemHostAlloc(4096, 0))
        assert ask(attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host) == cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        ids = {ask(attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID, ok(cuda.cuMemAlloc(100))) for _ in range(5)}
        assert len(ids) == 5
    """)


def test_registered_memory_is_known_until_it_is_unregistered(gpu):
    gpu.run("""
        import mmap
        context()
        memory = mmap.mmap(-1, 1 << 20)
        where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ok(cuda.cuMemHostRegister(where, 65536, 0))
        assert name(cuda.cuMemHostRegister(where + 4096, 4096, 0)) == "HOST_MEMORY_ALREADY_REGISTERED"
        assert name(cuda.cuMemHostUnregister(where + 4096)) == "INVALID_VALUE"
        ok(cuda.cuMemHostUnregister(where))
        assert name(cuda.cuMemHostUnregister(where)) == "HOST_MEMORY_NOT_REGISTERED"
    """)


def test_an_asynchronous_copy_keeps_to_one_registration(gpu):
    gpu.run("""
        import mmap
        context()
        memory = mmap.mmap(-1, 4 * 65536)
        where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        address, stream = ok(cuda.cuMemAlloc(4 * 65536)), ok(cuda.cuStreamCreate(1))
        for i in (0, 1, 3):
            ok(cuda.cuMemHostRegister(where + i * 65536, 65536, 0))
        for at, size, said in ((0, 65536, "SUCCESS"), (65536, 65536, "SUCCESS"), (2 * 65536, 65536, "SUCCESS"),
                               (0, 65537, "INVALID_VALUE"), (65536, 65537, "INVALID_VALUE"),
                               (2 * 65536, 65537, "INVALID_VALUE"), (0, 4 * 65536, "INVALID_VALUE")):
            assert name(cuda.cuMemcpyHtoDAsync(address, where + at, size, stream)) == said, (at, size)
            assert name(cuda.cuMemcpyDtoHAsync(where + at, address, size, stream)) == said, (at, size)
        ok(cuda.cuStreamSynchronize(stream))
    """)


def test_a_pool_keeps_what_was_freed_until_something_synchronises(gpu):
    gpu.run("""
        context()
        stream = ok(cuda.cuStreamCreate(1))
        empty = free_bytes()
        address = ok(cuda.cuMemAllocAsync(100 * MIB, stream))
        ok(cuda.cuMemFreeAsync(address, stream))
        ok(cuda.cuMemsetD8(ok(cuda.cuMemAlloc(100)), 0, 100))
        assert empty - free_bytes() >= 100 * MIB
        ok(cuda.cuStreamSynchronize(stream))
        assert empty - free_bytes() == 2 * MIB
        pool = ok(cuda.cuDeviceGetDefaultMemPool(0))
        threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        ok(cuda.cuMemPoolSetAttribute(pool, threshold, cuda.cuuint64_t(1 << 40)))
        address = ok(cuda.cuMemAllocAsync(100 * MIB, stream))
        ok(cuda.cuMemFreeAsync(address, stream))
        ok(cuda.cuStreamSynchronize(stream))
        assert empty - free_bytes() >= 100 * MIB, "the threshold keeps it"
        ok(cuda.cuMemPoolTrimTo(pool, 0))
        assert empty - free_bytes() == 2 * MIB
    """)


def test_managed_memory_is_on_the_gpu_once_a_kernel_touched_it(gpu):
    gpu.run("""
        context()
        kernels = Kernels()
        empty = free_bytes()
        flags = cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
        address = ok(cuda.cuMemAllocManaged(64 * MIB, flags))
        assert free_bytes() == empty
        ok(kernels.launch("fill_u32", address, 10, 42))
        ok(cuda.cuCtxSynchronize())
        assert empty - free_bytes() == 64 * MIB
        assert list((U32 * 10).from_address(int(address))) == [42] * 10, "the host reads it in place"
        ok(cuda.cuMemFree(address))
        assert free_bytes() == empty
    """)


def test_thousands_of_allocations_cost_no_descriptors(gpu):
    gpu.run("""
        context()
        before = len(os.listdir("/proc/self/fd"))
        blocks = [ok(cuda.cuMemAlloc(2 * MIB)) for _ in range(400)]
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        for block in blocks:
            ok(cuda.cuMemFree(block))
    """)

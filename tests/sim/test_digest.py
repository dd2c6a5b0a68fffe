"""The mover's digest kernel on the simulator, held against the formula in plain Python integers."""

from __future__ import annotations

import textwrap

import pytest

SETUP = """
    import random
    from array import array
    N = 524288
    TEXT = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry affinode_digest(\\n) { ret; }\\0"
    TYPES = (U64, U32, U64, U64)

    def expected(chunk, key):
        m, said = array("I", chunk), []
        for p in range(0, 16, 4):
            h = sum((a + b & 0xFFFFFFFF) * (c + d & 0xFFFFFFFF)
                    for a, b, c, d in zip(m[::2], key[p::2], m[1::2], key[p + 1 :: 2]))
            said += [h & 0xFFFFFFFF, h >> 32 & 0xFFFFFFFF]
        union = 0
        for word in m:
            union |= word
        return [*said, union, *[0] * 7]

    made = context()
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed, file=sys.stderr)
    source = random.Random(seed)
    key = array("I", source.randbytes(4 * (N + 16)))
    kernel = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(TEXT)), b"affinode_digest"))
    stream = ok(cuda.cuStreamCreate(1))
    chunks = ok(cuda.cuMemAlloc(4 * 2 * MIB))
    key_at, addresses, results = (ok(cuda.cuMemAlloc(size)) for size in (4 * (N + 16), 8 * 4, 64 * 4))
    ok(cuda.cuMemcpyHtoD(key_at, key.tobytes(), 4 * (N + 16)))

    def digest(places, count=None):
        ok(cuda.cuMemcpyHtoD(addresses, array("Q", places).tobytes(), 8 * len(places)))
        arguments = ((int(addresses), count or len(places), int(key_at), int(results)), TYPES)
        ok(cuda.cuLaunchKernel(kernel, 7, 1, 1, 256, 1, 1, 0, stream, arguments, 0))
        return cuda.cuStreamSynchronize(stream)
"""


def run(gpu, code: str) -> list[str]:
    return gpu.run(textwrap.dedent(SETUP) + textwrap.dedent(code))


@pytest.mark.long
def test_the_digest_is_the_formulas(gpu):
    run(
        gpu,
        """
        base = int(chunks)
        one = bytearray(2 * MIB)
        one[-1] = 0x80
        contents = [source.randbytes(2 * MIB), bytes(2 * MIB), bytes(one), b"\\xff" * 2 * MIB]
        for i, content in enumerate(contents):
            ok(cuda.cuMemcpyHtoD(base + i * 2 * MIB, content, 2 * MIB))
        order = [2, 0, 1, 3]
        ok(digest([base + i * 2 * MIB for i in order]))
        said = words(results, 64)
        for place, i in enumerate(order):
            assert said[16 * place : 16 * place + 16] == expected(contents[i], key), f"chunk {i}"
        assert said[32 + 8] == 0 and said[8] == 0x80000000, "only the zero chunk is zero"
        """,
    )


@pytest.mark.long
def test_another_key_makes_another_digest_of_zeros(gpu):
    run(
        gpu,
        """
        ok(cuda.cuMemsetD8(chunks, 0, 2 * MIB))
        for _ in range(2):
            ok(digest([int(chunks)]))
            assert words(results, 16) == expected(bytes(2 * MIB), key)
            key[N - 1] ^= 1
            ok(cuda.cuMemcpyHtoD(key_at, key.tobytes(), 4 * (N + 16)))
        """,
    )


def test_a_chunk_that_is_not_there_is_a_fault_of_the_context(gpu):
    run(
        gpu,
        """
        gone, handle = mapped(2 * MIB)
        ok(cuda.cuMemUnmap(gone, 2 * MIB))
        assert name(digest([int(chunks), int(gone)])) == "ILLEGAL_ADDRESS"
        assert name(cuda.cuMemAlloc(100)) == "ILLEGAL_ADDRESS", "for good"
        """,
    )


def test_results_that_do_not_fit_are_a_fault_too(gpu):
    run(
        gpu,
        """
        results, handle = mapped(2 * MIB)
        results = int(results) + 2 * MIB - 64
        assert name(digest([int(chunks), int(chunks)])) == "ILLEGAL_ADDRESS"
        """,
    )


def test_its_parameters_are_told_at_their_alignment(gpu):
    run(
        gpu,
        """
        told = [tuple(map(int, ok(cuda.cuFuncGetParamInfo(kernel, i)))) for i in range(4)]
        assert told == [(0, 8), (8, 4), (16, 8), (24, 8)]
        """,
    )

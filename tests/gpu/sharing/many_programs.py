"""What the kernels of many_kernels.py run, and what it must come to, computed without any GPU.

Word i of a kernel's memory is `A * i + s`, modulo 2^64, with an odd A: no two words, chunks or pieces are alike. A
cell adds a number to every word and answers with a checksum over all of them, in which word j of piece p counts
`(B * j + 1) * (2 * p + 1)` times. That is odd, so that one wrong word, wherever it is, changes the checksum. Sums of
j and of j squared are known, so `checksum` says to the bit what is right.
"""

from __future__ import annotations

WORD = 1 << 64
A = 0x1E3779B97F4A7C15  # odd; as an int64 it is positive, as B is
B = 0x2545F4914F6CDD1C  # even
WORD_BYTES = 8

COMMON = f"""
import time
A, B = {A}, {B}
def signed(number):
    number %= 1 << 64
    return number - (1 << 64) if number >> 63 else number
def weighted(sums):
    return sum(one * (2 * piece + 1) for piece, one in enumerate(sums)) % (1 << 64)
"""
TORCH = """
import torch
probe = torch.zeros(1, dtype=torch.int64, device="cuda")
torch.cuda.synchronize()
def fill(blocks_of, words, seed):
    global blocks, weights, size
    size, index = words, torch.arange(words, device="cuda")
    weights, blocks, piece = index * B + 1, [], 0
    for pieces in blocks_of:
        blocks.append(torch.empty(pieces * words, dtype=torch.int64, device="cuda"))
        for part in blocks[-1].split(words):
            torch.mul(index, A, out=part)
            part.add_(signed(A * piece * words + seed))
            piece += 1
    torch.cuda.synchronize()
def work(number):
    probe.add_(1)
    torch.cuda.synchronize()
    began = time.monotonic()
    for block in blocks:
        block.add_(signed(number))
    sums = torch.stack([(part * weights).sum() for block in blocks for part in block.split(size)]).tolist()
    return began, time.monotonic(), weighted(sums)
"""
DRIVER = """
import ctypes, numpy
from jupyter_affinode.bench.driver import Driver
driver = Driver()
probe = driver.allocate(2 << 20)
def fill(blocks_of, words, seed):
    global blocks, weights, there
    index = numpy.arange(words, dtype=numpy.uint64)
    weights, there, blocks, piece = index * numpy.uint64(B) + numpy.uint64(1), numpy.empty_like(index), [], 0
    for pieces in blocks_of:
        address = driver.allocate(pieces * there.nbytes)
        for at in range(address, address + pieces * there.nbytes, there.nbytes):
            there[:] = index * numpy.uint64(A) + numpy.uint64((A * piece * words + seed) % 2**64)
            copy("cuMemcpyHtoD_v2", at)
            blocks.append(at)
            piece += 1
def copy(name, address):
    device, host = ctypes.c_uint64(address), ctypes.c_void_p(there.ctypes.data)
    ends = (device, host) if name == "cuMemcpyHtoD_v2" else (host, device)
    driver.call(name, *ends, ctypes.c_size_t(there.nbytes))
def work(number):
    driver.call("cuMemsetD32_v2", ctypes.c_uint64(probe), 1, ctypes.c_size_t(1))
    began, sums = time.monotonic(), []
    for address in blocks:
        copy("cuMemcpyDtoH_v2", address)
        there[:] += numpy.uint64(number)
        copy("cuMemcpyHtoD_v2", address)
        copy("cuMemcpyDtoH_v2", address)
        sums.append(int((there * weights).sum()))
    return began, time.monotonic(), weighted(sums)
"""
PROGRAMS = {"torch": COMMON + TORCH, "driver": COMMON + DRIVER}
PIECE_WORDS = {"torch": 1 << 23, "driver": 1 << 18}  # 64 MiB and 2 MiB
BLOCKS = 4


def blocks_of(size: int, words: int) -> list[int]:
    """How many pieces of `words` each of four blocks has, of `size` bytes together; at least one each."""
    pieces = max(size // (words * WORD_BYTES), BLOCKS)
    return [pieces // BLOCKS + (number < pieces % BLOCKS) for number in range(BLOCKS)]


def checksum(pieces: int, words: int, start: int) -> int:
    """What `work` must answer where word i is `A * i + start`."""
    first = words * (words - 1) // 2
    squares = (words - 1) * words * (2 * words - 1) // 6
    total = 0
    for piece in range(pieces):
        begins = A * piece * words + start
        total += (A * B * squares + (A + begins * B) * first + begins * words) * (2 * piece + 1)
    return total % WORD

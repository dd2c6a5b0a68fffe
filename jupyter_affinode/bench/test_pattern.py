"""Device memory in blocks whose every 2 MiB chunk holds something of its own, and the proof that it still does."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator

from .driver import Driver

CHUNK_BYTES = 2 << 20
CHUNK_WORDS = CHUNK_BYTES // 8
STEP = 0x9E3779B97F4A7C15  # of splitmix64: see content.ptx
ZEROS = 0  # the seed of a chunk of zeros
MASK = (1 << 64) - 1


class Content:
    """`size` bytes in allocations of `block` bytes (the last may be smaller), all zeros at first."""

    def __init__(self, driver: Driver, size: int, block: int):
        self._driver = driver
        self._blocks: list[tuple[int, int]] = []  # address, chunks
        self._differing = driver.allocate(8)
        left = size
        while left:
            part = min(block, left)
            self._blocks.append((driver.allocate(part), part // CHUNK_BYTES))
            left -= part
        self._seeds = [ZEROS] * (size // CHUNK_BYTES)
        self._fill([True] * len(self._seeds))

    @property
    def address(self) -> int:
        """Return the address of the first block."""
        return self._blocks[0][0]

    def change_all(self, seed: int) -> None:
        """Write other words everywhere; `seed` 0 for zeros."""
        self._seeds = [seed] * len(self._seeds)
        self._fill([True] * len(self._seeds))

    def change_some(self, fraction: float, seed: int) -> int:
        """Write other words in a random choice of the chunks, at least one; return how many."""
        count = max(round(fraction * len(self._seeds)), 1)
        changed = [False] * len(self._seeds)
        for chunk in random.Random(seed).sample(range(len(self._seeds)), count):
            self._seeds[chunk] = seed
            changed[chunk] = True
        self._fill(changed)
        return count

    def differing_words(self) -> int:
        """Return how many 8-byte words are not what was last written there."""
        found = ctypes.c_uint64()
        self._driver.call("cuMemsetD8_v2", ctypes.c_uint64(self._differing), 0, ctypes.c_size_t(8))
        for address, words, state in self._runs([True] * len(self._seeds)):
            self._driver.launch("affinode_differ_u64", words, address, words, state, self._differing)
        self._driver.synchronize()
        self._driver.call(
            "cuMemcpyDtoH_v2", ctypes.byref(found), ctypes.c_uint64(self._differing), ctypes.c_size_t(8)
        )
        return int(found.value)

    def _fill(self, chosen: list[bool]) -> None:
        for address, words, state in self._runs(chosen):
            self._driver.launch("affinode_random_u64", words, address, words, state)
        self._driver.synchronize()

    def _runs(self, chosen: list[bool]) -> Iterator[tuple[int, int, int]]:
        """Yield (address, words, state) of every run of chosen chunks of one block and one seed."""
        first = 0
        for address, chunks in self._blocks:
            begin = 0
            while begin < chunks:
                end = begin + 1
                seed = self._seeds[first + begin]
                while (
                    end < chunks
                    and self._seeds[first + end] == seed
                    and chosen[first + end] == chosen[first + begin]
                ):
                    end += 1
                if chosen[first + begin]:
                    words = (end - begin) * CHUNK_WORDS
                    yield address + begin * CHUNK_BYTES, words, _state(seed, (first + begin) * CHUNK_WORDS)
                begin = end
            first += chunks


def _state(seed: int, first_word: int) -> int:
    """Return splitmix64's state before the `first_word`-th word of a seed's own stream: 2**40 steps a seed, below
    2**24.
    """
    if seed == ZEROS:
        return 0
    return ((seed << 40) * STEP + first_word * STEP) & MASK

"""Each part of the system ends, in each way, with kernels of all kinds: each kernel is kept whole, or a sentence said
before that it is not. The rows are in `ends_table.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from ends_scene import Scene
from ends_table import KINDS, runs

# A few kernels of few runs: what takes less than ten seconds.
IN_CI = {("server", "SIGTERM", "parked"): ("gpu", "cell", "hibernated")}


def rows() -> Iterator[object]:
    """Yield all runs with kernels of all kinds, and those of CI."""
    for (part, how, mode), kinds in IN_CI.items():
        yield pytest.param(part, how, mode, kinds, id=f"quick-{part}-{how}-{mode}")
    for part, how, mode in runs():
        name = f"{part.replace(' ', '-')}-{how}-{mode}"
        yield pytest.param(part, how, mode, KINDS, id=name, marks=pytest.mark.long)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("part", "how", "mode", "kinds"), list(rows()))
def test_a_kernel_is_kept_whole_or_a_sentence_said_before_that_it_is_not(
    native, keeping_machine, criu, part, how, mode, kinds
):
    scene = Scene(keeping_machine, criu, mode, kinds)
    try:
        asyncio.run(scene.play(part, how))
    finally:
        for name, text in scene.logs().items():
            print(f"---- {name}\n{text}")
    assert not scene.failures, "\n".join([f"{part} {how}, keep_kernels={mode}:", *scene.failures])

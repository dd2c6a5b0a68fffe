"""What a user's images have in common of GPU memory is on disk once, whatever becomes of each of them.

Real kernels with memory on the simulated GPU, one keeper, the real CRIU.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interrupted import begin_and_stop, see_that_all_is_well
from lone_kernel import LoneKernel
from waiting import wait_until
from zstandard import ZstdDecompressor

from jupyter_affinode.hibernation.image import GPU_PREFIX
from jupyter_affinode.hibernation.store import images_in, taken_bytes

MIB = 1 << 20
WEIGHTS_MIB = 32
OWN_MIB = 2
PAGE_BYTES = 4096


@contextlib.contextmanager
def kernels(lone: LoneKernel, count: int) -> Iterator[list[LoneKernel]]:
    """So many kernels of one user: all have the same weights, and each some memory of its own."""
    with contextlib.ExitStack() as stack:
        made = [lone]
        for number in range(count):
            kernel = made[0] if number == 0 else stack.enter_context(LoneKernel(lone.machine, beside=lone))
            made += [kernel] if number else []
            kernel.run(
                f"weights = Block({WEIGHTS_MIB}, seed=9)\nown = Block({OWN_MIB}, seed={1000 + number})\n"
                "whole = (weights.checksum(), own.checksum())"
            )
        yield made


def has_its_own(kernel: LoneKernel) -> None:
    """Assert that all it has on the GPU is right."""
    kernel.check()
    assert kernel.run("print((weights.checksum(), own.checksum()) == whole)").endswith("True\n")


def gpu_files(*images: Path) -> dict[int, os.stat_result]:
    """The files of GPU memory in images, each once."""
    found = [path.stat() for image in images for path in image.glob(f"{GPU_PREFIX}*")]
    return {status.st_ino: status for status in found}


def gpu_bytes(*images: Path) -> int:
    """What they take together."""
    return sum(status.st_blocks * 512 for status in gpu_files(*images).values())


def test_a_second_image_takes_only_what_is_its_own_and_outlives_the_first(lone):
    with kernels(lone, 2) as (first, second):
        first.hibernate()
        alone = gpu_bytes(first.image)
        assert alone >= (WEIGHTS_MIB + OWN_MIB) * MIB
        second.hibernate()
        assert gpu_bytes(first.image, second.image) <= alone + (OWN_MIB + 1) * MIB
        images = images_in(lone.store)
        before = taken_bytes(images)
        each_by_itself = sum(status.st_blocks * 512 for image in images for status in image.files())
        assert before <= each_by_itself - WEIGHTS_MIB * MIB
        assert abs(sum(image.bytes for image in images) - before) < 4096, "each part counts once"
        own = next(image for image in images if image.folder == first.image).own_bytes
        first.ask("end", kernel=first.id, store=str(first.store))
        wait_until(lambda: not first.image.exists())
        assert before - taken_bytes(images_in(lone.store)) == own
        assert all(status.st_nlink == 1 for status in gpu_files(second.image).values())
        second.wake()
        has_its_own(second)


def memory_pages(image: Path) -> set[bytes]:
    """Pages of its processes' memory in an image, those alone that are not of a few bytes."""
    found = set()
    for path in image.glob("process/pages-*.img.zst"):
        with (
            path.open("rb") as file,
            ZstdDecompressor().stream_reader(file, read_across_frames=True) as plain,
        ):
            while page := plain.read(PAGE_BYTES):
                found.add(page)
    return {page for page in found if len(set(page)) > 16}


def test_gpu_memory_that_was_copied_last_is_not_in_the_process_part_of_an_image(lone):
    with kernels(lone, 1) as (kernel,):
        kernel.hibernate()
        kernel.wake()
        has_its_own(kernel)  # by the ring of pinned memory
        kernel.hibernate()
        of_gpu = set()
        for path in kernel.image.glob(f"{GPU_PREFIX}*"):
            with path.open("rb") as file:
                of_gpu |= set(iter(lambda: file.read(PAGE_BYTES), b""))
        of_process = memory_pages(kernel.image)
        assert len(of_gpu) > WEIGHTS_MIB * MIB // PAGE_BYTES and len(of_process) > 1000
        assert not of_gpu & of_process
        kernel.wake()
        has_its_own(kernel)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ten_images_have_their_weights_once(lone):
    with kernels(lone, 10) as all_of_them:
        for kernel in all_of_them:
            kernel.hibernate()
        images = [kernel.image for kernel in all_of_them]
        rest = 8 + 1  # of each kernel: a block that all have, too, and what its checksums take
        assert gpu_bytes(*images) <= (WEIGHTS_MIB + 10 * (OWN_MIB + 1) + rest) * MIB
        for kernel in all_of_them:
            kernel.wake()
            has_its_own(kernel)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_one_changes_stays_as_it_was_for_the_others(lone):
    with kernels(lone, 2) as (first, second):
        for _ in range(3):
            for kernel in (first, second):
                kernel.hibernate()
            first.wake()
            first.run("weights.fill(11); weights.fill(9) if own.count % 2 else weights.fill(12)")
            first.run("whole = (weights.checksum(), own.checksum())")
            first.hibernate()
            second.wake()
            has_its_own(second)
            first.wake()
            has_its_own(first)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_stores_of_two_users_have_nothing_in_common(lone):
    with LoneKernel(lone.machine) as other:
        for kernel in (lone, other):
            kernel.run(f"weights = Block({WEIGHTS_MIB}, seed=9)")
            kernel.hibernate()
        assert not gpu_files(lone.image).keys() & gpu_files(other.image).keys()
        assert all(s.st_nlink == 1 for s in gpu_files(lone.image, other.image).values())


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["keeper", "kernel"])
@pytest.mark.parametrize("step", ["leave_gpu", "dump", "finish", "end"])
def test_a_kill_while_one_hibernates_leaves_the_other_as_it_was(lone, victim, step):
    with kernels(lone, 2) as (first, second):
        first.hibernate()
        request = begin_and_stop_beside(first, second, step)
        if victim == "kernel":
            second.kill_kernel()
        else:
            first.kill_keeper()
        first.let_go()
        request.end()
        first.start_keeper()
        if victim == "keeper":
            see_that_all_is_well(second)
            has_its_own(second)
        else:
            wait_until(lambda: second.place() in (None, "image"), 60, first.log)
        first.wake()
        has_its_own(first)


def begin_and_stop_beside(first: LoneKernel, second: LoneKernel, step: str):
    """Have the second hibernate, and stop there: it is the first's folder in which the keeper is told to."""
    second_folder, second.folder = second.folder, first.folder
    try:
        return begin_and_stop(second, f"hibernate: {step}")
    finally:
        second.folder = second_folder


@pytest.mark.long
@pytest.mark.timeout(600)
def test_kernels_that_come_and_go_at_once_are_right_each_time(lone):
    seed = int(os.environ.get("TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    chosen = random.Random(seed)
    with kernels(lone, 3) as all_of_them:
        for _ in range(int(os.environ.get("TEST_ROUNDS", 4))):
            for kernel in all_of_them:
                kernel.run(
                    f"weights.fill({chosen.randrange(3)}); whole = (weights.checksum(), own.checksum())"
                )
            at_once(LoneKernel.hibernate, all_of_them)
            at_once(LoneKernel.wake, all_of_them)
            for kernel in all_of_them:
                has_its_own(kernel)
                if chosen.random() < 0.3:  # what it has on disk for the next time
                    shutil.rmtree(kernel.image, ignore_errors=True)


def at_once(do: Callable[[LoneKernel], None], kernels: list[LoneKernel]) -> None:
    """Do it with all of them at the same time."""
    for done in [kernel.in_background(lambda kernel=kernel: do(kernel)) for kernel in kernels]:
        done()


@pytest.mark.long
def test_a_process_that_ends_leaves_what_others_have(lone):
    with kernels(lone, 2) as (first, second):
        first.hibernate()
        second.hibernate()
        first.wake()
        os.kill(first.pid, signal.SIGKILL)
        second.wake()
        has_its_own(second)

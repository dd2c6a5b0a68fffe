"""Random numbers of a warm kernel that is taken: each source has a state of its own, whatever the prelude seeded."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy
import pytest

import jupyter_affinode

TAKING = Path(jupyter_affinode.__file__).parent / "kernel" / "taking.py"
# Where PyTorch is that these tests use: this Python's, or another one that has it.
PYTORCH_PYTHON = os.environ.get("TEST_PYTORCH_PYTHON", sys.executable)
# What a kernel does with the real PyTorch: its prelude seeds, and then it is taken.
WITH_PYTORCH = f"""
import importlib.util, json
import torch
spec = importlib.util.spec_from_file_location("_taking", {str(TAKING)!r})
taking = importlib.util.module_from_spec(spec)
spec.loader.exec_module(taking)
def drawn():
    of_gpus = [each.initial_seed() for each in torch.cuda.default_generators]
    if torch.cuda.is_initialized():
        of_gpus += [torch.rand(1, device="cuda").item(), torch.rand(1, generator=on_gpu, device="cuda").item()]
    of_own = [own.initial_seed(), torch.rand(1, generator=own).item()]
    return [torch.initial_seed(), torch.rand(1).item(), *of_own, *of_gpus]
torch.manual_seed(1)
own = torch.Generator().manual_seed(1)
if torch.cuda.is_available():
    torch.cuda.init()
    on_gpu = torch.Generator(device="cuda").manual_seed(1)
before = drawn()
torch.manual_seed(1), own.manual_seed(1)
taking.seed_anew(dict(globals()))
print(json.dumps([before, drawn()]))
"""


@pytest.fixture
def taking() -> ModuleType:
    """The module as a kernel has it, which is in no package."""
    spec = importlib.util.spec_from_file_location("_taking", TAKING)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def torch(monkeypatch) -> ModuleType:
    """As PyTorch is used: one call seeds all its generators, also those that CUDA does not have yet."""
    module = ModuleType("torch")
    module.seeded = []
    module.seed = lambda: module.seeded.append("all")
    module.cuda = SimpleNamespace(is_initialized=lambda: False)

    class Generator:
        def seed(self):
            module.seeded.append(self)

    module.Generator = Generator
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_every_source_of_random_numbers_is_seeded_anew(taking, torch):
    bits = [numpy.random.PCG64, numpy.random.MT19937, numpy.random.Philox, numpy.random.SFC64]

    def sources() -> dict[str, object]:
        random.seed(1), numpy.random.seed(1)
        made = {kind.__name__: numpy.random.Generator(kind(1)) for kind in bits}
        return {
            **made,
            "legacy": numpy.random.RandomState(1),
            "own": random.Random(1),
            "torch": torch.Generator(),
        }

    def drawn(names: dict[str, object]) -> list[float]:
        own = [source.random() for name, source in names.items() if name not in ("torch", "legacy")]
        return [*own, names["legacy"].random_sample(), random.random(), numpy.random.random_sample()]

    as_seeded = drawn(sources())
    assert as_seeded == drawn(sources())
    taken = []
    for _ in range(2):
        names = sources()
        taking.seed_anew(names)
        assert torch.seeded.pop() is names["torch"] and torch.seeded.pop() == "all"
        taken.append(drawn(names))
    for one, first, second in zip(as_seeded, *taken, strict=True):
        assert len({one, first, second}) == 3


def test_generators_of_gpus_are_seeded_one_by_one_where_they_are_made(taking, torch):
    torch.default_generator, *of_gpus = (torch.Generator() for _ in range(3))
    torch.cuda = SimpleNamespace(is_initialized=lambda: True, default_generators=tuple(of_gpus))
    taking.seed_anew({})
    assert torch.seeded == [torch.default_generator, *of_gpus]  # and GPUs are not counted


@pytest.mark.long
def test_the_real_pytorch_is_seeded_anew():
    """Its generators on the CPU, and on GPUs where there are some."""
    if subprocess.run([PYTORCH_PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
        pytest.skip(
            f"{PYTORCH_PYTHON} has no PyTorch: pip install torch, or name another in TEST_PYTORCH_PYTHON"
        )
    (before, first), (before_too, second) = (
        json.loads(subprocess.check_output([PYTORCH_PYTHON, "-c", WITH_PYTORCH])) for _ in range(2)
    )
    assert before == before_too
    for seeded, one, other in zip(before, first, second, strict=True):
        assert len({seeded, one, other}) == 3


@pytest.mark.skipif(not hasattr(numpy.random.Generator, "spawn"), reason="this NumPy's generators spawn none")
def test_what_a_generator_of_the_prelude_spawns_differs_too(taking):
    def spawned(*, is_taken: bool) -> list[float]:
        made = {"rng": numpy.random.default_rng(1), "bits": numpy.random.PCG64(1)}
        if is_taken:
            taking.seed_anew(made)
        of_bits = numpy.random.Generator(made["bits"])
        return [made["rng"].spawn(1)[0].random(), of_bits.random(), of_bits.spawn(1)[0].random()]

    assert spawned(is_taken=False) == spawned(is_taken=False)
    for three in zip(spawned(is_taken=False), spawned(is_taken=True), spawned(is_taken=True), strict=True):
        assert len({*three}) == 3

"""Random numbers of a warm kernel that is taken: each source has a state of its own, whatever the prelude seeded."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy
import pytest

import jupyter_affinode

TAKING = Path(jupyter_affinode.__file__).parent / "kernel" / "taking.py"


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

"""Victim selection: enough of the candidates, and no more than host memory allows; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...model.snapshot import Kernel
from ..scheduling_pass.host_plan import HostMemory
from ..scheduling_pass.plan import Plan


class Victims(NamedTuple):
    """Which kernels to park, and what is wrong with host memory for the rest."""

    kernels: list[Kernel]
    memory: HostMemory = HostMemory.ENOUGH
    short: Sequence[Kernel] = ()  # the kernels that it is too short for


def select_victims(
    plan: Plan, candidates: Iterable[Kernel], missing: Mapping[str, int], *, in_part: bool = False
) -> Victims:
    """Return which candidates (in victim order) to park for what is missing.

    Kernels whose need of host memory is unknown are parked only where the others are not enough, and before them:
    their need is known afterwards. If all together do not free enough, they are parked if host memory allows for the
    rest too, or in any case with `in_part`.
    """
    found: dict[HostMemory, list[Kernel]] = {memory: [] for memory in HostMemory}

    def fitting() -> Iterator[Kernel]:
        for kernel in candidates:
            memory = plan.host.memory_for([kernel])
            found[memory].append(kernel)
            if memory is HostMemory.ENOUGH:
                yield kernel

    looked_at = fitting()
    chosen = enough(plan, looked_at, missing)
    left = what_is_left(plan, chosen, missing)
    barred = _barred(plan, found, missing) if left else HostMemory.ENOUGH
    if in_part or (not left and len(chosen) < 2):
        return Victims(chosen, barred, found[HostMemory.SHORT])
    if left and (tries := enough(plan, found[HostMemory.UNKNOWN], left)):
        return Victims(tries)
    if barred is not HostMemory.ENOUGH or not chosen:
        return Victims([], barred, found[HostMemory.SHORT])
    rest = sum(size for resource, size in left.items() if resource not in plan.limits.caps)
    memory = plan.host.memory_for(chosen, rest)
    if memory is HostMemory.ENOUGH:
        return Victims(chosen)
    if not left:
        fit = {kernel.id: kernel for kernel in (*found[HostMemory.ENOUGH], *looked_at)}
        others = _thriftiest(plan, fit.values(), missing)
        if others := others or enough(plan, found[HostMemory.UNKNOWN], missing):
            return Victims(others)
    return Victims([], memory, [*found[HostMemory.SHORT], max(chosen, key=plan.host.takes)])


def _barred(
    plan: Plan, found: Mapping[HostMemory, Iterable[Kernel]], missing: Mapping[str, int]
) -> HostMemory:
    """Return what is wrong with host memory for kernels that would help."""
    for memory in (HostMemory.LATER, HostMemory.SHORT):
        if any(helps(plan, kernel, missing) for kernel in found[memory]):
            return memory
    return HostMemory.ENOUGH


def enough(plan: Plan, candidates: Iterable[Kernel], missing: Mapping[str, int]) -> list[Kernel]:
    """Return the first of the candidates (in victim order) that suffice, without any that the others make needless."""
    left = {resource: size for resource, size in missing.items() if size > 0}
    chosen: list[Kernel] = []
    for kernel in candidates:
        if is_nothing(left):
            break
        if helps(plan, kernel, left):
            chosen.append(kernel)
            subtract(left, plan.limits.frees(kernel))
    if len(chosen) < 2:
        return chosen
    needed: list[Kernel] = []
    for kernel in reversed(chosen):
        frees = plan.limits.frees(kernel)
        if all(size + frees.get(resource, 0) <= 0 for resource, size in left.items()):
            for resource in left:
                left[resource] += frees.get(resource, 0)
        else:
            needed.append(kernel)
    return needed[::-1]


def what_is_left(plan: Plan, chosen: Iterable[Kernel], missing: Mapping[str, int]) -> dict[str, int]:
    """Return what is still missing once the chosen kernels have been parked; {} if nothing."""
    left = dict(missing)
    for kernel in chosen:
        subtract(left, plan.limits.frees(kernel))
    return {resource: size for resource, size in left.items() if size > 0}


def helps(plan: Plan, kernel: Kernel, missing: Mapping[str, int]) -> bool:
    """Return whether parking a kernel frees any of what is missing."""
    frees = plan.limits.frees(kernel)
    return any(size > 0 and frees.get(resource) for resource, size in missing.items())


def is_nothing(missing: Mapping[str, int]) -> bool:
    """Return whether nothing is missing."""
    return max(missing.values(), default=0) <= 0


def subtract(missing: dict[str, int], frees: Mapping[str, int]) -> None:
    """Subtract what will be free from what is missing."""
    for resource in missing:
        missing[resource] -= frees.get(resource, 0)


def _thriftiest(plan: Plan, kernels: Iterable[Kernel], missing: Mapping[str, int]) -> list[Kernel]:
    """Return the kernels that suffice and take least host memory, if that is enough for them together, where it is not
    for the best; else [].
    """
    chosen = enough(plan, sorted(kernels, key=plan.host.takes), missing)
    is_enough = not what_is_left(plan, chosen, missing) and plan.host.memory_for(chosen) is HostMemory.ENOUGH
    return chosen if is_enough else []

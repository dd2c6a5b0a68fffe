"""Victim selection: enough of the candidates, and no more than host memory allows; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from ...model.snapshot import Kernel
from ..scheduling_pass.host_plan import HostMemory
from ..scheduling_pass.plan import Plan

CHOICES_OF = 7  # 127 choices


def select_victims(
    plan: Plan, candidates: Iterable[Kernel], missing: Mapping[str, int], *, in_part: bool = False
) -> tuple[list[Kernel], HostMemory]:
    """Return which candidates (in victim order) to park for what is missing, and what is wrong with host memory for the
    rest.

    Kernels whose need of host memory is doubtful are parked only where the others are not enough, and before them:
    their need is known afterwards. If all together do not free enough, they are parked if host memory allows for the
    rest too, or in any case with `in_part`.
    """
    candidates = iter(candidates)
    first = next(candidates, None)
    if first is None:
        return [], HostMemory.ENOUGH
    refused = plan.host.refusals()
    chosen, found = _choose(plan, itertools.chain((first,), candidates), missing, in_part=in_part)
    if found is not HostMemory.SHORT:
        plan.host.forget_refusals(but=refused)
    return chosen, found


def _choose(
    plan: Plan, candidates: Iterable[Kernel], missing: Mapping[str, int], *, in_part: bool
) -> tuple[list[Kernel], HostMemory]:
    sure: list[Kernel] = []
    doubtful: list[Kernel] = []
    barred = HostMemory.ENOUGH

    def fitting() -> Iterator[Kernel]:
        nonlocal barred
        for kernel in candidates:
            found = plan.host.memory_for([kernel])
            if found is HostMemory.ENOUGH and plan.host.shortfall([kernel]):
                doubtful.append(kernel)
            elif found is HostMemory.ENOUGH:
                sure.append(kernel)
                yield kernel
            elif barred is not HostMemory.LATER and helps(plan, kernel, missing):
                barred = found

    looked_at = fitting()
    chosen = enough(plan, looked_at, missing)
    left = what_is_left(plan, chosen, missing)
    if in_part or not left:
        if in_part or len(chosen) < 2:
            return chosen, barred if left else HostMemory.ENOUGH
        found = plan.host.memory_for(chosen)
        if found is HostMemory.ENOUGH:
            return chosen, found
        chosen = _others_together(plan, [*sure, *looked_at], missing) or enough(plan, doubtful, missing)
        return chosen, HostMemory.ENOUGH if chosen else found
    tries = enough(plan, doubtful, left)
    if tries:
        return tries, HostMemory.ENOUGH
    if barred is HostMemory.ENOUGH and chosen:
        rest = sum(size for resource, size in left.items() if resource not in plan.limits.caps)
        barred = plan.host.memory_for(chosen, rest)
        if barred is HostMemory.ENOUGH and not plan.host.shortfall(chosen, rest):
            return chosen, barred
    return [], barred


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


def _others_together(plan: Plan, sure: list[Kernel], missing: Mapping[str, int]) -> list[Kernel]:
    """Return several kernels that suffice and that host memory allows together, where it does not allow the best; [] if
    there are none.

    The kernels that take least host memory are tried first, then every combination of the first CHOICES_OF.
    """
    thrifty = sorted({kernel.id: kernel for kernel in sure}.values(), key=plan.host.takes)
    few = thrifty[:CHOICES_OF]
    choices = itertools.chain.from_iterable(
        itertools.combinations(few, count) for count in range(1, len(few) + 1)
    )
    for choice in itertools.chain([enough(plan, thrifty, missing)], choices):
        if not what_is_left(plan, choice, missing) and plan.host.memory_for(choice) is HostMemory.ENOUGH:
            return list(choice)
    return []

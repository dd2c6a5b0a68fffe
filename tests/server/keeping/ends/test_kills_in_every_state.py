"""Each part is killed in each state of a kernel's life, while a server has the kernel and a tab is open: the kernel is
kept with its contents, or its death is told; the tab's cell is executed and answered once.

Real servers, kernels with memory on the simulated GPU, the real CRIU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from ends_states import Life

from jupyter_affinode.hibernation.hibernate import BACK, INTO_IMAGE

MIDST = "midst of CRIU"
LEAVING = [f"hibernate: {step}" for step in (*INTO_IMAGE, MIDST)]
WAKING = [f"wake: {step}" for step in (*BACK, MIDST)]
STATES = ["running", *LEAVING, "in its image", *WAKING, "mute", "provisional", "ending"]
VICTIMS = ("keeper", "server", "controller", "kernel", "criu")
WITHOUT_PROCESS = {"in its image", "wake: check", "wake: note", "wake: restore"}
# Where the kernel's own process is killed, and no image counts.
WITHOUT_IMAGE = {"running", *LEAVING} - {"hibernate: end"}


def rows() -> Iterator[object]:
    """Yield each victim in each state in which there is one."""
    for state in STATES:
        for victim in VICTIMS:
            if victim == "criu" and MIDST not in state:
                continue
            if victim == "kernel" and state in WITHOUT_PROCESS:
                continue
            name = f"{victim}-{state.replace(': ', '-').replace(' ', '-')}"
            yield pytest.param(victim, state, id=name)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("victim", "state"), list(rows()))
def test_a_kill_in_any_state_loses_nothing_and_the_tabs_cell_is_answered_once(
    native, keeping_machine, criu, victim, state
):
    life = Life(keeping_machine, criu)

    async def told() -> None:
        await life.begin()
        try:
            await life.come_into(state)
            await life.kill(victim)
            if state == "ending":
                await life.see_that_it_has_ended()
            elif life.has_died(victim) and state in WITHOUT_IMAGE:
                await life.see_that_its_death_is_told()
            else:
                # A process that is lost before its GPU memory is back is as it was when it hibernated.
                is_lost = victim == "kernel" and state == "provisional"
                count = 0 if is_lost else 1
                await life.see_that_all_is_well(
                    count=count, was_server_killed=victim == "server", is_death_told=is_lost
                )
            life.see_that_logs_are_in_words()
        finally:
            await life.tab.close()

    try:
        asyncio.run(told())
    except BaseException:
        print(life.logs())
        raise

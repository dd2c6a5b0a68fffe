"""Every state of a kernel's life, with a server and without, and every event: no processes, and no time passes."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
from life_world import OWNER, STEPS, Server, World

from jupyter_affinode.hibernation.hibernate import CannotHibernate, CannotWake
from jupyter_affinode.keeping import keeper, life_table
from jupyter_affinode.keeping.life import Life
from jupyter_affinode.keeping.life_table import (
    KEEPS,
    ON_DISK,
    Alive,
    Event,
    Manifest,
    State,
    Way,
    found,
    outcome,
)
from jupyter_affinode.keeping.warm_entry import Entry
from jupyter_affinode.keeping.warm_pool import Pool

REACHED = [state for state in State if state not in (State.FOUND, State.ELSEWHERE)]
BY_OTHERS = (
    Event.UPDATE, Event.LEASE, Event.LEASE_LOST, Event.STARTED_ANEW, Event.HIBERNATE, Event.WAKE, Event.STOP,
    Event.END, Event.DIED,
)  # fmt: skip
OWN_WORK = {  # and the step of the work that it follows
    (State.LEAVING, Event.WRITTEN): "dump",
    (State.LEFT, Event.ENDED_FOR_IMAGE): "end",
    (State.WAKING, Event.RESTORED): "restore",
    (State.MUTE, Event.HEARD): "hear",
    (State.PROVISIONAL, Event.GPU_BACK): "gpu",
}
FAILS = {State.LEAVING: "dump", State.WAKING: "restore"}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A kernel without processes."""
    return World(tmp_path, monkeypatch)


async def fire(world: World, life: Life, event: Event) -> object:
    """Have something happen; return the refusal, if it was refused."""
    work = {
        Event.UPDATE: lambda: life.update(replace(life.record, sessions=[{"path": "renamed.ipynb"}])),
        Event.LEASE: lambda: life.take(Server()),
        Event.LEASE_LOST: lambda: lost(world, life),
        Event.STARTED_ANEW: lambda: world.starts_anew(life),
        Event.HIBERNATE: life.hibernate,
        Event.WAKE: life.wake,
        Event.STOP: life.stop,
        Event.END: lambda: life.end("this is a test"),
        Event.DIED: lambda: dies(world, life),
    }[event]
    task = asyncio.ensure_future(work())
    await world.turns()
    return task


async def lost(world: World, life: Life) -> None:
    """Have the kernel's server end, if it has one."""
    world.server.has_ended.set()
    if life.lease is not None:
        await life.lost(life.lease)


async def dies(world: World, life: Life) -> None:
    """Have the kernel's process end, if it has one."""
    if life.kernel is not None:
        life.kernel.dies()  # type: ignore[attr-defined]
    world.living.clear()


def nothing_is_lost(world: World, life: Life, before: State, event: Event) -> None:
    """Assert that the kernel is there, once: as processes or as an image that counts."""
    if before not in KEEPS or event is Event.END:
        return
    is_dead = event is Event.DIED and before in (State.RUNS, State.LEAVING)
    assert (life.state is State.GONE) == is_dead
    if is_dead:
        return
    counts = world.image.is_whole and life.state is not State.PROVISIONAL
    assert len(world.living) + counts == 1, (world.living, world.image._name(), life.state)
    assert (life.kernel is not None) == bool(world.living)
    assert world.lives.find("one") is life
    records = list((world.folder / "kept").glob("*.json"))
    assert bool(records) == bool(world.living) and (records or world.terms is not None)


@pytest.mark.parametrize(
    "state,has_server,event",
    [
        pytest.param(
            state, has_server, event, id=f"{state.value}-{'server' if has_server else 'kept'}-{event.value}"
        )
        for state, has_server, event in itertools.product(REACHED, (True, False), BY_OTHERS)
        if has_server or event is not Event.STARTED_ANEW  # its server starts it
    ],
)
async def test_what_happens_to_a_kernel_has_it_be_where_the_table_says(world, state, has_server, event):
    life = await world.reach(state, has_server=has_server)
    follows = outcome(state, event)
    task = await fire(world, life, event)
    if isinstance(follows, tuple):
        assert life.state in follows
    elif follows is not Way.WAITS or state not in (State.LEAVING, State.WAKING):  # else it is stopped first
        assert life.state is state
    if follows is Way.REFUSED:
        assert isinstance(task.exception(), (CannotHibernate, CannotWake))
        assert " " in str(task.exception()), "a sentence"
    world.let(*STEPS)
    await asyncio.gather(task, return_exceptions=True)
    await life.settled()
    await world.turns()
    assert not isinstance(task.exception(), (AssertionError, KeyError, AttributeError)), task.exception()
    nothing_is_lost(world, life, state, event)
    if event is Event.UPDATE and state in KEEPS:
        told = world.terms if life.state is State.IN_IMAGE else life.record
        assert told.sessions == [{"path": "renamed.ipynb"}], "its terms are those of now, wherever it is"
    if event is Event.END:
        assert life.state is State.GONE and not world.living and not world.image.folder.exists()
    if life.lease is None and life.kernel is not None and life.state is not State.ENDING:
        assert life.kernel.is_kept, "it is kept where no server has it"
    await world.close()


@pytest.mark.parametrize("has_server", [True, False], ids=["server", "kept"])
@pytest.mark.parametrize("state,event", list(OWN_WORK), ids=lambda each: each.value)
async def test_work_that_goes_on_leads_where_the_table_says(world, state, event, has_server):
    life = await world.reach(state, has_server=has_server)
    world.let(OWN_WORK[state, event])
    await world.until(lambda: life.state is not state)
    assert life.state in outcome(state, event)
    world.let(*STEPS)
    await life.settled()
    nothing_is_lost(world, life, state, event)
    await world.close()


@pytest.mark.parametrize("has_server", [True, False], ids=["server", "kept"])
@pytest.mark.parametrize("state", list(FAILS))
async def test_work_that_fails_leaves_the_kernel_where_it_was_and_says_why(world, state, has_server):
    life = await world.reach(state, has_server=has_server)
    world.fails.add(FAILS[state])
    world.let(*STEPS)
    await life.settled()
    assert life.state in outcome(state, Event.FAILED) and life.state is not State.GONE
    assert life.refusal == "this is a test"
    nothing_is_lost(world, life, state, Event.FAILED)
    if has_server:
        assert world.server.shown[-1] == life.state.value


@pytest.mark.parametrize("event", sorted({*Event} - {*BY_OTHERS}, key=lambda event: event.value))
@pytest.mark.parametrize("state", list(State))
async def test_what_cannot_happen_is_a_defect_and_changes_nothing(world, state, event):
    life = await world.reach(State.RUNS, has_server=True)
    life.state = state
    if isinstance(outcome(state, event), tuple):
        return
    with pytest.raises(AssertionError):
        life._become(event)
    assert life.state is state


@pytest.mark.parametrize("has_server", [True, False], ids=["server", "kept"])
@pytest.mark.parametrize("state", [state for state in REACHED if state in KEEPS])
async def test_a_keeper_that_is_killed_leaves_the_kernel_to_the_next(world, state, has_server):
    """In each state; with a server it says next that the kernel is its own."""
    life = await world.reach(state, has_server=has_server)
    state_before, process = life.state, set(world.living)
    next_one = world.kill_keeper(life)
    next_one.read_records()
    world.let("recover", "hear", "quiet")
    if "one" not in next_one:
        assert state_before is State.IN_IMAGE and world.terms is not None, "the store has its record"
        return
    found_life = next_one.get("one")
    if has_server:
        await next_one.update(replace(found_life.record, sessions=[{"path": "now.ipynb"}]), world.server)
    await next_one.look_at_found()
    await found_life.settled()
    await world.turns()
    expected = {state for disk in ON_DISK[state_before] for state in found(*disk)}
    assert found_life.state in expected, found_life.state
    if process:
        assert (found_life.kernel is not None) == bool(world.living)
    assert found_life.state is not State.GONE
    if not has_server and found_life.kernel is not None:
        assert found_life.kernel.is_kept
    await world.close()


def test_every_state_is_reached_and_nothing_but_an_end_or_its_own_death_loses_a_kernel():
    seen, todo = {State.RUNS}, [State.RUNS]
    while todo:
        state = todo.pop()
        for event in Event:
            follows = outcome(state, event)
            for following in follows if isinstance(follows, tuple) else ():
                if state in KEEPS and following is State.GONE:
                    may = event in (Event.END, Event.DIED, Event.LOOKED, Event.CLAIM_FREE) or (
                        state,
                        event,
                    ) in {(State.LEAVING, Event.FAILED), (State.WAKING, Event.FAILED)}
                    assert may, (state, event)
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        if state is State.IN_IMAGE and State.FOUND not in seen:  # a keeper starts
            seen.add(State.FOUND)
            todo.append(State.FOUND)
    assert seen == set(State)


@pytest.mark.parametrize("manifest,alive", list(itertools.product(Manifest, Alive)))
def test_whatever_lies_on_disk_is_a_state_of_one_kernel(manifest, alive):
    """It counts as processes or as an image, and never as neither where either is whole."""
    states = found(manifest, alive)
    assert states and set(states) <= set(life_table.AFTER_A_LOOK)
    if manifest in (Manifest.WHOLE, Manifest.WAKING, Manifest.WOKEN) or alive is Alive.ALL:
        assert State.GONE not in states


async def test_another_server_that_has_a_kernel_again_is_not_deprived_of_it(world):
    life = await world.reach(State.RUNS, has_server=True)
    again = Server()
    await life.take(again)
    await life.lost(world.server)
    assert life.lease is again and not life.kernel.is_kept


async def test_a_kernel_that_ended_without_a_server_is_told_to_the_next_once(world):
    life = await world.reach(State.RUNS, has_server=False)
    life.kernel.dies()
    assert "one" not in world.lives
    assert [record.kernel_id for record, _ in world.lives.take_ends(OWNER)] == ["one"]
    assert world.lives.take_ends(OWNER) == []


async def test_a_kernel_that_died_while_no_keeper_ran_is_told_also_where_it_could_hibernate(world):
    await world.reach(State.RUNS, has_server=False)
    world.living.clear()
    world.let(*STEPS)
    next_one = world.keeper()
    next_one.read_records()
    await next_one.look_at_found()
    await world.until(lambda: "one" not in next_one)
    assert [record.kernel_id for record, _ in next_one.take_ends(OWNER)] == ["one"]


async def test_terms_that_change_while_a_kernel_is_away_reach_its_image(world):
    life = await world.reach(State.IN_IMAGE, has_server=True)
    await life.update(replace(life.record, image_keep_s=0.0, sessions=[{"path": "new name.ipynb"}]))
    assert world.terms.sessions == [{"path": "new name.ipynb"}] and world.terms.image_keep_s == 0.0


async def test_two_who_ask_at_once_have_it_done_once(world):
    life = await world.reach(State.RUNS, has_server=True)
    asked = [asyncio.ensure_future(life.hibernate()) for _ in range(3)]
    await world.turns()
    world.let(*STEPS)
    await asyncio.gather(*asked)
    assert world.reached.count("dump") == 1 and life.state is State.IN_IMAGE


async def test_who_asks_and_hangs_up_stops_nothing(world):
    life = await world.reach(State.RUNS, has_server=True)
    asked = asyncio.ensure_future(life.hibernate())
    await world.turns()
    asked.cancel()
    world.let(*STEPS)
    await life.settled()
    assert life.state is State.IN_IMAGE


async def test_a_server_takes_a_kernel_that_another_keeper_of_its_user_has_and_gets_it_once_that_ends(world):
    """As a job's server that begins while the last job's keeper still ends."""
    await world.reach(State.IN_IMAGE, has_server=False)
    before, world.lives = world.lives, world.keeper()
    lives = world.lives
    lives._all["one"] = life = Life(before.get("one").record, lives.means)
    world.let(*STEPS)
    life.begin_look()
    await life.settled()
    assert life.state is State.ELSEWHERE and lives.of(OWNER) == [life]
    await life.take(world.server)
    with pytest.raises(CannotWake, match="another keeper of yours"):
        await life.wake()
    before.means.claims.leave(world.image)
    await lives.look()
    await life.settled()
    assert life.state is State.IN_IMAGE and world.server.shown[-1] == "image"
    await life.wake()
    assert life.state in (State.PROVISIONAL, State.RUNS)
    await world.close()


async def test_a_refused_hibernation_goes_on_waiting_for_the_gpu_memory_of_the_last_one(world):
    """Else its old image would count when the kernel ends, days later."""
    life = await world.reach(State.PROVISIONAL, has_server=True)
    world.fails.add("quiet")
    with pytest.raises(OSError, match="this is a test"):
        await life.hibernate()
    assert life.state is State.PROVISIONAL and world.image.was_woken
    world.let("gpu")
    await world.until(lambda: life.state is State.RUNS)
    assert not world.image.was_woken


async def test_a_second_stop_breaks_nothing_off_that_the_first_has_begun(world):
    life = await world.reach(State.LEAVING, has_server=True)
    await asyncio.gather(life.stop(), life.stop(), life.wake())
    assert life.state is State.RUNS and not world.image.folder.exists()
    nothing_is_lost(world, life, State.LEAVING, Event.STOP)


async def test_a_full_disk_loses_no_kernel(world, monkeypatch):
    """It is in memory; only a keeper that is killed meanwhile would lose it."""

    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    life = await world.reach(State.IN_IMAGE, has_server=False)
    monkeypatch.setattr("jupyter_affinode.keeping.life.write_terms", write)
    await life.update(replace(life.record, sessions=[{"path": "new.ipynb"}]))
    assert life.record.sessions == [{"path": "new.ipynb"}]
    world.lives.means.records.write = write
    world.let(*STEPS)
    await life.wake()
    assert life.kernel.is_kept and life.record.sessions == [{"path": "new.ipynb"}]
    await world.close()


async def test_an_image_is_not_deleted_by_age_in_the_midst_of_its_wake(world):
    life = await world.reach(State.WAKING, has_server=False)
    life.look_at_age()
    life.delete("it is too old")
    assert life.state is State.WAKING and world.image.folder.exists()
    world.let(*STEPS)
    await life.settled()
    await world.close()


async def test_an_image_that_was_deleted_by_hand_is_said_to_be_gone_where_it_is_needed(world):
    life = await world.reach(State.IN_IMAGE, has_server=True)
    world.image.give_up()
    with pytest.raises(CannotWake, match="its image is not there any more"):
        await life.wake()
    assert world.server.shown[-1] == "gone" and "one" not in world.lives


async def test_what_a_woken_kernels_tabs_had_not_got_stays_here_until_its_server_delivers_it(world):
    life = await world.reach(State.PROVISIONAL, has_server=True)
    assert len(life.kernel.got) == 1 and not life.kernel.is_kept
    await world.close()


async def test_a_kernel_that_a_server_adopts_does_not_hibernate_for_having_been_idle(world):
    life = await world.reach(State.RUNS, has_server=False)
    life.record = replace(life.record, hibernate_after_s=1.0)
    life.kernel.heard_at, life.kernel.kept_for_s = -1e9, 1e9
    assert keeper._is_due(life, 0.0)
    await life.take(world.server)
    assert not keeper._is_due(life, 0.0)


async def test_a_warm_kernel_that_is_moved_when_its_pool_is_dropped_ends_afterwards(world, tmp_path):
    kept = keeper.Keeper(tmp_path, world.lives._log)
    life = await world.reach(State.LEAVING, has_server=False)
    told = {"spec": "/spec", "digest": "", "environ": {}, "made_at": 0.0, "settings": {}, "prelude": ""}
    entry = Entry.new(tmp_path / "warm", told)
    pool = Pool("/spec", {}, {}, 0.0, entries={entry.kernel_id: entry})
    kept.warm._pools["/spec"] = pool
    kept.lives._all[entry.kernel_id] = life
    kept.warm.drop(None, {"spec": "/spec"})
    await kept.warm._look()
    assert life.kernel.dying is None and not kept.warm.is_empty
    await life.stop()
    await kept.warm._look()
    assert life.kernel.dying is not None and kept.warm.is_empty and not entry.folder.exists()
    world.let(*STEPS)
    await life.kernel.dying

"""The life of a kernel as a table: the states that it may be in, and what follows from each event.

`Life` (life.py) changes its state by this table alone, and tests walk all of its cells. What lies on disk in each
state, and what a later keeper makes of it, is in `ON_DISK` and `found`.
"""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """Where a kernel is."""

    FOUND = "found"  # an earlier keeper left it, and what is there of it has not been looked at
    RUNS = "runs"
    LEAVING = "leaving"  # its image is written; its processes count
    LEFT = "left"  # its image is whole, and its processes are being ended
    IN_IMAGE = "image"
    ELSEWHERE = "elsewhere"  # another keeper has its image
    WAKING = "waking"  # its processes are being started; its image counts
    MUTE = "mute"  # they run, and say nothing until they are heard
    PROVISIONAL = "provisional"  # it runs; its image stays until its GPU memory is back
    ENDING = "ending"
    GONE = "gone"


class Event(str, Enum):
    """What happens to a kernel. Behind each: which part may cause it."""

    UPDATE = "update"  # the server that has it: other terms
    LEASE = "lease"  # a server takes it
    LEASE_LOST = "lease lost"  # that server's connection ends, or it releases the kernel
    STARTED_ANEW = "started anew"  # the server that has it: another process is the kernel's
    HIBERNATE = "hibernate"  # panel, command line, magic, controller, clock, server's end, machine's stop
    WAKE = "wake"  # a tab's message, panel, command line, the program that takes a warm kernel
    STOP = "stop"  # panel, command line
    END = "end"  # user, quota, age, Hub, controller, the server that has it
    LOOKED = "looked"  # own work, as the next five
    WRITTEN = "written"
    ENDED_FOR_IMAGE = "ended for its image"
    FAILED = "failed"
    RESTORED = "restored"
    HEARD = "heard"
    GPU_BACK = "GPU memory is back"
    DIED = "process died"  # its pidfd
    CLAIM_LOST = "claim lost"  # another keeper's lock
    CLAIM_FREE = "claim free"  # the clock: its image is there to be had again


class Way(str, Enum):
    """What follows from an event that changes no state."""

    SAME = "same"  # it is so already
    WAITS = "waits"  # it is done after the work under way
    REFUSED = "refused"


Outcome = Way | tuple[State, ...]  # of several states the facts decide

SAME, WAITS, REFUSED = Way.SAME, Way.WAITS, Way.REFUSED
FOUND, RUNS, LEAVING, LEFT, IN_IMAGE, ELSEWHERE, WAKING, MUTE, PROVISIONAL, ENDING, GONE = State
AFTER_A_LOOK = (RUNS, IN_IMAGE, ELSEWHERE, MUTE, PROVISIONAL, GONE)

_ALWAYS: dict[Event, Outcome] = {Event.UPDATE: SAME, Event.LEASE: SAME, Event.LEASE_LOST: SAME}
_ROWS: dict[State, dict[Event, Outcome]] = {
    FOUND: {
        Event.HIBERNATE: WAITS,
        Event.WAKE: WAITS,
        Event.STOP: WAITS,
        Event.END: WAITS,
        Event.LOOKED: AFTER_A_LOOK,
        Event.DIED: SAME,
        Event.STARTED_ANEW: WAITS,
    },
    RUNS: {
        Event.HIBERNATE: (LEAVING,),
        Event.WAKE: SAME,
        Event.STOP: SAME,
        Event.END: (ENDING,),
        Event.DIED: (GONE,),
        Event.STARTED_ANEW: (RUNS,),
    },
    LEAVING: {
        Event.HIBERNATE: SAME,
        Event.WAKE: (RUNS, PROVISIONAL),
        Event.STOP: (RUNS, PROVISIONAL),
        Event.END: WAITS,  # it is stopped first
        Event.WRITTEN: (LEFT,),
        Event.FAILED: (RUNS, PROVISIONAL, GONE),
        Event.DIED: SAME,  # its work finds out, and fails
        Event.STARTED_ANEW: WAITS,
    },
    LEFT: {
        Event.HIBERNATE: SAME,
        Event.WAKE: WAITS,
        Event.STOP: WAITS,
        Event.END: WAITS,
        Event.ENDED_FOR_IMAGE: (IN_IMAGE,),
        Event.DIED: SAME,
        Event.STARTED_ANEW: WAITS,
    },
    IN_IMAGE: {
        Event.HIBERNATE: SAME,
        Event.WAKE: (WAKING,),
        Event.STOP: SAME,
        Event.END: (GONE,),
        Event.CLAIM_LOST: (ELSEWHERE,),
        Event.DIED: SAME,
        Event.STARTED_ANEW: (RUNS,),
    },
    ELSEWHERE: {
        Event.HIBERNATE: SAME,
        Event.WAKE: REFUSED,
        Event.STOP: SAME,
        Event.END: REFUSED,
        Event.CLAIM_FREE: AFTER_A_LOOK,
        Event.DIED: SAME,
        Event.STARTED_ANEW: (RUNS,),
    },
    WAKING: {
        Event.HIBERNATE: (IN_IMAGE,),
        Event.WAKE: SAME,
        Event.STOP: (IN_IMAGE,),
        Event.END: WAITS,  # it is stopped first
        Event.RESTORED: (MUTE,),
        Event.FAILED: (IN_IMAGE, GONE),
        Event.DIED: SAME,  # its work finds out, and fails
        Event.STARTED_ANEW: WAITS,
    },
    MUTE: {
        Event.HIBERNATE: WAITS,
        Event.WAKE: SAME,
        Event.STOP: SAME,
        Event.END: (ENDING,),
        Event.HEARD: (PROVISIONAL, RUNS),  # without GPU memory its image has served
        Event.DIED: (IN_IMAGE, GONE),
        Event.STARTED_ANEW: WAITS,
    },
    PROVISIONAL: {
        Event.HIBERNATE: (LEAVING,),
        Event.WAKE: SAME,
        Event.STOP: SAME,
        Event.END: (ENDING,),
        Event.GPU_BACK: (RUNS,),
        Event.DIED: (IN_IMAGE, GONE),
        Event.STARTED_ANEW: (RUNS,),
    },
    ENDING: {
        Event.HIBERNATE: REFUSED,
        Event.WAKE: REFUSED,
        Event.STOP: SAME,
        Event.END: SAME,
        Event.DIED: (GONE,),
        Event.STARTED_ANEW: (RUNS,),
    },
    GONE: {
        Event.HIBERNATE: REFUSED,
        Event.WAKE: REFUSED,
        Event.STOP: SAME,
        Event.END: SAME,
        Event.DIED: SAME,
        Event.STARTED_ANEW: (RUNS,),
    },
}

HAS_PROCESS = frozenset({RUNS, MUTE, PROVISIONAL, ENDING})  # whose end is watched
IS_HELD_BACK = frozenset({FOUND, LEAVING, LEFT, IN_IMAGE, ELSEWHERE, WAKING, MUTE})  # no message may reach it
IS_OUT = frozenset({LEFT, IN_IMAGE, ELSEWHERE, WAKING})  # it lives, and no process of it need live
IS_MOVING = frozenset({FOUND, LEAVING, LEFT, WAKING, MUTE})
KEEPS = frozenset(State) - {ENDING, GONE}  # nothing but an end, or its own death, leads out of these


def outcome(state: State, event: Event) -> Outcome:
    """Return what follows from an event; REFUSED also for what cannot happen in that state."""
    return _ALWAYS.get(event) or _ROWS[state].get(event, REFUSED)


class Manifest(str, Enum):
    """What the name of an image's manifest says."""

    NONE = "none"
    PARTIAL = "partial"  # there is a folder, and no manifest
    WHOLE = "whole"
    WAKING = "waking"
    WOKEN = "woken"
    CLAIMED = "claimed"  # by another keeper, whatever the name is


class Alive(str, Enum):
    """How many of a kernel's processes live."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


# What a keeper that is killed in each state leaves.
ON_DISK: dict[State, tuple[tuple[Manifest, Alive], ...]] = {
    RUNS: ((Manifest.NONE, Alive.ALL),),
    LEAVING: ((Manifest.PARTIAL, Alive.ALL), (Manifest.WOKEN, Alive.ALL)),
    LEFT: ((Manifest.WHOLE, Alive.ALL), (Manifest.WHOLE, Alive.SOME), (Manifest.WHOLE, Alive.NONE)),
    IN_IMAGE: ((Manifest.WHOLE, Alive.NONE),),
    ELSEWHERE: ((Manifest.CLAIMED, Alive.NONE),),
    WAKING: ((Manifest.WHOLE, Alive.NONE), (Manifest.WAKING, Alive.NONE), (Manifest.WAKING, Alive.SOME)),
    MUTE: ((Manifest.WOKEN, Alive.ALL),),
    PROVISIONAL: ((Manifest.WOKEN, Alive.ALL),),
    ENDING: ((Manifest.NONE, Alive.ALL), (Manifest.WOKEN, Alive.ALL), (Manifest.NONE, Alive.NONE)),
    GONE: ((Manifest.NONE, Alive.NONE),),
}


def found(manifest: Manifest, alive: Alive) -> tuple[State, ...]:
    """Return the state that a keeper finds a kernel in, by what another one left."""
    if manifest is Manifest.CLAIMED:
        return (ELSEWHERE,)
    if manifest in (Manifest.NONE, Manifest.PARTIAL):
        return (RUNS,) if alive is Alive.ALL else (GONE,)
    if manifest is Manifest.WHOLE:
        return (RUNS,) if alive is Alive.ALL else (IN_IMAGE,)
    if manifest is Manifest.WAKING:
        return (IN_IMAGE,)  # its processes have done nothing yet, and are ended
    return (MUTE, PROVISIONAL, RUNS) if alive is Alive.ALL else (IN_IMAGE,)

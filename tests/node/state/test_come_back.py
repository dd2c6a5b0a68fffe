"""A process whose link ended, and which connects again, is the one that it was."""

from __future__ import annotations

import os

import pytest
from said_pages import Says, comes

from jupyter_affinode.node.protocol.page import State
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.settings.policy import GIB, Settings

PID = os.getpid()


@pytest.fixture
def kernels():
    return NodeState(Settings(), HostMemory(256 * GIB, 200 * GIB))


def gone(kernels, process):
    """Its link is over."""
    kernels.disconnect(process)


def test_what_it_did_before_counts_once(kernels):
    page = Says(State.RESIDENT, 0)
    page.say(parks=3, resumes=3)
    process = comes(kernels, page, 1.0, PID)
    for _ in range(2):
        gone(kernels, process)
        process = comes(kernels, page, 2.0, PID)
    kernel = kernels.kernels[process.kernel_id]
    assert (len(kernel.processes), kernel.parks, kernel.resumes) == (1, 3, 3)
    kernels.remove_process(process, 3.0)
    assert (kernel.parks, kernel.resumes) == (3, 3)


def test_its_peers_have_not_lost_it(kernels):
    """A process in a long call is stuck if a peer has ended, and may be killed for that."""
    peer = comes(kernels, Says(State.PARKED, GIB), 1.0, PID + 1)
    process = comes(kernels, Says(State.PARKED, GIB), 1.0, PID)
    gone(kernels, process)
    process = comes(kernels, Says(State.PARKED, GIB), 2.0, PID)
    kernel = kernels.kernels[peer.kernel_id]
    assert kernel.past.peer_ended_at is None
    kernels.remove_process(process, 3.0, lives=True)
    assert kernel.past.peer_ended_at is None, "it is not heard of, but not dead"
    kernels.remove_process(comes(kernels, Says(State.PARKED, GIB), 4.0, PID), 5.0)
    assert kernel.past.peer_ended_at == 5.0


def test_that_its_person_wants_it_back_is_not_forgotten(kernels):
    process = comes(kernels, Says(State.PARKED, GIB), 1.0, PID)
    kernel = kernels.kernels[process.kernel_id]
    kernel.requests.resume, kernel.requests.resume_done = True, object()
    gone(kernels, process)
    comes(kernels, Says(State.PARKED, GIB), 2.0, PID)
    assert kernel.requests.resume

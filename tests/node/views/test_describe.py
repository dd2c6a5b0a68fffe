"""What the API says of a kernel between two passes of the policy."""

from __future__ import annotations

from jupyter_affinode.node.model.snapshot import Kernel, Residency
from jupyter_affinode.node.state.registry import NodeState
from jupyter_affinode.node.system.host_memory import HostMemory
from jupyter_affinode.node.views.serializers import kernel_json
from jupyter_affinode.settings.policy import GIB, Settings

NOW = 1000.0


def test_a_kernel_whose_cell_has_just_ended_is_not_said_to_stay_as_long_as_one_with_a_cell():
    """The snapshot is of the last pass, the cell of this moment."""
    state = NodeState(Settings(), HostMemory(256 * GIB, 200 * GIB))
    kernel = state.kernel("k", NOW)
    seen = Kernel("k", Residency.RESIDENT, {"A": GIB}, last_activity=NOW, cell_open=True)
    told = kernel_json(state, kernel, seen, None, NOW, waits_since=None)
    assert (told["cell_open"], told["eligible_in_s"]) == (False, state.settings.idle_timeout_s)

"""A controller for which host memory is as large as it is told, and all of it one cgroup's as well.

`bounded_controller.py MEBIBYTES [CONTROLLER ARGUMENT …]`. A simulated GPU's memory is the machine's, too, and other
programs come and go; so what is free is reckoned from what kernels say they have taken: copies, and what they keep, or
the lots that these lie in, and from the lots that no kernel has.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_affinode.node import controller
from jupyter_affinode.node.app import NodeController
from jupyter_affinode.node.state import registry
from jupyter_affinode.node.state.host import host_figures, lots
from jupyter_affinode.node.system.host_memory import CgroupMemory, HostMemory

CGROUP = "/all"


def bound(host_bytes: int) -> None:
    """Let every figure of host memory be reckoned so."""
    tables: list[registry.NodeState] = []
    stocks: list[lots.LotStock] = []
    begin, begin_stock = registry.NodeState.__init__, lots.LotStock.__init__

    def remember(self: registry.NodeState, *arguments: Any) -> None:
        begin(self, *arguments)
        tables.append(self)

    def remember_stock(self: lots.LotStock, *arguments: Any, **options: Any) -> None:
        begin_stock(self, *arguments, **options)
        stocks.append(self)

    def available() -> int:
        taken = sum(
            max(process.data.copy_bytes + process.data.retained_bytes, process.data.lot_bytes)
            for table in tables
            for process in table.processes()
        )
        taken += sum(stock.ready_bytes for stock in stocks)
        return max(host_bytes - taken, 0)

    def limits(pid: int, known: Any = None) -> tuple[CgroupMemory, ...]:
        return (CgroupMemory(CGROUP, available(), host_bytes),)

    registry.NodeState.__init__ = remember  # type: ignore[method-assign]
    host_figures.cgroup_limits = limits  # type: ignore[assignment]
    lots.LotStock.__init__ = remember_stock  # type: ignore[method-assign]
    lots.cgroup_memory = lambda pid: None
    lots.host_memory = controller.host_memory = lambda: HostMemory(host_bytes, available())


if __name__ == "__main__":
    bound(int(sys.argv[1]) << 20)
    NodeController.launch_instance(sys.argv[2:])

"""Read what a kernelspec says about its kernels' GPU: `"metadata": {"affinode": {"park": false, "priority": -1}}`.

`park`: false leaves them on the GPU, unless their user asks. `priority` lowers the class that their user has.
"""

from __future__ import annotations

from typing import Any

from jupyter_client.kernelspec import KernelSpec

SECTION = "affinode"
PRIORITY_MAX = 1000  # the controller takes no more


def scheduling_fields(spec: KernelSpec) -> dict[str, Any]:
    """Return `may_park` and `priority` for the controller; None where the kernelspec says nothing valid."""
    section = (spec.metadata or {}).get(SECTION)
    section = section if isinstance(section, dict) else {}
    park, priority = section.get("park"), section.get("priority")
    is_class = isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) <= PRIORITY_MAX
    return {
        "may_park": park if isinstance(park, bool) else None,
        "priority": priority if is_class else None,
    }

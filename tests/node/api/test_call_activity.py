"""What a kernel calls, as the API tells it."""

from __future__ import annotations

import struct
import time

from api_answers import checked
from fake_shim import MIB

COUNT = 13
AT = 1048


def test_entry_points_are_counted_while_they_are_asked_for(node, shim, wait_until):
    machine = node()
    kernel = shim("k", resident=MIB)

    def ask(kernel_id="k"):
        return checked(
            "GET", f"/kernels/{kernel_id}/activity", machine.ask("GET", f"/kernels/{kernel_id}/activity")
        )

    assert not kernel.heard.of(COUNT)
    status, answer = ask()
    assert (status, answer["entry_points"], answer["age_s"]) == (200, [], 0.0)
    assert set(answer["calls"].values()) == {0}
    (command,) = wait_until(lambda: kernel.heard.of(COUNT))
    assert command.argument == 10 * 10**9
    points = [(b"cuLaunchKernel", 900), (b"cuMemcpyHtoDAsync_v2", 30)]
    said = struct.pack("=QI4x", time.monotonic_ns() - 10**9, len(points))
    said += b"".join(struct.pack("=56sQ", *point) for point in points)
    kernel.page.map[AT : AT + len(said)] = said
    kernel.page.write()
    answer = ask()[1]
    assert answer["entry_points"] == [
        {"name": "cuLaunchKernel", "calls": 900},
        {"name": "cuMemcpyHtoDAsync_v2", "calls": 30},
    ]
    assert answer["age_s"] >= 1


def test_names_that_no_entry_point_has_are_not_believed(node, shim, wait_until):
    node()
    kernel = shim("k", resident=MIB)
    said = struct.pack("=QI4x56sQ", time.monotonic_ns(), 1, b"<script>", 5)
    kernel.page.map[AT : AT + len(said)] = said
    kernel.page.write()
    wait_until(lambda: kernel.heard.ended)

"""A kernel may live longer than the version of the package that it was started with."""

from __future__ import annotations

import os

import pytest
from story_stage import SMALL

# A controller that starts while there is such a file is of the next version.
NEXT_VERSION = """
import os, sys
if "jupyter_affinode.node" in sys.orig_argv and os.path.exists({mark!r}):
    from jupyter_affinode.node.protocol import wire
    wire.PROTOCOL_VERSION += 1
"""


@pytest.mark.long
def test_a_kernel_that_lives_through_an_upgrade_computes_on_and_is_said_to_be_not_managed(
    gpu_machine, own_stage
):
    hooks, mark = gpu_machine.folder / "hooks", gpu_machine.folder / "upgraded"
    hooks.mkdir()
    hooks.joinpath("sitecustomize.py").write_text(NEXT_VERSION.format(mark=str(mark)))
    paths = [str(hooks), *filter(None, [os.environ.get("PYTHONPATH")])]
    gpu_machine.environment["PYTHONPATH"] = os.pathsep.join(paths)
    s = own_stage(**SMALL)
    kernels = here, away = s.kernel("here.ipynb"), s.kernel("away.ipynb")
    for kernel in kernels:
        s.ok(kernel, "gpu.allocate('a', 10)")
    s.park(away)

    mark.touch()
    gpu_machine.kill_controller()
    s.until(lambda: all(s.seen(kernel).get("refusal_code") == "older-kernel" for kernel in kernels))
    assert [s.seen(kernel)["text"] for kernel in kernels] == ["Not managed"] * 2
    for kernel in kernels:
        assert s.ok(kernel, "gpu.check('a')\ngpu.allocate('b', 5)\ngpu.check('b')") == "True"
    refused = gpu_machine.ask("POST", f"/kernels/{here.id}/park", {})
    assert (refused[0], refused[1]["error"]) == (409, "older-kernel")
    said = " ".join(gpu_machine.affinode("status").stdout.split())
    assert said.count("started before an upgrade, and is not managed until it is restarted") == 2
    assert gpu_machine.controller_log().count("is refused: it was started before an upgrade") == 2

    mark.unlink()
    gpu_machine.kill_controller()
    for kernel in kernels:
        s.wait(kernel, "resident")
        assert s.seen(kernel)["refusal_code"] is None
        s.park(kernel)
        assert s.ok(kernel, "gpu.check('a')") == "True"

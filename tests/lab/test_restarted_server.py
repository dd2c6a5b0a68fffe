"""A tab whose server is restarted under it, where kernels outlive their server."""

from __future__ import annotations

import lab_cells
import pytest
from lab_server import LAB

KEEP = "--AffinodeExtension.keep_kernels=all"
COUNTING = "import time\nfor number in range(80):\n    print(number, flush=True)\n    time.sleep(0.1)"


@pytest.mark.long
def test_a_tab_goes_on_by_itself_with_a_cell_that_ran_through_its_servers_restart(
    gpu_machine, lab, open_lab, wait_until
):
    gpu_machine.environment["AFFINODE_FOLDER"] = str(gpu_machine.folder / "own")
    server = lab(KEEP)
    page = open_lab()
    notebook = page.open_notebook("kept.ipynb", lab_cells.allocate(64), COUNTING, lab_cells.READ)
    notebook.run_cell(0)
    kernel = notebook.kernel_id()
    notebook.start_cell(1)
    wait_until(lambda: "5" in notebook.output(1).split())
    server.process.terminate()
    server.process.wait(timeout=60)
    server.start(*LAB, KEEP, application="jupyterlab", port=server.port)
    notebook.wait_for_cell(1, timeout_s=180)
    dialog = page.page.get_by_role("dialog", name="Server Connection Error")  # JupyterLab's own
    if dialog.is_visible():
        dialog.get_by_role("button", name="Close").click()
    assert notebook.output(1).split() == [str(number) for number in range(80)]
    assert notebook.run_cell(2) == "7 7"
    assert notebook.kernel_id() == kernel
    page.page.reload()
    page.wait_for_lab()
    assert notebook.run_cell(2) == "7 7"
    assert server.request("DELETE", f"/api/kernels/{kernel}")[0] == 204
